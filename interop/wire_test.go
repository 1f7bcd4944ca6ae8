package interop_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/interop/redisson"
)

// TestWireFormatOfRedisson checks that Redisson uses the wire format that this library implements:
// the keys, fields, times and messages of each call.
func TestWireFormatOfRedisson(t *testing.T) {
	tests := []struct {
		name  string
		since string // the first major version with this kind
		run   func(w *wire)
	}{
		{"lock", "3", wireLock},
		{"lease of an object", "3", wireLease},
		{"fenced as lock", "3", wireFencedAsLock},
		{"lock name with braces", "3", wireBraces},
		{"lock handed off", "3", wireHandOff},
		{"spin", "3", wireSpin},
		{"nonreentrant", "4", wireNonReentrant},
		{"fair", "3", func(w *wire) { wireFair(w, "fair") }},
		{"nonreentrantfair", "4", func(w *wire) { wireFair(w, "nonreentrantfair") }},
		{"fenced", "3", wireFenced},
		{"read", "3", wireRead},
		{"write", "3", wireWrite},
		{"read and write", "3", wireDowngrade},
		{"multi", "3", wireMulti},
		{"red", "3", wireRed},
		{"semaphore", "3", wireSemaphore},
		{"permits", "3", wirePermits},
		{"latch", "3", wireLatch},
		{"unlock latch", "3", wireUnlockLatch},
	}
	eachRedisson(t, func(t *testing.T, driver *redisson.Driver) {
		for _, tt := range tests {
			if driver.Redisson() >= tt.since {
				t.Run(tt.name, func(t *testing.T) { tt.run(newWire(t, driver)) })
			}
		}
	})
}

const lockChannel = "redisson_lock__channel:{N}"

func wireLock(w *wire) {
	lock := w.client.Lock(w.name)
	a, b := lock.On(w.owner("A")), lock.On(w.owner("B"))

	w.step(a.Lock(w.ctx), state{"N": "A=1 ttl=30s"})
	w.step(is(true)(a.TryLock(w.ctx)), state{"N": "A=2 ttl=30s"})
	w.step(is(false)(b.TryLock(w.ctx)), state{"N": "A=2 ttl=30s"})
	w.step(throws("IllegalMonitorStateException")(b.Unlock(w.ctx)), state{"N": "A=2 ttl=30s"})
	w.step(a.LockFor(w.ctx, lease), state{"N": "A=3 ttl=1m0s"})
	w.step(is(int64(3))(a.HoldCount(w.ctx)), state{"N": "A=3 ttl=1m0s"})
	w.step(a.Unlock(w.ctx), state{"N": "A=2 ttl=1m0s"})
	w.step(a.Unlock(w.ctx), state{"N": "A=1 ttl=1m0s"})
	w.step(a.Unlock(w.ctx), state{}, lockChannel+" 0")
	w.step(throws("IllegalMonitorStateException")(a.Unlock(w.ctx)), state{})

	w.step(is(true)(b.TryLockFor(w.ctx, 0, lease)), state{"N": "B=1 ttl=1m0s"})
	w.step(is(true)(b.IsHeld(w.ctx)), state{"N": "B=1 ttl=1m0s"})
	w.step(is(true)(a.IsLocked(w.ctx)), state{"N": "B=1 ttl=1m0s"})
	w.step(is(true)(a.ForceUnlock(w.ctx)), state{}, lockChannel+" 0")
	w.step(is(false)(a.ForceUnlock(w.ctx)), state{})
	w.step(is(int64(-2))(a.TTL(w.ctx)), state{})
}

