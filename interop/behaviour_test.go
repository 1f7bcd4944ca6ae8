package interop_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/interop/redisson"
)

// soon is far above the duration of a wake-up, a few milliseconds. It is far below every TTL, for
// which a waiter without a message would sleep.
const soon = 5 * time.Second

// foreignOwner is the owner id of a program that is not Redisson.
const foreignOwner = "0a1b2c3d-0000-4000-8000-0123456789ab:7"

// TestMessageWakesJava frees an object by plain Redis commands and publishes the message. The
// message must wake up the Java waiter.
func TestMessageWakesJava(t *testing.T) {
	held := []string{"HSET $N $O 1", "PEXPIRE $N 60000"}
	written := []string{"HSET $N mode write $O:write 1", "PEXPIRE $N 60000"}
	read := []string{"HSET $N mode read $O 1", "SET {$N}:$O:rwlock_timeout:1 1 PX 60000", "PEXPIRE $N 60000"}
	tests := []struct {
		name    string
		take    []string // commands: $N is the name, $O a foreignOwner owner, $B the waiter's owner id
		kind    string
		wait    string // the Java method that waits
		args    []any
		try     string // the Redis command that each attempt runs once
		free    string // the command that frees the object
		channel string
		payload string
	}{
		{"lock", held, "lock", "lock", nil, "pttl", "DEL $N", lockChannel, "0"},
		{"lock, message for all waiters", held, "lock", "lock", nil, "pttl", "DEL $N", lockChannel, "1"},
		{"timed lock", held, "lock", "tryLock", []any{30000, 60000, "MILLISECONDS"}, "pttl", "DEL $N", lockChannel, "0"},
		{"fenced", held, "fenced", "lockAndGetToken", nil, "pttl", "DEL $N", lockChannel, "0"},
		{"fair", held, "fair", "lock", nil, "pttl", "DEL $N", lockChannel + ":$B", "0"},
		{"reader", written, "read", "lock", nil, "pttl", "DEL $N", rwChannel, "1"},
		{"writer", read, "write", "lock", nil, "pttl", "DEL $N {$N}:$O:rwlock_timeout:1", rwChannel, "0"},
		{"semaphore", []string{"SET $N 0"}, "semaphore", "acquire", []any{2}, "get", "INCRBY $N 2", semaphoreChannel, "2"},
		{"permits", []string{"SET $N 0"}, "permits", "acquire", nil, "get", "INCRBY $N 1", semaphoreChannel, "1"},
		{"latch", []string{"SET $N 1"}, "latch", "await", nil, "GET", "DEL $N", latchChannel, "0"},
	}
	eachRedisson(t, func(t *testing.T, driver *redisson.Driver) {
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				w := newWire(t, driver)
				fill := strings.NewReplacer("{N}", "{"+w.name+"}", "$N", w.name, "$O", foreignOwner, "$B", w.id("B"))
				channel := fill.Replace(tt.channel)
				w.run(fill, tt.take...)
				waiting := w.client.Object(tt.kind, w.name).On("B").Go(tt.wait, tt.args...)
				w.awaitSubscriber(channel)
				w.awaitAttempts(tt.try, 2) // the second one follows the subscription; from now on only a message wakes Java
				if tt.try == "pttl" && tt.payload == "1" {
					w.awaitTimedWait("B") // the payload "1" wakes up only threads that already wait
				}

				w.run(fill, tt.free)
				freed := time.Now()
				require.Equal(t, int64(1), must(w.rdb.Publish(w.ctx, channel, tt.payload).Result())(t))
				answer, err := waiting.Wait(w.ctx)
				require.NoError(t, err)
				require.Less(t, answer.End.Sub(freed), soon)
				t.Logf("woken up after %v", answer.End.Sub(freed))
			})
		}
	})
}

// run runs Redis commands after replacing their placeholders.
func (w *wire) run(fill *strings.Replacer, commands ...string) {
	w.t.Helper()
	for _, command := range commands {
		args := []any{}
		for word := range strings.FieldsSeq(command) {
			args = append(args, fill.Replace(word))
		}
		require.NoError(w.t, w.rdb.Do(w.ctx, args...).Err(), command)
	}
}

