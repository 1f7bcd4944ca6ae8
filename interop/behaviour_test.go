package interop_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/interop/redisson"
)

// soon is far above a wake-up's few milliseconds and far below every TTL that a waiter could have slept out instead.
const soon = 5 * time.Second

// foreign is the owner id of a program that is not Redisson.
const foreign = "0a1b2c3d-0000-4000-8000-0123456789ab:7"

// TestWake frees what Java waits for by plain commands, and sees the message wake it.
func TestWake(t *testing.T) {
	held := []string{"HSET $N $O 1", "PEXPIRE $N 60000"}
	written := []string{"HSET $N mode write $O:write 1", "PEXPIRE $N 60000"}
	read := []string{"HSET $N mode read $O 1", "SET {$N}:$O:rwlock_timeout:1 1 PX 60000", "PEXPIRE $N 60000"}
	tests := []struct {
		name    string
		take    []string // commands: $N is the name, $O a foreign owner, $B the waiter's owner id
		kind    string
		wait    string // the method that waits
		args    []any
		try     string // a command that each attempt runs once
		free    string // a command
		channel string
		payload string
	}{
		{"lock", held, "lock", "lock", nil, "pttl", "DEL $N", lockChannel, "0"},
		{"lock, message to all", held, "lock", "lock", nil, "pttl", "DEL $N", lockChannel, "1"},
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
				fill := strings.NewReplacer("{N}", "{"+w.name+"}", "$N", w.name, "$O", foreign, "$B", w.id("B"))
				channel := fill.Replace(tt.channel)
				w.run(fill, tt.take...)
				waiting := w.client.Object(tt.kind, w.name).On("B").Go(tt.wait, tt.args...)
				w.waits(channel)
				w.attempts(tt.try, 2) // the second after the subscription: from now on only a message helps
				if tt.try == "pttl" && tt.payload == "1" {
					w.parked("B") // a lock's "1" wakes only the threads that wait already
				}

				w.run(fill, tt.free)
				freed := time.Now()
				require.Equal(t, int64(1), must(w.rdb.Publish(w.ctx, channel, tt.payload).Result())(t))
				answer, err := waiting.Wait(w.ctx)
				require.NoError(t, err)
				require.Less(t, answer.End.Sub(freed), soon)
				t.Logf("woken in %v", answer.End.Sub(freed))
			})
		}
	})
}

// run runs plain commands, filled in by fill.
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

// TestFalseAlarm wakes a waiter while the lock is still held: it tries again, and waits on.
func TestFalseAlarm(t *testing.T) {
	eachRedisson(t, func(t *testing.T, driver *redisson.Driver) {
		w := newWire(t, driver)
		lock := w.client.Lock(w.name)
		require.NoError(t, lock.On("A").Lock(w.ctx))
		waiting := lock.On("B").Go("lock")
		channel := "redisson_lock__channel:{" + w.name + "}"
		w.waits(channel)
		w.tries(2) // the second comes after the subscription
		for _, tt := range []struct {
			payload string
			tries   int
		}{{"0", 1}, {"1", 1}, {"7", 0}, {"0", 1}} { // the last one shows that what went before caused no more
			w.parked("B") // a "1" wakes only the threads that wait already
			require.Equal(t, int64(1), w.rdb.Publish(w.ctx, channel, tt.payload).Val())
			w.tries(tt.tries)
		}
		require.NoError(t, lock.On("A").Unlock(w.ctx))
		require.NoError(t, w.ends(waiting))
	})
}

// tries waits for n attempts at a lock that failed, and sees no more than n.
func (w *wire) tries(n int) {
	w.t.Helper()
	w.attempts("pttl", n)
}

