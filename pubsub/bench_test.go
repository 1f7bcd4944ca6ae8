package pubsub

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
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
		listen(h, "warm").confirmed(b)
		for i := 0; b.Loop(); i++ {
			<-h.Subscribe(strconv.Itoa(i), func(Signal) {}).Confirmed()
		}
	})
	b.Run("new channel, confirmed and closed", func(b *testing.B) {
		h := open(b, rdb, Config{})
		listen(h, "warm").confirmed(b)
		for i := 0; b.Loop(); i++ {
			s := h.Subscribe(strconv.Itoa(i), func(Signal) {})
			<-s.Confirmed()
			s.Close()
		}
	})
	b.Run("shared channel", func(b *testing.B) {
		h := open(b, rdb, Config{})
		listen(h, "warm").confirmed(b)
		for b.Loop() {
			h.Subscribe("warm", func(Signal) {}).Close()
		}
	})
	b.Run("1000 new channels, confirmed and closed", func(b *testing.B) {
		h := open(b, rdb, Config{})
		listen(h, "warm").confirmed(b)
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

// BenchmarkSignal measures from PUBLISH to the listener.
func BenchmarkSignal(b *testing.B) {
	rdb := redistest.Redis(b).Client(b)
	ctx := b.Context()
	b.Run("floor: PubSub.Receive", func(b *testing.B) {
		ps := rdb.Subscribe(ctx, "floor")
		defer ps.Close()
		_, err := ps.Receive(ctx)
		require.NoError(b, err)
		for b.Loop() {
			rdb.Publish(ctx, "floor", "0")
			if _, err := ps.Receive(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("floor: PubSub.Channel", func(b *testing.B) {
		ps := rdb.Subscribe(ctx, "floor")
		defer ps.Close()
		_, err := ps.Receive(ctx)
		require.NoError(b, err)
		heard := ps.Channel()
		for b.Loop() {
			rdb.Publish(ctx, "floor", "0")
			<-heard
		}
	})
	b.Run("one listener", func(b *testing.B) {
		h := open(b, rdb, Config{})
		heard := make(chan struct{}, 1)
		<-h.Subscribe("one", func(Signal) { heard <- struct{}{} }).Confirmed()
		for b.Loop() {
			rdb.Publish(ctx, "one", "0")
			<-heard
		}
	})
}
