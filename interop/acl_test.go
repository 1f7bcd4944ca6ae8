package interop_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/interop/redisson"
	"github.com/redlatch/redlatch/primitives"
)

// Go and Java share all primitives, each with the rights that doc/operations.md lists for it.
func TestDocumentedRulesOfGoAndJava(t *testing.T) {
	server := redistest.Fresh(t)
	for _, user := range []string{"locks", "java"} {
		for _, rules := range redistest.DocumentedRules(t, user) {
			server.SetUser(t, user, rules...)
		}
	}
	client, err := primitives.New(server.As("locks").Client(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close(t.Context())) })
	w := wireOf(t, "orders:"+redistest.Name(t), server, redisson4.Driver(t), redisson.Config{
		Addr: server.Addr(), Server: map[string]any{"username": "java", "password": redistest.Password},
	})
	ctx := w.ctx
	for kind, open := range map[string]func(name string) *primitives.Lock{
		"lock":   func(name string) *primitives.Lock { return client.Lock(name) },
		"fair":   func(name string) *primitives.Lock { return client.FairLock(name) },
		"fenced": func(name string) *primitives.Lock { return client.FencedLock(name) },
		"read":   func(name string) *primitives.Lock { return client.RWLock(name).Reader() },
		"write":  func(name string) *primitives.Lock { return client.RWLock(name).Writer() },
	} {
		name := w.name + kind
		java := w.client.LockOf(kind, name)
		blocker := open(name)
		if kind == "read" {
			blocker = client.RWLock(name).Writer()
		}
		hold, err := blocker.Acquire(ctx)
		require.NoError(t, err)
		waiting := java.On("A").Go("lock")
		time.Sleep(50 * time.Millisecond)
		require.NoError(t, hold.Release(ctx))
		_, err = waiting.Wait(ctx)
		require.NoError(t, err, kind)
		held, err := java.On("A").IsHeld(ctx)
		require.NoError(t, err)
		require.True(t, held)
		require.NoError(t, java.On("A").Unlock(ctx), kind)
		require.NoError(t, java.On("A").Lock(ctx))
		_, err = java.ForceUnlock(ctx)
		require.NoError(t, err, kind)
		hold, err = open(name).Acquire(ctx)
		require.NoError(t, err)
		require.NoError(t, hold.Release(ctx))
	}
	inJava, inGo := w.client.Semaphore(w.name+"s"), client.Semaphore(w.name+"s")
	require.NoError(t, is(true)(inJava.TrySetPermits(ctx, 2)))
	require.NoError(t, inJava.Acquire(ctx, 1))
	require.NoError(t, inGo.Do(ctx, nothing))
	require.NoError(t, inJava.Release(ctx, 1))
	_, err = inJava.Available(ctx)
	require.NoError(t, err)

	permits := w.client.Permits(w.name + "p")
	require.NoError(t, is(true)(permits.TrySetPermits(ctx, 1)))
	id, err := permits.Acquire(ctx, time.Minute)
	require.NoError(t, err)
	require.NoError(t, is(true)(permits.UpdateLease(ctx, id, time.Hour)))
	require.NoError(t, permits.AddPermits(ctx, 1))
	require.NoError(t, client.PermitExpirableSemaphore(w.name+"p").Do(ctx, nothing))
	require.NoError(t, permits.Release(ctx, id))
	for _, ask := range []func() (int64, error){
		func() (int64, error) { return permits.Available(ctx) },
		func() (int64, error) { return permits.Acquired(ctx) },
		func() (int64, error) { return permits.Total(ctx) },
	} {
		_, err := ask()
		require.NoError(t, err)
	}

	latch := w.client.Latch(w.name + "l")
	require.NoError(t, is(true)(latch.TrySetCount(ctx, 2)))
	waiting := latch.On("A").Go("await")
	require.NoError(t, latch.CountDown(ctx))
	require.NoError(t, client.CountDownLatch(w.name+"l").CountDown(ctx))
	_, err = waiting.Wait(ctx)
	require.NoError(t, err)
}

func nothing(context.Context) error { return nil }