// wireLease shows that a Java object keeps its last lease until it frees the lock. Even lock()
// without a lease uses it.
func wireLease(w *wire) {
	lock := w.client.Lock(w.name).On(w.owner("A"))
	other := lock.Handle("other")
	w.step(lock.LockFor(w.ctx, lease), state{"N": "A=1 ttl=1m0s"})
	w.step(lock.Lock(w.ctx), state{"N": "A=2 ttl=1m0s"})
	w.step(other.Lock(w.ctx), state{"N": "A=3 ttl=30s"})
	w.step(lock.Unlock(w.ctx), state{"N": "A=2 ttl=1m0s"})
	w.step(other.Unlock(w.ctx), state{"N": "A=1 ttl=30s"})
	w.step(lock.Unlock(w.ctx), state{}, lockChannel+" 0")
	w.step(lock.Lock(w.ctx), state{"N": "A=1 ttl=30s"})
}

func wireBraces(w *wire) {
	lock := w.client.Lock(w.name + "{tag}").On(w.owner("A"))
	w.step(lock.Lock(w.ctx), state{"N{tag}": "A=1 ttl=30s"})
	w.step(lock.Unlock(w.ctx), state{}, "redisson_lock__channel:N{tag} 0")
	latch := w.client.Latch(w.name + "{tag}")
	w.step(is(true)(latch.TrySetCount(w.ctx, 1)), state{"N{tag}": "1"}, "redisson_countdownlatch__channel__{N{tag}} 1")
	w.step(latch.CountDown(w.ctx), state{}, "redisson_countdownlatch__channel__{N{tag}} 0")
}

func wireHandOff(w *wire) {
	lock := w.client.Lock(w.name)
	a, b := lock.On(w.owner("A")), lock.On(w.owner("B"))
	w.step(a.Lock(w.ctx), state{"N": "A=1 ttl=30s"})
	waiting := b.Go("lock")
	w.awaitSubscriber("redisson_lock__channel:{" + w.name + "}")
	require.NoError(w.t, a.Unlock(w.ctx))
	w.step(w.await(waiting), state{"N": "B=1 ttl=30s"}, lockChannel+" 0")
	w.step(b.Unlock(w.ctx), state{}, lockChannel+" 0")
}

func wireSpin(w *wire) {
	a := w.client.LockOf("spin", w.name).On(w.owner("A"))
	w.step(a.Lock(w.ctx), state{"N": "A=1 ttl=30s"})
	w.step(a.LockFor(w.ctx, lease), state{"N": "A=2 ttl=1m0s"})
	w.step(a.Unlock(w.ctx), state{"N": "A=1 ttl=1m0s"})
	w.step(a.Unlock(w.ctx), state{})
	w.step(a.Lock(w.ctx), state{"N": "A=1 ttl=30s"})
	w.step(is(true)(a.ForceUnlock(w.ctx)), state{})
}

func wireNonReentrant(w *wire) {
	a := w.client.LockOf("nonreentrant", w.name).On(w.owner("A"))
	w.step(a.Lock(w.ctx), state{"N": "A=1 ttl=30s"})
	w.step(throws("IllegalMonitorStateException")(a.Lock(w.ctx)), state{"N": "A=1 ttl=30s"})
	w.step(a.Unlock(w.ctx), state{}, lockChannel+" 0")
}

func wireFair(w *wire, kind string) {
	lock := w.client.LockOf(kind, w.name)
	a, b, c := lock.On(w.owner("A")), lock.On(w.owner("B")), lock.On(w.owner("C"))
	channel := "redisson_lock__channel:{" + w.name + "}:"

	w.step(a.Lock(w.ctx), state{"N": "A=1 ttl=30s"})
	waitingB := b.Go("lock")
	w.awaitSubscriber(channel + w.id("B"))
	w.step(is(false)(c.TryLock(w.ctx)), state{
		"N":                         "A=1 ttl=30s",
		"redisson_lock_queue:{N}":   "B",
		"redisson_lock_timeout:{N}": "B=now+5m30s",
	})
	waitingC := c.Go("lock")
	w.awaitSubscriber(channel + w.id("C"))
	w.step(nil, state{
		"N":                         "A=1 ttl=30s",
		"redisson_lock_queue:{N}":   "B C",
		"redisson_lock_timeout:{N}": "B=now+5m30s C=now+10m30s",
	})
	require.NoError(w.t, a.Unlock(w.ctx))
	w.step(w.await(waitingB), state{
		"N":                         "B=1 ttl=30s",
		"redisson_lock_queue:{N}":   "C",
		"redisson_lock_timeout:{N}": "C=now+5m30s",
	}, "redisson_lock__channel:{N}:B 0")
	require.NoError(w.t, b.Unlock(w.ctx))
	w.step(w.await(waitingC), state{"N": "C=1 ttl=30s"}, "redisson_lock__channel:{N}:C 0")
	w.step(is(false)(b.TryLockFor(w.ctx, shortWait, lease)), state{"N": "C=1 ttl=30s"})
	w.step(c.Unlock(w.ctx), state{})
	w.step(c.Unlock(w.ctx), state{}) // nobody holds the lock: no error
	w.step(a.Lock(w.ctx), state{"N": "A=1 ttl=30s"})
	w.step(throws("IllegalMonitorStateException")(c.Unlock(w.ctx)), state{"N": "A=1 ttl=30s"})
	w.step(is(true)(c.ForceUnlock(w.ctx)), state{})
}