// attempts waits for n attempts since the last look, each told by its one call of a command, and sees no more than n.
func (w *wire) attempts(command string, n int) {
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

// parked waits until a thread that found the lock taken waits for a message, which it does for a limited time. While it still
// reads an answer of Redis it waits without limit, and an interrupt would be a RedisException.
func (w *wire) parked(thread string) {
	w.t.Helper()
	w.eventually(thread+" to wait for a message", func() bool {
		got, err := w.client.Thread(w.ctx, thread)
		return err == nil && !got.Interrupted && got.State == "TIMED_WAITING"
	})
}

// TestInterrupt shows what is left of a Java waiter that is interrupted.
func TestInterrupt(t *testing.T) {
	eachRedisson(t, func(t *testing.T, driver *redisson.Driver) {
		t.Run("lockInterruptibly", func(t *testing.T) {
			w := newWire(t, driver)
			lock := w.client.Lock(w.name)
			w.owner("A")
			require.NoError(t, lock.On("A").Lock(w.ctx))
			waiting := lock.On("B").Go("lockInterruptibly")
			w.waits("redisson_lock__channel:{" + w.name + "}")
			w.tries(2)
			w.parked("B")
			require.NoError(t, w.client.Interrupt(w.ctx, "B"))
			w.step(throws("InterruptedException")(w.ends(waiting)), state{"N": "A=1 ttl=30s"})
		})
		t.Run("lock waits on", func(t *testing.T) {
			w := newWire(t, driver)
			lock := w.client.Lock(w.name)
			require.NoError(t, lock.On("A").Lock(w.ctx))
			waiting := lock.On("B").Go("lock")
			w.waits("redisson_lock__channel:{" + w.name + "}")
			w.tries(2)
			w.parked("B")
			require.NoError(t, w.client.Interrupt(w.ctx, "B"))
			w.parked("B") // again
			w.tries(0)
			require.NoError(t, lock.On("A").Unlock(w.ctx))
			require.NoError(t, w.ends(waiting))
			require.NoError(t, is(true)(lock.On("B").IsHeld(w.ctx)))
		})
		t.Run("fair waiter stays queued", func(t *testing.T) {
			w := newWire(t, driver)
			lock := w.client.FairLock(w.name)
			w.owner("A")
			require.NoError(t, lock.On("A").Lock(w.ctx))
			waiting := lock.On(w.owner("B")).Go("lockInterruptibly")
			w.waits("redisson_lock__channel:{" + w.name + "}:" + w.id("B"))
			w.tries(2)
			w.parked("B")
			require.NoError(t, w.client.Interrupt(w.ctx, "B"))
			w.step(throws("InterruptedException")(w.ends(waiting)), state{
				"N":                         "A=1 ttl=30s",
				"redisson_lock_queue:{N}":   "B",
				"redisson_lock_timeout:{N}": "B=now+5m30s",
			})
		})
	})
}

// TestCrash kills Java while it holds: the lock is renewed until then, and ends by its TTL.
func TestCrash(t *testing.T) {
	t.Parallel()
	const watchdog = javaTTL
	server := redistest.Redis(t)
	rdb, name := server.Client(t), redistest.Name(t)
	driver := redisson.Start(t, redisson.Options{})
	java := driver.Client(t, redisson.Config{Addr: server.Addr(), Watchdog: watchdog})
	require.NoError(t, java.Lock(name).Lock(t.Context()))
	waiting := java.Lock(name).On("B").Go("lock")
	outlives(t, rdb, name, 2*watchdog)

	killed := time.Now()
	require.NoError(t, driver.Kill())
	_, err := waiting.Wait(t.Context())
	require.ErrorIs(t, err, redisson.ErrEnded)
	gone(t, rdb, name)
	require.Less(t, time.Since(killed), watchdog+soon)
}

// TestPause stops Java for longer than its TTL, as a long garbage collection would: it finds its lock lost.
func TestPause(t *testing.T) {
	t.Parallel()
	const watchdog = javaTTL
	server := redistest.Redis(t)
	rdb, name := server.Client(t), redistest.Name(t)
	driver := redisson.Start(t, redisson.Options{})
	java := driver.Client(t, redisson.Config{Addr: server.Addr(), Watchdog: watchdog})
	lock := java.Lock(name)
	require.NoError(t, lock.Lock(t.Context()))
	outlives(t, rdb, name, 2*watchdog)
	require.NoError(t, driver.Pause())
	gone(t, rdb, name)
	require.NoError(t, driver.Resume())
	require.NoError(t, throws("IllegalMonitorStateException")(lock.Unlock(t.Context())))
}

// outlives sees the key live for d, which must be longer than its TTL: so it was renewed.
func outlives(t *testing.T, rdb *redis.Client, key string, d time.Duration) {
	t.Helper()
	require.Never(t, func() bool { return rdb.Exists(t.Context(), key).Val() == 0 }, d, 20*time.Millisecond)
}

func gone(t *testing.T, rdb *redis.Client, key string) {
	t.Helper()
	require.Eventually(t, func() bool { return rdb.Exists(t.Context(), key).Val() == 0 }, limit, 5*time.Millisecond)
}

// TestReadersRenewed shows which holds a client keeps that reads under two names. Redisson 3.52.0 keeps both hashes, and the holds of one of
// them: as soon as any reader leaves the other, it is free, with a Java thread in its section.
func TestReadersRenewed(t *testing.T) {
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
		redistest.WaitFor(t, limit, func() bool { return rdb.Exists(t.Context(), holds...).Val() == kept }, "the holds that last")
		require.Never(t, func() bool { return rdb.Exists(t.Context(), holds...).Val() != kept }, 2*watchdog, 50*time.Millisecond)
		require.Equal(t, int64(2), rdb.Exists(t.Context(), hashes...).Val())
	})
}

// TestCounter has two Java clients count in one key at once, with nothing but the primitive between them. Its watchdog is short: now
// and then a Java thread misses the message of a write lock's unlock and sleeps on for the TTL that it was told.
func TestCounter(t *testing.T) {
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

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// TestCluster sees Redisson choose sharded messages by itself in a cluster, and its keys and channel share a slot.
func TestCluster(t *testing.T) {
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

		require.NoError(t, rdb.HSet(w.ctx, name, foreign, 1).Err())
		require.NoError(t, rdb.PExpire(w.ctx, name, lease).Err())
		waiting := lock.On("B").Go("lock")
		w.eventually("Java's sharded subscription", func() bool {
			counts, err := w.rdb.PubSubShardNumSub(w.ctx, channel).Result()
			return err == nil && counts[channel] == 2
		})
		w.tries(2)
		require.NoError(t, rdb.Del(w.ctx, name).Err())
		freed := time.Now()
		require.Equal(t, int64(2), must(rdb.SPublish(w.ctx, channel, "0").Result())(t))
		answer, err := waiting.Wait(w.ctx)
		require.NoError(t, err)
		require.Less(t, answer.End.Sub(freed), soon)
	})
}
