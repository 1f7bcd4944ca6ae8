package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
	redlatchprom "github.com/redlatch/redlatch/prometheus"
)

// ttl is shorter than the default, so that a loss fits into a short run.
const ttl = 9 * time.Second

// instance is one process of the shop: a client with a network of its own, and its metrics.
type instance struct {
	name   string
	rdb    *redis.Client
	link   *locktest.Link
	client *primitives.Client
}

// shop is the workload: two instances that use locks of several kinds.
type shop struct {
	instances []*instance
	server    *http.Server
	address   string
	work      sync.WaitGroup
}

// fault is something that goes wrong in a run.
type fault struct {
	name     string
	from, to time.Time
}

func openShop(ctx context.Context, socket string) (*shop, error) {
	s := &shop{}
	mux := http.NewServeMux()
	for _, name := range []string{"shop-1", "shop-2"} {
		options := &redis.Options{Network: "unix", Addr: socket, DialTimeout: time.Second, ReadTimeout: time.Second}
		in := &instance{name: name, link: locktest.NewLink(redis.NewDialer(options))}
		options.Dialer = in.link.Dial
		in.rdb = redis.NewClient(options)
		collector, registry := redlatchprom.NewCollector(), prometheus.NewRegistry()
		registry.MustRegister(collector)
		mux.Handle("/"+name, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
		var err error
		in.client, err = primitives.New(in.rdb, primitives.WithObserver(collector.Observe),
			primitives.WithDefaults(primitives.WithWatchdog(ttl)))
		if err != nil {
			return nil, err
		}
		s.instances = append(s.instances, in)
	}
	if _, err := s.instances[0].client.Semaphore("gateway").Init(ctx, 3); err != nil {
		return nil, err
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.address = listener.Addr().String()
	s.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = s.server.Serve(listener) }()
	return s, nil
}

func (s *shop) targets() (all []scrapeTarget) {
	for _, in := range s.instances {
		all = append(all, scrapeTarget{in.name, s.address, "/" + in.name})
	}
	return all
}

func (s *shop) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, in := range s.instances {
		_ = in.client.Close(ctx)
		_ = in.rdb.Close()
	}
	_ = s.server.Close()
}

// run runs the workload, and returns the faults.
func (s *shop) run(ctx context.Context, length time.Duration) (faults []fault) {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	for i, in := range s.instances {
		c := in.client
		for range 4 {
			s.loop(ctx, func() { // orders: some are contended
				order := c.Lock(fmt.Sprintf("orders:%d", rand.IntN(6))) //nolint:gosec // no secret
				use(ctx, order.Do, 5, 40, primitives.WithWait(200*time.Millisecond))
			})
		}
		for range 3 {
			s.loop(ctx, func() { use(ctx, c.Semaphore("gateway").Do, 20, 80) })
			s.loop(ctx, func() { use(ctx, c.FairLock("till").Do, 5, 20) })
		}
		s.work.Go(func() { // a leader resigns after a while
			_ = c.Election("planner").Run(ctx, func(ctx context.Context, _ primitives.Term) error {
				pause(ctx, time.Duration(20_000+rand.IntN(20_000))*time.Millisecond) //nolint:gosec // no secret
				return nil
			})
		})
		for n := range 3 { // long jobs, which are renewed
			s.loop(ctx, func() { use(ctx, c.Lock(fmt.Sprintf("report:%d:%d", i, n)).Do, 15_000, 25_000) })
		}
	}
	second := s.instances[1]
	cut := func(d time.Duration) func() {
		return func() {
			second.link.Cut()
			pause(ctx, d)
			second.link.Mend()
		}
	}
	for _, f := range []struct {
		name string
		at   time.Duration
		act  func()
	}{
		{"shop-2 is cut off for 4 s", length * 3 / 10, cut(4 * time.Second)},
		{"shop-2 is cut off for 15 s", length / 2, cut(15 * time.Second)},
		{"an operator frees a lock of shop-1", length * 4 / 5, func() {
			_, _ = second.client.Lock("report:0:0").ForceRelease(ctx)
		}},
	} {
		wait := f.at
		if len(faults) > 0 {
			wait -= time.Since(faults[0].from) + length*3/10
		}
		pause(ctx, wait)
		from := time.Now()
		f.act()
		faults = append(faults, fault{f.name, from, time.Now()})
	}
	s.work.Wait()
	return faults
}

// loop repeats f in a goroutine until ctx ends.
func (s *shop) loop(ctx context.Context, f func()) {
	s.work.Go(func() {
		for ctx.Err() == nil {
			f()
			pause(ctx, time.Duration(rand.IntN(40))*time.Millisecond) //nolint:gosec // no secret
		}
	})
}

// use holds something for a random time, in ms. A lost hold ends the work.
func use(
	ctx context.Context, do func(context.Context, func(context.Context) error, ...primitives.Option) error,
	least, most int, opts ...primitives.Option,
) {
	err := do(ctx, func(ctx context.Context) error {
		pause(ctx, time.Duration(least+rand.IntN(most-least))*time.Millisecond) //nolint:gosec // no secret
		return nil
	}, opts...)
	if err != nil && !errors.Is(err, primitives.ErrNotAcquired) {
		pause(ctx, 500*time.Millisecond)
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
