// Command election measures how long nobody leads when a leader ends: redlatch's Election beside a
// leader election that polls as Kubernetes' client-go does, both on one Redis, at the same time.
//
//	go run ./election
//	go run ./election -elections 50 -hand-overs 10
//
// It exits with 1 if two lead at once.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/urfave/cli/v3"
	"golang.org/x/sync/errgroup"

	"github.com/redlatch/redlatch/bench/internal/server"
	"github.com/redlatch/redlatch/primitives"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	logging.Disable() // go-redis would log the connections of crashed candidates
	err := app(os.Stdout).Run(ctx, os.Args)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "election:", err)
		os.Exit(1)
	}
}

const description = `Each election has three candidates, each with its own connections. Some leaders end as on SIGTERM,
and the last one crashes: its connections are cut, and it releases nothing. The time runs from the return of the
leader's function, or from the crash, until the next leader's function is called. Needs redis-server ($REDIS_SERVER, or
the PATH).`

// app returns the command line interface.
func app(out io.Writer) *cli.Command {
	return &cli.Command{
		Name: "election", Usage: "measure how long nobody leads, beside a leader election that polls",
		Description: description, HideVersion: true, Writer: out,
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "elections", Value: 20, Usage: "`N` elections at a time of each contender"},
			&cli.IntFlag{Name: "hand-overs", Value: 5, Usage: "`N` clean ends in each election"},
			&cli.DurationFlag{
				Name: "lease", Value: 15 * time.Second,
				Usage: "the `TTL`; the polling leader's renew deadline is 2/3 of it, and its retry period 2/15",
			},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			switch {
			case c.Args().Present():
				return fmt.Errorf("unexpected argument %q; see --help", c.Args().First())
			case c.Int("elections") < 1 || c.Int("hand-overs") < 1:
				return errors.New("-elections and -hand-overs must be at least 1")
			case c.Duration("lease") < 100*time.Millisecond:
				return errors.New("-lease must be at least 100ms")
			}
			return measure(ctx, settings{c.Duration("lease")}, c.Int("elections"), c.Int("hand-overs"), out)
		},
	}
}

// settings derives the other times from the lease as client-go's defaults do: with a lease of 15 s,
// the deadline for a renewal is 10 s, and the pause between two attempts is 2 s.
type settings struct{ lease time.Duration }

func (s settings) renewDeadline() time.Duration { return s.lease * 2 / 3 }
func (s settings) retry() time.Duration         { return s.lease * 2 / 15 }

// contender is a way to elect a leader.
type contender struct {
	name string
	// stand stands for the election of that name until ctx ends. It calls lead, which returns soon
	// after its context has ended.
	stand func(ctx context.Context, rdb *redis.Client, name string, s settings, lead func(context.Context)) error

	mu             sync.Mutex
	clean, crashed []time.Duration
}

func contenders() []*contender {
	return []*contender{
		{name: "polling as client-go", stand: func(
			ctx context.Context, rdb *redis.Client, name string, s settings, lead func(context.Context),
		) error {
			id := strconv.FormatUint(rand.Uint64(), 36) //nolint:gosec // no secret
			return (&polling{rdb: rdb, key: name, id: id, settings: s}).stand(ctx, lead)
		}},
		{name: "redlatch", stand: func(
			ctx context.Context, rdb *redis.Client, name string, s settings, lead func(context.Context),
		) error {
			client, err := primitives.New(rdb)
			if err != nil {
				return err
			}
			defer client.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is held
			return client.Election(name, primitives.WithWatchdog(s.lease)).Run(ctx,
				func(ctx context.Context, _ primitives.Term) error {
					lead(ctx)
					return ctx.Err()
				})
		}},
	}
}