// A waiter that is woken up while the lock is held tries once and continues to wait.
func TestWakeUpWhileHeldCausesOneTry(t *testing.T) {
	eachRedisson(t, func(t *testing.T, driver *redisson.Driver) {
		w := newWire(t, driver)
		lock := w.client.Lock(w.name)
		require.NoError(t, lock.On("A").Lock(w.ctx))
		waiting := lock.On("B").Go("lock")
		channel := "redisson_lock__channel:{" + w.name + "}"
		w.awaitSubscriber(channel)
		w.awaitLockAttempts(2) // the second one follows the subscription
		for _, tt := range []struct {
			payload string
			tries   int
		}{{"0", 1}, {"1", 1}, {"7", 0}, {"0", 1}} { // the last one shows that "7" caused no attempt
			w.awaitTimedWait("B") // "1" wakes up only threads that already wait
			require.Equal(t, int64(1), w.rdb.Publish(w.ctx, channel, tt.payload).Val())
			w.awaitLockAttempts(tt.tries)
		}
		require.NoError(t, lock.On("A").Unlock(w.ctx))
		require.NoError(t, w.await(waiting))
	})
}

// awaitLockAttempts waits for n failed attempts at a lock, and checks that there are no more.
func (w *wire) awaitLockAttempts(n int) {
	w.t.Helper()
	w.awaitAttempts("pttl", n)
}

// awaitAttempts waits for n attempts since the last call, and checks that there are no more. Each
// attempt calls the given command once.
func (w *wire) awaitAttempts(command string, n int) {
	w.t.Helper()
	seen := 0
	w.eventually("an attempt", func() bool {
		for _, args := range w.commands() {
			if args[0] == command {
				seen++
			}
		}
		return seen >= n
	})
	require.Equal(w.t, n, seen)
}

// awaitTimedWait waits until a thread waits for a message, which is a timed wait. While a thread
// reads a reply of Redis its wait has no time limit, and an interrupt would cause a RedisException.
func (w *wire) awaitTimedWait(thread string) {
	w.t.Helper()
	w.eventually(thread+" to wait for a message", func() bool {
		got, err := w.client.Thread(w.ctx, thread)
		return err == nil && !got.Interrupted && got.State == "TIMED_WAITING"
	})
}

// TestInterruptOfAJavaWaiter checks what an interrupted Java waiter leaves in Redis.
func TestInterruptOfAJavaWaiter(t *testing.T) {
	eachRedisson(t, func(t *testing.T, driver *redisson.Driver) {
		t.Run("lockInterruptibly", func(t *testing.T) {
			w := newWire(t, driver)
			lock := w.client.Lock(w.name)
			w.owner("A")
			require.NoError(t, lock.On("A").Lock(w.ctx))
			waiting := lock.On("B").Go("lockInterruptibly")
			w.awaitSubscriber("redisson_lock__channel:{" + w.name + "}")
			w.awaitLockAttempts(2)
			w.awaitTimedWait("B")
			require.NoError(t, w.client.Interrupt(w.ctx, "B"))
			w.step(throws("InterruptedException")(w.await(waiting)), state{"N": "A=1 ttl=30s"})
		})
		t.Run("lock waits on", func(t *testing.T) {
			w := newWire(t, driver)
			lock := w.client.Lock(w.name)
			require.NoError(t, lock.On("A").Lock(w.ctx))
			waiting := lock.On("B").Go("lock")
			w.awaitSubscriber("redisson_lock__channel:{" + w.name + "}")
			w.awaitLockAttempts(2)
			w.awaitTimedWait("B")
			require.NoError(t, w.client.Interrupt(w.ctx, "B"))
			w.awaitTimedWait("B") // again
			w.awaitLockAttempts(0)
			require.NoError(t, lock.On("A").Unlock(w.ctx))
			require.NoError(t, w.await(waiting))
			require.NoError(t, is(true)(lock.On("B").IsHeld(w.ctx)))
		})
		t.Run("fair waiter stays queued", func(t *testing.T) {
			w := newWire(t, driver)
			lock := w.client.FairLock(w.name)
			w.owner("A")
			require.NoError(t, lock.On("A").Lock(w.ctx))
			waiting := lock.On(w.owner("B")).Go("lockInterruptibly")
			w.awaitSubscriber("redisson_lock__channel:{" + w.name + "}:" + w.id("B"))
			w.awaitLockAttempts(2)
			w.awaitTimedWait("B")
			require.NoError(t, w.client.Interrupt(w.ctx, "B"))
			w.step(throws("InterruptedException")(w.await(waiting)), state{
				"N":                         "A=1 ttl=30s",
				"redisson_lock_queue:{N}":   "B",
				"redisson_lock_timeout:{N}": "B=now+5m30s",
			})
		})
	})
}

