package pubsub

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

func BenchmarkSubscribe(b *testing.B) {
	rdb := redistest.Redis(b).Client(b)
	ctx := b.Context()
	b.Run("floor: PubSub.Subscribe and Receive", func(b *testing.B) {
		ps := rdb.Subscribe(ctx, "warm")
		defer ps.Close()
		_, err := ps.Receive(ctx)
		require.NoError(b, err)
		for i := 0; b.Loop(); i++ {
			name := strconv.Itoa(i)
			if err := ps.Subscribe(ctx, name); err != nil {
				b.Fatal(err)
			}
			if _, err := ps.Receive(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("new channel, confirmed", func(b *testing.B) {
		h := open(b, rdb, Config{})
		listen(h, "warm").awaitConfirmed(b)
		for i := 0; b.Loop(); i++ {
			<-h.Subscribe(strconv.Itoa(i), func(Signal) {}).Confirmed()
		}
	})
	b.Run("new channel, confirmed and closed", func(b *testing.B) {
		h := open(b, rdb, Config{})
		listen(h, "warm").awaitConfirmed(b)
		for i := 0; b.Loop(); i++ {
			s := h.Subscribe(strconv.Itoa(i), func(Signal) {})
			<-s.Confirmed()
			s.Close()
		}
	})
	b.Run("shared channel", func(b *testing.B) {
		h := open(b, rdb, Config{})
		listen(h, "warm").awaitConfirmed(b)
		for b.Loop() {
			h.Subscribe("warm", func(Signal) {}).Close()
		}
	})
	b.Run("1000 new channels, confirmed and closed", func(b *testing.B) {
		h := open(b, rdb, Config{})
		listen(h, "warm").awaitConfirmed(b)
		subs := make([]*Subscription, 1000)
		for b.Loop() {
			for i := range subs {
				subs[i] = h.Subscribe(strconv.Itoa(i), func(Signal) {})
			}
			for _, s := range subs {
				<-s.Confirmed()
				s.Close()
			}
		}
	})
}

// BenchmarkSignal measures the time from PUBLISH until the waiter runs. It alternates with the
// floor, the PubSub.Channel of go-redis. One iteration is one message through each. The metrics are
// both medians, both 99th percentiles and their ratios.
func BenchmarkSignal(b *testing.B) {
	b.Run("idle", func(b *testing.B) { benchmarkSignal(b, 0) })
	b.Run("8 busy goroutines", func(b *testing.B) { benchmarkSignal(b, 8) })
}

func benchmarkSignal(b *testing.B, goroutines int) {
	s := redistest.Redis(b)
	rdb, waker := s.Client(b), s.Client(b)
	ctx := b.Context()
	ps := rdb.Subscribe(ctx, "floor")
	defer ps.Close()
	_, err := ps.Receive(ctx)
	require.NoError(b, err)
	floor := ps.Channel()
	signaled := make(chan struct{}, 1)
	sub := open(b, rdb, Config{}).Subscribe("hub", func(Signal) { signaled <- struct{}{} })
	<-sub.Confirmed()
	defer busy(b, rdb, goroutines)()

	var hubTimes, floorTimes []time.Duration
	turns := []func(){
		func() { floorTimes = append(floorTimes, timed(func() { waker.Publish(ctx, "floor", "0"); <-floor })) },
		func() { hubTimes = append(hubTimes, timed(func() { waker.Publish(ctx, "hub", "0"); <-signaled })) },
	}
	for i := 0; b.Loop(); i++ {
		turns[i%2]()
		turns[1-i%2]()
	}
	for _, p := range []struct {
		name string
		per  int
	}{{"p50", 50}, {"p99", 99}} {
		hubTime, floorTime := percentile(hubTimes, p.per), percentile(floorTimes, p.per)
		b.ReportMetric(float64(hubTime.Microseconds()), p.name+"-us")
		b.ReportMetric(float64(floorTime.Microseconds()), "floor-"+p.name+"-us")
		b.ReportMetric(float64(hubTime)/float64(floorTime), p.name+"-ratio")
	}
}

// busy runs scripts in goroutines until stop is called. stop waits for the goroutines.
func busy(b *testing.B, rdb *redis.Client, goroutines int) (stop func()) {
	script := redis.NewScript(`return redis.call('incr', KEYS[1])`)
	ctx, cancel := context.WithCancel(b.Context())
	require.NoError(b, script.Run(ctx, rdb, []string{"warm"}).Err())
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for ctx.Err() == nil {
				script.EvalSha(context.WithoutCancel(ctx), rdb, []string{"busy"})
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

func percentile(all []time.Duration, p int) time.Duration {
	slices.Sort(all)
	return all[len(all)*p/100]
}

// BenchmarkMessage measures the cost of a message from the read buffer of a link to the listener.
func BenchmarkMessage(b *testing.B) {
	next, calls := messagePath(b)
	b.ReportAllocs()
	for b.Loop() {
		next()
	}
	require.NotZero(b, *calls)
}