// measure runs all elections of all contenders at the same time, and prints a table.
func measure(ctx context.Context, s settings, elections, handOvers int, out io.Writer) error {
	redisServer, err := server.Start(ctx)
	if err != nil {
		return err
	}
	defer redisServer.Close()
	all := contenders()
	group, ctx := errgroup.WithContext(ctx)
	for i := range elections {
		for _, c := range all {
			e := &election{
				contender: c, settings: s, name: fmt.Sprintf("%s:%d", c.name, i), addr: redisServer.TCP.Addr,
				terms: make(chan *term, 10),
			}
			group.Go(func() error { return e.run(ctx, handOvers) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "end\tcontender\tratio of medians\tmedian\tlongest\tends\t")
	for _, end := range []struct {
		name  string
		times func(*contender) []time.Duration
	}{
		{"clean", func(c *contender) []time.Duration { return c.clean }},
		{"crash", func(c *contender) []time.Duration { return c.crashed }},
	} {
		floor := median(end.times(all[0]))
		for _, c := range all {
			times := end.times(c)
			fmt.Fprintf(table, "%s\t%s\t%.3g\t%v\t%v\t%d\t\n", end.name, c.name, float64(median(times))/float64(floor),
				rounded(median(times)), rounded(slices.Max(times)), len(times))
		}
	}
	return table.Flush()
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

func rounded(d time.Duration) time.Duration {
	if d > time.Second {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}

// election is one election of a contender, with its candidates.
type election struct {
	*contender
	settings

	name, addr string
	terms      chan *term
	inside     atomic.Int32 // how many lead
	twoLed     atomic.Bool
	candidates sync.WaitGroup
}

// term is the time in which a candidate leads.
type term struct {
	*candidate

	began time.Time
	ended chan time.Time // when lead returned
}

// candidate is one of an election.
type candidate struct {
	end   context.CancelFunc // as on SIGTERM
	crash func()             // cuts its connections
}

const candidatesEach = 3

// run measures clean ends, and then a crash.
func (e *election) run(ctx context.Context, handOvers int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer e.candidates.Wait()
	defer cancel()
	for range candidatesEach {
		e.add(ctx)
	}
	led, err := e.next(ctx)
	for range handOvers {
		if err != nil {
			return err
		}
		// A leader ends at any time between the polls of the others, and all of them stand by then.
		err = sleep(ctx, e.retry()+upTo(2*e.retry()))
		if err != nil {
			return err
		}
		led.end()
		ended := <-led.ended
		led, err = e.next(ctx)
		if err == nil {
			e.mu.Lock()
			e.clean = append(e.clean, led.began.Sub(ended))
			e.mu.Unlock()
			e.add(ctx)
		}
	}
	if err != nil {
		return err
	}
	// The leader has renewed its lease by then.
	err = sleep(ctx, e.lease/2+upTo(e.lease/2))
	if err != nil {
		return err
	}
	led.crash()
	crashed := time.Now()
	led, err = e.next(ctx)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.crashed = append(e.crashed, led.began.Sub(crashed))
	e.mu.Unlock()
	if e.twoLed.Load() {
		return fmt.Errorf("%s: two have led at once", e.name)
	}
	return nil
}

// upTo returns a random duration below limit.
func upTo(limit time.Duration) time.Duration {
	return time.Duration(rand.Int64N(int64(limit))) //nolint:gosec // no secret
}

// next waits for the next term.
func (e *election) next(ctx context.Context) (*term, error) {
	select {
	case led := <-e.terms:
		return led, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(4*e.lease + time.Minute):
		return nil, fmt.Errorf("%s: nobody leads", e.name)
	}
}

// add lets another candidate stand.
func (e *election) add(ctx context.Context) {
	ctx, end := context.WithCancel(ctx)
	line := &line{open: map[net.Conn]bool{}}
	rdb := redis.NewClient(&redis.Options{Addr: e.addr, Dialer: line.dial, PoolSize: 4, ClientName: ""})
	c := &candidate{end, line.cut}
	e.candidates.Go(func() {
		defer rdb.Close()
		defer end()
		_ = e.stand(ctx, rdb, e.name, e.settings, func(ctx context.Context) {
			if e.inside.Add(1) > 1 {
				e.twoLed.Store(true)
			}
			led := &term{c, time.Now(), make(chan time.Time, 1)}
			e.terms <- led
			<-ctx.Done()
			e.inside.Add(-1)
			led.ended <- time.Now()
		})
	})
}

// line is what a candidate's connections go through.
type line struct {
	mu    sync.Mutex
	open  map[net.Conn]bool
	isCut bool
}

var errCut = errors.New("the candidate has crashed")

func (l *line) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut {
		_ = conn.Close()
		return nil, errCut
	}
	l.open[conn] = true
	return conn, nil
}

func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = true
	for conn := range l.open {
		_ = conn.Close()
	}
}