// Java renews its lock until it is killed. The lock then expires.
func TestLockOfKilledJavaExpires(t *testing.T) {
	t.Parallel()
	const watchdog = javaTTL
	server := redistest.Redis(t)
	rdb, name := server.Client(t), redistest.Name(t)
	driver := redisson.Start(t, redisson.Options{})
	java := driver.Client(t, redisson.Config{Addr: server.Addr(), Watchdog: watchdog})
	require.NoError(t, java.Lock(name).Lock(t.Context()))
	waiting := java.Lock(name).On("B").Go("lock")
	staysHeld(t, rdb, name, 2*watchdog)

	killed := time.Now()
	require.NoError(t, driver.Kill())
	_, err := waiting.Wait(t.Context())
	require.ErrorIs(t, err, redisson.ErrEnded)
	awaitGone(t, rdb, name)
	require.Less(t, time.Since(killed), watchdog+soon)
}

// A Java process that is paused for longer than its TTL, as by a garbage collection, loses its
// lock.
func TestPausedJavaLosesItsLock(t *testing.T) {
	t.Parallel()
	const watchdog = javaTTL
	server := redistest.Redis(t)
	rdb, name := server.Client(t), redistest.Name(t)
	driver := redisson.Start(t, redisson.Options{})
	java := driver.Client(t, redisson.Config{Addr: server.Addr(), Watchdog: watchdog})
	lock := java.Lock(name)
	require.NoError(t, lock.Lock(t.Context()))
	staysHeld(t, rdb, name, 2*watchdog)
	require.NoError(t, driver.Pause())
	awaitGone(t, rdb, name)
	require.NoError(t, driver.Resume())
	require.NoError(t, throws("IllegalMonitorStateException")(lock.Unlock(t.Context())))
}

// staysHeld checks that the key exists for d. Because d exceeds its TTL, the key was renewed.
func staysHeld(t *testing.T, rdb *redis.Client, key string, d time.Duration) {
	t.Helper()
	require.Never(t, func() bool { return rdb.Exists(t.Context(), key).Val() == 0 }, d, 20*time.Millisecond)
}

// awaitGone waits until the key does not exist.
func awaitGone(t *testing.T, rdb *redis.Client, key string) {
	t.Helper()
	require.Eventually(t, func() bool { return rdb.Exists(t.Context(), key).Val() == 0 }, limit, 5*time.Millisecond)
}

// TestReadersOfTwoNamesAreRenewed shows which keys a client renews if it reads under two names.
// Redisson 3.52.0 renews both hashes, but the holds of only one of them. The other lock becomes
// free as soon as one reader leaves, even if a Java thread still holds it.
func TestReadersOfTwoNamesAreRenewed(t *testing.T) {
	t.Parallel()
	const watchdog = javaTTL
	server := redistest.Redis(t)
	eachRedisson(t, func(t *testing.T, driver *redisson.Driver) {
		java, rdb := driver.Client(t, redisson.Config{Addr: server.Addr(), Watchdog: watchdog}), server.Client(t)
		hashes, holds := []string{redistest.Name(t), redistest.Name(t)}, []string{}
		for _, name := range hashes {
			require.NoError(t, java.ReadLock(name).On("A").Lock(t.Context()))
			holds = append(holds, fmt.Sprintf("{%s}:%s:rwlock_timeout:1", name, must(java.Owner(t.Context(), "A"))(t)))
		}
		kept := int64(2)
		if driver.Redisson() < "4" {
			kept = 1
		}
		exist := func() int64 { return rdb.Exists(t.Context(), holds...).Val() }
		redistest.WaitFor(t, limit, func() bool { return exist() == kept }, "only the renewed holds exist")
		require.Never(t, func() bool { return exist() != kept }, 2*watchdog, 50*time.Millisecond)
		require.Equal(t, int64(2), rdb.Exists(t.Context(), hashes...).Val())
	})
}