func wireFencedAsLock(w *wire) {
	a := w.client.FencedLock(w.name).On(w.owner("A"))
	w.step(a.Lock(w.ctx), state{"N": "A=1 ttl=30s", "redisson_lock_token:{N}": "1"})
	w.step(is(true)(a.TryLock(w.ctx)), state{"N": "A=2 ttl=30s", "redisson_lock_token:{N}": "2"})
	w.step(a.Unlock(w.ctx), state{"N": "A=1 ttl=30s", "redisson_lock_token:{N}": "2"})
	w.step(a.Unlock(w.ctx), state{"redisson_lock_token:{N}": "2"}, lockChannel+" 0")
}

func wireFenced(w *wire) {
	lock := w.client.FencedLock(w.name)
	a, b := lock.On(w.owner("A")), lock.On(w.owner("B"))
	w.step(is(int64(0))(a.Token(w.ctx)), state{})
	w.step(is(int64(1))(a.LockAndGetToken(w.ctx)), state{"N": "A=1 ttl=30s", "redisson_lock_token:{N}": "1"})
	w.step(is(int64(0))(b.TryLockAndGetToken(w.ctx, shortWait, lease)),
		state{"N": "A=1 ttl=30s", "redisson_lock_token:{N}": "1"})
	w.step(a.Unlock(w.ctx), state{"redisson_lock_token:{N}": "1"}, lockChannel+" 0")
	w.step(is(int64(2))(b.TryLockAndGetToken(w.ctx, shortWait, lease)),
		state{"N": "B=1 ttl=1m0s", "redisson_lock_token:{N}": "2"})
	w.step(is(true)(a.ForceUnlock(w.ctx)), state{"redisson_lock_token:{N}": "2"}, lockChannel+" 0")
	w.step(is(int64(2))(a.Token(w.ctx)), state{"redisson_lock_token:{N}": "2"})
}

const rwChannel = "redisson_rwlock:{N}"

func wireRead(w *wire) {
	lock := w.client.ReadLock(w.name)
	a, b := lock.On(w.owner("A")), lock.On(w.owner("B"))
	w.step(a.Lock(w.ctx), state{
		"N": "A=1 mode=read ttl=30s", "{N}:A:rwlock_timeout:1": "1 ttl=30s"})
	w.step(a.LockFor(w.ctx, lease), state{
		"N": "A=2 mode=read ttl=1m0s", "{N}:A:rwlock_timeout:1": "1 ttl=30s", "{N}:A:rwlock_timeout:2": "1 ttl=1m0s"})
	w.step(b.Handle("b's own").Lock(w.ctx), state{
		"N": "A=2 B=1 mode=read ttl=1m0s", "{N}:A:rwlock_timeout:1": "1 ttl=30s", "{N}:A:rwlock_timeout:2": "1 ttl=1m0s",
		"{N}:B:rwlock_timeout:1": "1 ttl=30s"})
	w.step(a.Unlock(w.ctx), state{
		"N": "A=1 B=1 mode=read ttl=30s", "{N}:A:rwlock_timeout:1": "1 ttl=30s", "{N}:B:rwlock_timeout:1": "1 ttl=30s"})
	w.step(a.Unlock(w.ctx), state{"N": "B=1 mode=read ttl=30s", "{N}:B:rwlock_timeout:1": "1 ttl=30s"})
	w.step(b.Unlock(w.ctx), state{}, rwChannel+" 0")
	w.step(throws("IllegalMonitorStateException")(b.Unlock(w.ctx)), state{}, rwChannel+" 0")
	w.step(a.Lock(w.ctx), state{"N": "A=1 mode=read ttl=30s", "{N}:A:rwlock_timeout:1": "1 ttl=30s"})
	w.step(is(true)(b.ForceUnlock(w.ctx)), state{"{N}:A:rwlock_timeout:1": "1 ttl=30s"}, rwChannel+" 0")
}

