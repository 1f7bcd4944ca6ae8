// Command leader elects a leader among processes, and hands the leadership over in two ways.
//
// A leader that ends in order gives the leadership back, and the next one begins at once. A leader
// that is cut off from Redis loses the leadership when its lease ends. Its context ends before
// that, so it stops leading before the next one begins.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// ttl is the time after which a leader that has died or is cut off is replaced. A live leader
// renews its leadership every ttl/3. Choose a longer one, such as the default of 30 s, if pauses
// must not matter.
const ttl = 1500 * time.Millisecond

func main() {
	url := flag.String("redis", "", "`URL` of a Redis server (default: a server inside this process)")
	flag.Parse()
	if err := run(context.Background(), *url); err != nil {
		log.Fatal(err)
	}
}

// run starts three candidates. The first leader resigns, the second one is cut off, and the third
// one ends the election.
func run(ctx context.Context, url string) error {
	options, err := server(url)
	if err != nil {
		return err
	}
	ctx, finish := context.WithCancel(ctx)
	defer finish()
	e := &election{finish: finish}
	var group sync.WaitGroup
	errs := make([]error, 3)
	for i := range errs {
		group.Go(func() { errs[i] = candidate(ctx, *options, i+1, e) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if n := e.terms.Load(); n != 3 {
		return fmt.Errorf("want 3 terms, got %d", n)
	}
	fmt.Println("There was never more than one leader.")
	return nil
}

// candidate is one process of the fleet. It stands for election until the election is over.
func candidate(ctx context.Context, options redis.Options, number int, e *election) (err error) {
	network := locktest.NewLink(options.Dialer) // only for this program: a network that it can cut
	options.Dialer = network.Dial
	rdb := redis.NewClient(&options)
	defer rdb.Close()
	// A leader that has lost the leadership has a quarter of its lease to stop, which is enough on
	// a busy machine, too. By default it is a hundredth.
	client, err := primitives.New(rdb, primitives.WithSafetyMargin(ttl/4))
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, client.Close(closing)) // waits for holds
	}()

	leadership := client.Election("example:leader", primitives.WithWatchdog(ttl))
	err = leadership.Run(ctx, func(ctx context.Context, _ primitives.Term) error {
		return e.term(ctx, number, network)
	})
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return nil // the election has ended while this process was a candidate
	}
	return err
}

// election is what the leaders of this program do, and a check that there is only one at a time.
type election struct {
	finish  func()
	leading atomic.Int32
	terms   atomic.Int32
}

// term is the work of a leader. A real one works until its context ends.
func (e *election) term(ctx context.Context, number int, network *locktest.Link) error {
	if e.leading.Add(1) > 1 {
		return errors.New("two processes lead")
	}
	defer e.leading.Add(-1)
	fmt.Printf("Process %d leads.\n", number)
	switch e.terms.Add(1) {
	case 1:
		fmt.Printf("Process %d resigns.\n", number)
		return nil
	case 2:
		fmt.Printf("Process %d is cut off from Redis.\n", number)
		network.Cut()
		defer network.Mend()
		<-ctx.Done()
		fmt.Printf("Process %d stops: %v.\n", number, context.Cause(ctx))
		return context.Cause(ctx)
	default:
		fmt.Printf("Process %d ends the election.\n", number)
		e.finish()
		return nil
	}
}

// server returns options for clients of the Redis server at url, or of a new server inside this
// process.
func server(url string) (*redis.Options, error) {
	if url == "" {
		return locktest.Start().Options(), nil
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	options.Dialer = redis.NewDialer(options)
	return options, nil
}