// TestJavaClientsExcludeEachOther increments one key from two Java clients. Only the primitive
// prevents lost updates. The watchdog TTL is short, because a Java thread sometimes misses the
// message of a write lock's release and then sleeps for the TTL.
func TestJavaClientsExcludeEachOther(t *testing.T) {
	const iterations, threads = 10, 2
	server := redistest.Redis(t)
	config := redisson.Config{Addr: server.Addr(), Watchdog: 4 * time.Second}
	eachRedisson(t, func(t *testing.T, driver *redisson.Driver) {
		for _, kind := range []string{"lock", "spin", "fair", "fenced", "write", "semaphore", "permits"} {
			t.Run(kind, func(t *testing.T) {
				w := wireOf(t, redistest.Name(t), server, driver, config)
				other := driver.Client(t, config)
				if kind == "semaphore" || kind == "permits" {
					require.NoError(t, w.rdb.Set(w.ctx, w.name, 1, 0).Err())
				}
				work := redisson.Workload{Iterations: iterations, Threads: threads, Key: w.name + ":count"}
				done := make(chan error, 1)
				go func() {
					_, err := other.Object(kind, w.name).Counter(w.ctx, work)
					done <- err
				}()
				run, err := w.client.Object(kind, w.name).Counter(w.ctx, work)
				require.NoError(t, err)
				require.NoError(t, <-done)
				require.Equal(t, iterations*threads, run.Count)
				require.Len(t, run.Owners, iterations*threads)
				require.Equal(t, 2*iterations*threads, must(w.rdb.Get(w.ctx, work.Key).Int())(t))
			})
		}
	})
}

// must turns the results of a call into a function that fails t on an error and returns the value.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// In a cluster Redisson uses sharded pub/sub by default. The key and the channel share a slot.
func TestClusterUsesShardedMessages(t *testing.T) {
	eachRedisson(t, func(t *testing.T, driver *redisson.Driver) {
		cluster := redistest.Cluster(t)
		addrs := []string{}
		for _, node := range cluster.Nodes() {
			addrs = append(addrs, node.Addr())
		}
		rdb := cluster.ClusterClient(t)
		name := redistest.Name(t)
		channel := "redisson_lock__channel:{" + name + "}"
		w := wireOf(t, name, cluster.Node(t, name), driver, redisson.Config{Cluster: addrs})
		messages := rdb.SSubscribe(w.ctx, channel)
		defer func() { _ = messages.Close() }()
		_, err := messages.Receive(w.ctx) // subscribed
		require.NoError(t, err)
		lock := w.client.Lock(name)
		require.NoError(t, lock.Lock(w.ctx))
		require.NoError(t, lock.Unlock(w.ctx))
		message, err := messages.ReceiveMessage(w.ctx)
		require.NoError(t, err)
		require.Equal(t, "0", message.Payload)

		require.NoError(t, rdb.HSet(w.ctx, name, foreignOwner, 1).Err())
		require.NoError(t, rdb.PExpire(w.ctx, name, lease).Err())
		waiting := lock.On("B").Go("lock")
		w.eventually("Java's sharded subscription", func() bool {
			counts, err := w.rdb.PubSubShardNumSub(w.ctx, channel).Result()
			return err == nil && counts[channel] == 2
		})
		w.awaitLockAttempts(2)
		require.NoError(t, rdb.Del(w.ctx, name).Err())
		freed := time.Now()
		require.Equal(t, int64(2), must(rdb.SPublish(w.ctx, channel, "0").Result())(t))
		answer, err := waiting.Wait(w.ctx)
		require.NoError(t, err)
		require.Less(t, answer.End.Sub(freed), soon)
	})
}
