package wire

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// Java waiters with short waits that give up leave none of the time that the scripts of this
// library have given them, so a dead Java waiter behind them delays the others by its own timeout.
func TestFairLockJavaWaitersThatGiveUpLeaveNoDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMixed(t, redistest.Embedded(t), "l")
		m.j.wait = 3 * time.Second
		release := m.hold(false)
		m.joinGo(m.l, 0, 0)
		for i := range 10 {
			m.join(func() {
				if m.j.tryLock(100+i, 4*time.Second, true) {
					m.t.Error("a waiter acquired the lock that was held for longer than it waits")
				}
			})
		}
		ctx, die := context.WithCancel(t.Context())
		m.join(func() { m.j.lock(ctx, 50) })
		m.joinGo(m.l, 1, 0)
		time.Sleep(10 * time.Second)
		require.Len(t, m.queue(), 3)
		die()
		began := time.Now()
		release()
		m.wg.Wait()
		require.Less(t, time.Since(began), 6*time.Second)
		m.finish(m.j.id(50))
	})
}

// A Java waiter does not keep the five minutes that the score of the Go waiter before it allowed
// for another Java waiter, whether that Go waiter acquires or leaves. Therefore it delays the
// others by its own timeout if it dies.
func TestFairLockJavaWaiterBehindGoKeepsItsOwnTimeout(t *testing.T) {
	t.Parallel()
	for what, limit := range map[string]time.Duration{
		"acquires": 10 * time.Second,
		// Redisson adds the rest of the lock's TTL to the score of its first waiter, and so to
		// those behind it.
		"leaves": 40 * time.Second,
	} {
		redistest.RunBubble(t, what, func(t *testing.T) {
			m := newMixed(t, redistest.Embedded(t), "l")
			m.j.wait = 8 * time.Second
			release := m.hold(false)
			m.joinJava(0, 0)
			leave := func() {}
			if what == "leaves" {
				leave = m.joinLeaving()
			} else {
				m.joinGo(m.l, 1, 0)
			}
			ctx, die := context.WithCancel(t.Context())
			m.join(func() { m.j.lock(ctx, 50) })
			m.joinGo(m.l, 2, 0)
			time.Sleep(3 * time.Second)
			leave()
			die()
			began := time.Now()
			release()
			m.wg.Wait()
			require.Less(t, time.Since(began), limit)
			require.Greater(t, time.Since(began), 6*time.Second)
			m.finish(m.j.id(50))
		})
	}
}

// A dead Java waiter whose score is hours ahead, because the server's clock was set back, delays
// the others by five minutes at most.
func TestFairLockDeadJavaWaiterWithAScoreFarAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMixed(t, redistest.Embedded(t), "l")
		release := m.hold(false)
		ctx, die := context.WithCancel(t.Context())
		m.join(func() { m.j.lock(ctx, 50) })
		m.joinGo(m.l, 1, 0)
		far := redis.Z{Score: float64(time.Now().Add(9 * time.Hour).UnixMilli()), Member: m.j.id(50)}
		require.NoError(t, m.s.Client(t).ZAdd(t.Context(), "redisson_lock_timeout:{l}", far).Err())
		time.Sleep(3 * time.Second)
		die()
		began := time.Now()
		release()
		m.wg.Wait()
		require.Less(t, time.Since(began), 5*time.Minute+5*time.Second)
		m.finish(m.j.id(50))
	})
}

// A dead Go waiter behind a Java waiter with a short wait does not block the queue for the five
// minutes that its score allows for the Java waiter, if a Go client sees the queue after its
// timeout. Only waiters in Java are left.
func TestFairLockDeadGoWaiterBehindAShortJavaWait(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{2 * time.Millisecond, 500 * time.Millisecond, 20 * time.Second} {
		redistest.RunBubble(t, wait.String(), func(t *testing.T) {
			m := newMixed(t, redistest.Embedded(t), "l")
			m.j.wait = wait
			release := m.hold(false)
			m.joinJava(0, 0)
			crash := m.joinCrashing(1)
			m.joinJava(1, 0)
			dead := m.queue()[1]
			crash()
			time.Sleep(12 * time.Second)
			began := time.Now()
			release()
			m.wg.Wait()
			// Nothing wakes the waiter: it tries at the end of the TTL that it was told.
			require.Less(t, time.Since(began), 31*time.Second)
			time.Sleep(2 * time.Minute)
			m.finish(dead)
		})
	}
}

