// Command observer logs what happens to locks, and counts it, with the standard library only.
//
// The client calls its observer with each event. Calls wait for the observer, so it must be quick.
package main

import (
	"context"
	"errors"
	"expvar"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// observer writes events to a log, and counts them by their kind.
type observer struct {
	log    *slog.Logger
	counts *expvar.Map // a web server that imports package expvar shows it at /debug/vars
}

// observe is safe for concurrent use, as an observer must be.
func (o *observer) observe(e primitives.Event) {
	o.counts.Add(string(e.Kind), 1)

	level := slog.LevelDebug
	switch e.Kind {
	case primitives.EventLost, primitives.EventLeaked,
		primitives.EventRenewFailed, primitives.EventReleaseFailed:
		level = slog.LevelWarn
	case primitives.EventNotAcquired:
		level = slog.LevelInfo
	default: // the usual life of a hold
	}
	ctx := e.Ctx // a handler may find a trace id in it
	if ctx == nil {
		ctx = context.Background() // the event was found in the background
	}
	attrs := []slog.Attr{slog.String("kind", e.Lock), slog.String("name", e.Name)}
	if e.Waited > 0 {
		attrs = append(attrs, slog.Int64("waited_ms", e.Waited.Milliseconds()))
	}
	if e.Held > 0 {
		attrs = append(attrs, slog.Int64("held_ms", e.Held.Milliseconds()))
	}
	loss, lost := errors.AsType[*primitives.LossError](e.Err)
	switch {
	case lost:
		attrs = append(attrs, slog.String("reason", string(loss.Reason)))
	case e.Outcome() == primitives.OutcomeBusy: // the error would name the holder
		attrs = append(attrs, slog.String("outcome", string(e.Outcome())))
	case e.Err != nil:
		attrs = append(attrs, slog.Any("err", e.Err))
	}
	o.log.LogAttrs(ctx, level, string(e.Kind), attrs...)
}

func main() {
	url := flag.String("redis", "", "`URL` of a Redis server (default: a server inside this process)")
	flag.Parse()
	if err := run(context.Background(), *url); err != nil {
		log.Fatal(err)
	}
}

// run observes a client while a rival gets into its way.
func run(ctx context.Context, url string) (err error) {
	rdb, err := connect(url)
	if err != nil {
		return err
	}
	defer rdb.Close()
	handler := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: withoutTime})
	o := &observer{slog.New(handler), expvar.NewMap("redlatch")}
	client, err := primitives.New(rdb, primitives.WithObserver(o.observe))
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, client.Close(closing)) // waits for holds
	}()
	rival, err := primitives.New(rdb)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, rival.Close(closing))
	}()
	order, rivalOrder := client.Lock("example:order:42"), rival.Lock("example:order:42")

	fmt.Println("Nobody is in the way:")
	if err := order.Do(ctx, func(context.Context) error { return nil }); err != nil {
		return err
	}

	fmt.Println("The rival has the lock for 100 ms:")
	if _, err := rivalOrder.Acquire(ctx, primitives.WithLease(100*time.Millisecond)); err != nil {
		return err
	}
	hold, err := order.Acquire(ctx)
	if err != nil {
		return err
	}

	fmt.Println("The rival takes the lock away by force:")
	if _, err := rivalOrder.ForceRelease(ctx); err != nil {
		return err
	}
	if err := hold.Release(ctx); !errors.Is(err, primitives.ErrLost) {
		return fmt.Errorf("want a lost hold, got %w", err)
	}

	fmt.Println("The rival has the lock for longer than the client waits:")
	theirs, err := rivalOrder.Acquire(ctx)
	if err != nil {
		return err
	}
	if _, err := order.Acquire(ctx, primitives.WithWait(50*time.Millisecond)); !errors.Is(err, primitives.ErrNotAcquired) {
		return fmt.Errorf("want a busy lock, got %w", err)
	}
	if err := theirs.Release(ctx); err != nil {
		return err
	}

	fmt.Println("Counted:", o.counts)
	if want := `{"acquired": 2, "lost": 1, "not-acquired": 1, "released": 1, "wait": 2}`; o.counts.String() != want {
		return fmt.Errorf("want %s", want)
	}
	return nil
}

// withoutTime leaves the time out of the log, which is short enough here.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// connect returns a client of the Redis server at url, or of a new server inside this process.
func connect(url string) (*redis.Client, error) {
	if url == "" {
		return redis.NewClient(locktest.Start().Options()), nil
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	return redis.NewClient(options), nil
}