func wireWrite(w *wire) {
	lock := w.client.WriteLock(w.name)
	a, b := lock.On(w.owner("A")), lock.On(w.owner("B"))
	w.step(a.Lock(w.ctx), state{"N": "A:write=1 mode=write ttl=30s"})
	w.step(is(true)(a.TryLock(w.ctx)), state{"N": "A:write=2 mode=write ttl=1m0s"}) // the leases add up
	w.step(is(false)(b.TryLock(w.ctx)), state{"N": "A:write=2 mode=write ttl=1m0s"})
	w.step(is(false)(w.client.ReadLock(w.name).On("B").TryLock(w.ctx)), state{"N": "A:write=2 mode=write ttl=1m0s"})
	w.step(throws("IllegalMonitorStateException")(b.Unlock(w.ctx)), state{"N": "A:write=2 mode=write ttl=1m0s"})
	w.step(a.Unlock(w.ctx), state{"N": "A:write=1 mode=write ttl=30s"})
	w.step(a.Unlock(w.ctx), state{}, rwChannel+" 1")
	w.step(throws("IllegalMonitorStateException")(a.Unlock(w.ctx)), state{}, rwChannel+" 1")
	w.step(a.Lock(w.ctx), state{"N": "A:write=1 mode=write ttl=30s"})
	w.step(is(true)(b.ForceUnlock(w.ctx)), state{}, rwChannel+" 1")
}

func wireDowngrade(w *wire) {
	read, write := w.client.ReadLock(w.name), w.client.WriteLock(w.name)
	w.owner("A")
	w.step(write.On("A").Lock(w.ctx), state{"N": "A:write=1 mode=write ttl=30s"})
	w.step(read.On("A").Lock(w.ctx), state{
		"N": "A:write=1 A=1 mode=write ttl=30s", "{N}:A:rwlock_timeout:1": "1 ttl=30s"})
	w.step(write.On("A").Unlock(w.ctx), state{ // no message
		"N": "A=1 mode=read ttl=30s", "{N}:A:rwlock_timeout:1": "1 ttl=30s"})
	w.step(is(false)(write.On("A").TryLock(w.ctx)), state{
		"N": "A=1 mode=read ttl=30s", "{N}:A:rwlock_timeout:1": "1 ttl=30s"})
	w.step(read.On("A").Unlock(w.ctx), state{}, rwChannel+" 0")
}

func wireMulti(w *wire) {
	w.owner("A")
	a := w.client.MultiLock(w.client.Lock(w.name), w.client.FairLock(w.name+"2")).On("A")
	w.step(a.Lock(w.ctx), state{"N": "A=1 ttl=30s", "N2": "A=1 ttl=30s"})
	w.step(a.Unlock(w.ctx), state{}, lockChannel+" 0")
	w.step(is(true)(a.TryLockFor(w.ctx, 0, lease)), state{"N": "A=1 ttl=1m0s", "N2": "A=1 ttl=1m0s"})
	w.step(a.Unlock(w.ctx), state{}, lockChannel+" 0")
}