// A Java waiter with a short wait stands behind a dead Go waiter. When that is removed, it has the
// time that a new head has, although nothing else changes: the lock is free, and whoever looks does
// not wait.
func TestFairLockJavaWaiterBehindADeadHeadHasTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMixed(t, redistest.Embedded(t), "l")
		rdb := m.s.Client(t)
		require.NoError(t, rdb.HSet(t.Context(), "l", "other", "1").Err())
		crash := m.joinCrashing(1)
		crash()
		m.wg.Wait()
		time.Sleep(12 * time.Second)
		require.NoError(t, rdb.RPush(t.Context(), "redisson_lock_queue:{l}", "java").Err())
		score := float64(time.Now().Add(time.Second).UnixMilli())
		require.NoError(t, rdb.ZAdd(t.Context(), "redisson_lock_timeout:{l}", redis.Z{Score: score, Member: "java"}).Err())
		require.NoError(t, rdb.Del(t.Context(), "l").Err())
		require.ErrorIs(t, fixture.ErrOf(m.l.TryAcquire(t.Context())), primitives.ErrNotAcquired)
		require.Equal(t, []string{"java"}, m.queue())
		got := rdb.ZScore(t.Context(), "redisson_lock_timeout:{l}", "java").Val()
		require.Equal(t, time.Now().Add(5*time.Second).UnixMilli(), int64(got))
	})
}

// A refresh puts the scores of a mixed queue in order, whatever they were. The timeout of a Go
// waiter comes after those of the Java waiters before it, however long they wait.
func TestFairLockRefreshOrdersScores(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before, behind []time.Duration // the scores of Java waiters before the Go waiter, and behind it, from now on
		least          time.Duration   // how much later the score of the last one is than the one before
	}{
		"a Java waiter with a lower score than the Go waiter before": {nil, []time.Duration{time.Millisecond}, 0},
		"a Java waiter that waits for longer than usual": {
			[]time.Duration{5 * time.Minute, 15 * time.Minute}, nil, 10 * time.Second,
		},
	} {
		redistest.RunBubble(t, name, func(t *testing.T) {
			m := newMixed(t, redistest.Embedded(t), "l")
			rdb := m.s.Client(t)
			const list, set = "redisson_lock_queue:{l}", "redisson_lock_timeout:{l}"
			add := func(scores []time.Duration) {
				for _, after := range scores {
					z := redis.Z{Score: float64(time.Now().Add(after).UnixMilli()), Member: after.String()}
					require.NoError(t, rdb.RPush(t.Context(), list, z.Member).Err())
					require.NoError(t, rdb.ZAdd(t.Context(), set, z).Err())
				}
			}
			release := m.hold(false)
			add(tt.before)
			m.joinGo(m.l, 0, 0)
			add(tt.behind)
			time.Sleep(2 * time.Second)
			queue := m.queue()
			last := rdb.ZScore(t.Context(), set, queue[len(queue)-1]).Val()
			before := rdb.ZScore(t.Context(), set, queue[len(queue)-2]).Val()
			require.GreaterOrEqual(t, last-before, float64(tt.least.Milliseconds()))
			for _, after := range append(tt.before, tt.behind...) {
				require.NoError(t, rdb.LRem(t.Context(), list, 0, after.String()).Err())
				require.NoError(t, rdb.ZRem(t.Context(), set, after.String()).Err())
			}
			release()
			m.finish()
		})
	}
}

// A Go waiter whose client was silent for longer than its timeout keeps its place if it is heard
// again before its turn.
func TestFairLockGoWaiterIsSilentBeforeItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMixed(t, redistest.Embedded(t), "l")
		p := m.s.Proxy(t)
		silent := fixture.NewClient(t, p.Client(t)).FairLock("l")
		release := m.hold(false)
		m.joinJava(0, 0)
		m.joinGo(silent, 1, 0)
		m.joinJava(2, 0)
		m.joinGo(m.l, 3, 0)
		p.Cut()
		time.Sleep(15 * time.Second)
		p.Refuse(false)
		time.Sleep(5 * time.Second)
		release()
		m.finish()
		require.Len(t, m.order, 4)
	})
}

// When the last client of this library leaves the queue, each Java waiter gets time for those
// before it. Without a lease, Redisson counts only milliseconds for each.
func TestFairLockJavaWaitersKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMixed(t, redistest.Embedded(t), "l")
		m.j.wait = 2 * time.Millisecond
		release := m.hold(false)
		for i := range 4 {
			m.joinJava(i, 4*time.Second)
		}
		time.Sleep(20 * time.Second)
		release()
		m.finish()
		require.Len(t, m.order, 4)
	})
}
