package main

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// scenario is one path. run sets it up, calls w.record once for the path itself, and cleans up. It
// uses a lock of the name that it is given, which no other run uses.
type scenario struct {
	name, title string
	commands    int // that the library sends on the path
	run         func(w *worker, name string)
}

var scenarios = []scenario{
	{"acquire", "acquire a free lock", 1, acquireFree},
	{"release", "release a lock without waiters", 1, releaseUnwaited},
	{"wait", "acquire a held lock, wait, and be woken by the release of another client", 3, waitForAnother},
	{"handoff", "release a lock and hand it off to a waiter of the same client", 1, handOff},
	{"fair", "queue for a fair lock and be granted it by the release of another client", 3, queueFairly},
	{"renew", "renew a hold", 1, renewHold},
	{"lose", "lose a hold: the renewal is refused and the hold's context ends", 1, loseHold},
}

// forever never ends, so the library sends commands in the goroutine of the call.
var forever = context.Background()

func acquireFree(w *worker, name string) {
	lock := w.client.Lock(name)
	var hold *primitives.Hold
	w.record(func() { hold = must(lock.Acquire(forever)) })
	check(hold.Release(forever))
}

func releaseUnwaited(w *worker, name string) {
	hold := must(w.client.Lock(name).Acquire(forever))
	w.record(func() { check(hold.Release(forever)) })
}

// waitForAnother records the waiter alone: plain commands act as the other client.
func waitForAnother(w *worker, name string) {
	lock := w.client.Lock(name)
	w.mini.HSet(name, "redisson:1", "1")
	w.mini.SetTTL(name, time.Minute)
	var hold *primitives.Hold
	w.record(func() {
		granted := acquireLater(lock)
		w.awaitWaiter(name)
		w.awaitIdle()
		w.mini.Del(name)
		w.mini.Publish("redisson_lock__channel:{"+name+"}", "0")
		hold = <-granted
	})
	check(hold.Release(forever))
}

// handOff records the release and the waiter's work after it, not the start of the wait.
func handOff(w *worker, name string) {
	lock := w.client.Lock(name)
	hold := must(lock.Acquire(forever))
	granted := acquireLater(lock)
	w.awaitWaiter(name)
	var next *primitives.Hold
	w.record(func() {
		check(hold.Release(forever))
		next = <-granted
	})
	check(next.Release(forever))
}

// queueFairly records the waiter and the release.
func queueFairly(w *worker, name string) {
	hold := must(w.other.FairLock(name).Acquire(forever))
	lock := w.client.FairLock(name)
	var next *primitives.Hold
	w.record(func() {
		granted := acquireLater(lock)
		w.awaitWaiter(name)
		w.awaitIdle()
		check(hold.Release(forever))
		next = <-granted
	})
	check(next.Release(forever))
}

func renewHold(w *worker, name string) {
	hold := w.acquireAndAwaitRenewal(name)
	sent := w.hook.count()
	w.record(func() { await("a renewal", func() bool { return w.hook.count() > sent }) })
	check(hold.Release(forever))
}

func loseHold(w *worker, name string) {
	hold := w.acquireAndAwaitRenewal(name)
	ctx := hold.Context()
	w.mini.Del(name)
	w.record(func() { await("the loss", func() bool { return ctx.Err() != nil }) })
	_ = hold.Release(forever) // returns ErrLost
}

// acquireAndAwaitRenewal acquires a lock and returns shortly before its first renewal. The client's
// other timers, at 100 ms and every 250 ms from then on, are not due at that time.
func (w *worker) acquireAndAwaitRenewal(name string) *primitives.Hold {
	const renewal = 250 * time.Millisecond
	hold := must(w.client.Lock(name, primitives.WithWatchdog(3*renewal)).Acquire(forever))
	time.Sleep(renewal - 25*time.Millisecond)
	return hold
}

// acquireLater acquires lock in another goroutine.
func acquireLater(lock *primitives.Lock) (granted <-chan *primitives.Hold) {
	c := make(chan *primitives.Hold, 1)
	go func() { c <- must(lock.Acquire(forever)) }()
	return c
}

// awaitWaiter returns once a client has subscribed to releases of name. The attempt that follows the
// subscription may still be to come.
func (w *worker) awaitWaiter(name string) {
	await("a waiter", func() bool { return len(w.mini.PubSubChannels("*"+name+"*")) > 0 })
}