func wireRed(w *wire) {
	w.owner("A")
	member := func(suffix string) redisson.Lock { return w.client.Lock(w.name + suffix) }
	a := w.client.RedLock(member("1"), member("2"), member("3")).On("A")
	require.NoError(w.t, member("2").On(w.owner("B")).Lock(w.ctx))
	w.step(is(true)(a.TryLockFor(w.ctx, 0, lease)), state{"N1": "A=1 ttl=1m0s", "N2": "B=1 ttl=30s", "N3": "A=1 ttl=1m0s"})
	w.step(a.Unlock(w.ctx), state{"N2": "B=1 ttl=30s"},
		"redisson_lock__channel:{N1} 0", "redisson_lock__channel:{N3} 0")
}

const semaphoreChannel = "redisson_sc:{N}"

func wireSemaphore(w *wire) {
	s := w.client.Semaphore(w.name)
	w.step(is(false)(s.TryAcquire(w.ctx, 1)), state{})
	w.step(is(true)(s.TrySetPermits(w.ctx, 3)), state{"N": "3"}, semaphoreChannel+" 3")
	w.step(is(false)(s.TrySetPermits(w.ctx, 5)), state{"N": "3"})
	w.step(s.Acquire(w.ctx, 2), state{"N": "1"})
	w.step(is(false)(s.TryAcquire(w.ctx, 2)), state{"N": "1"})
	w.step(is(false)(s.TryAcquireFor(w.ctx, 2, shortWait)), state{"N": "1"})
	w.step(s.Release(w.ctx, 1), state{"N": "2"}, semaphoreChannel+" 2")
	w.step(s.AddPermits(w.ctx, 5), state{"N": "7"}, semaphoreChannel+" 7")
	w.step(s.AddPermits(w.ctx, -9), state{"N": "-2"}, semaphoreChannel+" -2")
	w.step(s.AddPermits(w.ctx, 4), state{"N": "2"}, semaphoreChannel+" 2")
	w.step(is(int64(2))(s.DrainPermits(w.ctx)), state{"N": "0"})
	w.step(is(int64(0))(s.Available(w.ctx)), state{"N": "0"})
	waiting := s.On("waiter").Go("acquire", 2)
	w.awaitSubscriber("redisson_sc:{" + w.name + "}")
	require.NoError(w.t, s.Release(w.ctx, 2))
	w.step(w.await(waiting), state{"N": "0"}, semaphoreChannel+" 2")
	_, err := s.Call(w.ctx, "delete")
	w.step(err, state{})
	w.step(s.Release(w.ctx, 1), state{"N": "1"}, semaphoreChannel+" 1") // Release creates the key
}

func wirePermits(w *wire) {
	p := w.client.Permits(w.name)
	acquire := func(label string, lease time.Duration) string {
		id, err := p.Acquire(w.ctx, lease)
		require.NoError(w.t, err)
		require.Regexp(w.t, "^[0-9a-f]{32}$", id)
		w.labels[id] = label
		return id
	}
	w.step(is(true)(p.TrySetPermits(w.ctx, 2)), state{"N": "2"}, semaphoreChannel+" 2")
	first := acquire("P1", lease)
	w.step(nil, state{"N": "1", "{N}:timeout": "P1=now+1m0s"})
	second := acquire("P2", -1)
	w.step(nil, state{"N": "0", "{N}:timeout": "P1=now+1m0s P2=never"})
	w.step(is("")(p.TryAcquire(w.ctx, shortWait, lease)), state{"N": "0", "{N}:timeout": "P1=now+1m0s P2=never"})
	w.step(is(int64(2))(p.Acquired(w.ctx)), state{"N": "0", "{N}:timeout": "P1=now+1m0s P2=never"})
	w.step(is(int64(-1))(p.Lease(w.ctx, second)), state{"N": "0", "{N}:timeout": "P1=now+1m0s P2=never"})
	w.step(is(true)(p.UpdateLease(w.ctx, second, 2*lease)), state{"N": "0", "{N}:timeout": "P1=now+1m0s P2=now+2m0s"})
	w.step(p.Release(w.ctx, first), state{"N": "1", "{N}:timeout": "P2=now+2m0s"}, semaphoreChannel+" 1")
	w.step(throws("IllegalArgumentException")(p.Release(w.ctx, first)), state{"N": "1", "{N}:timeout": "P2=now+2m0s"})
	w.step(is(false)(p.TryRelease(w.ctx, first)), state{"N": "1", "{N}:timeout": "P2=now+2m0s"})
	w.step(p.ReleaseAll(w.ctx, second), state{"N": "2"}, semaphoreChannel+" 1")
	w.step(p.SetPermits(w.ctx, 5), state{"N": "5"}, semaphoreChannel+" 5")
	w.step(p.AddPermits(w.ctx, -1), state{"N": "4"})
	w.step(p.AddPermits(w.ctx, 3), state{"N": "7"}, semaphoreChannel+" 3")
	w.step(is(int64(7))(p.Total(w.ctx)), state{"N": "7"})

	short := acquire("P3", time.Millisecond)
	w.eventually("the permit to expire", func() bool { n, err := p.Available(w.ctx); return err == nil && n == 7 })
	w.step(is(false)(p.TryRelease(w.ctx, short)), state{"N": "7"}, semaphoreChannel+" 7")
}

const latchChannel = "redisson_countdownlatch__channel__{N}"

func wireLatch(w *wire) {
	l := w.client.Latch(w.name)
	w.step(l.Await(w.ctx), state{})
	w.step(l.CountDown(w.ctx), state{})
	w.step(is(true)(l.TrySetCount(w.ctx, 2)), state{"N": "2"}, latchChannel+" 1")
	w.step(is(false)(l.TrySetCount(w.ctx, 5)), state{"N": "2"})
	w.step(is(false)(l.AwaitFor(w.ctx, shortWait)), state{"N": "2"})
	w.step(l.CountDown(w.ctx), state{"N": "1"})
	w.step(is(int64(1))(l.Count(w.ctx)), state{"N": "1"})
	waiting := l.On("waiter").Go("await")
	w.awaitSubscriber("redisson_countdownlatch__channel__{" + w.name + "}")
	require.NoError(w.t, l.CountDown(w.ctx))
	w.step(w.await(waiting), state{}, latchChannel+" 0")
	w.step(is(true)(l.TrySetCount(w.ctx, 1)), state{"N": "1"}, latchChannel+" 1")
	w.step(is(true)(l.Delete(w.ctx)), state{}, latchChannel+" 1")
	w.step(is(false)(l.Delete(w.ctx)), state{})
}

// wireUnlockLatch checks the key that makes an unlock idempotent. The script sets it, and Redisson
// deletes it after the reply. Redisson 3 deletes another key by mistake, so the key stays until it
// expires.
func wireUnlockLatch(w *wire) {
	a := w.client.Lock(w.name).On("A")
	require.NoError(w.t, a.Lock(w.ctx))
	require.NoError(w.t, a.Lock(w.ctx))
	for _, want := range []string{"0", "1"} {
		w.commands() // skip earlier commands
		require.NoError(w.t, a.Unlock(w.ctx))
		var set, deleted string
		w.eventually("the DEL that follows an unlock", func() bool {
			for _, args := range w.commands() {
				switch {
				case args[0] == "set":
					require.Regexp(w.t,
						"^redisson_unlock_latch:{"+w.name+"}:[0-9a-f]{32} "+want+" px (1[6-9]|20)[0-9]{3}$",
						strings.Join(args[1:], " "))
					set = args[1]
				case args[0] == "DEL":
					deleted = args[1]
				}
			}
			return deleted != ""
		})
		if w.major == "3" {
			require.Equal(w.t, "redisson_unlock_latch:{"+w.name+"}:"+w.client.ID(), deleted)
			require.Equal(w.t, int64(1), w.rdb.Exists(w.ctx, set).Val())
		} else {
			require.Equal(w.t, set, deleted)
		}
	}
}
