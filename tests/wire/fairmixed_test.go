package wire

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// A dead waiter delays the next one by its waiter timeout, and no longer.
func TestFairLockWaiterTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMixed(t, redistest.Embedded(t), "l")
		p := m.s.Proxy(t)
		release := m.hold(false)
		ctx, cancel := context.WithCancel(t.Context())
		c := fixture.NewClient(t, p.Client(t, fixture.ShortTimeouts, fixture.NoRetries))
		dying := c.FairLock("l", primitives.WithWaiterTimeout(4*time.Second))
		m.join(func() { _, _ = dying.Acquire(ctx) })
		m.joinGo(m.l, 0, 0)
		time.Sleep(10500 * time.Millisecond)
		p.Cut()
		cancel()
		began := time.Now()
		release()
		m.finish()
		require.Less(t, time.Since(began), 4*time.Second+20*time.Millisecond)
		require.Greater(t, time.Since(began), 2*time.Second)
	})
}

// mixed is a fair lock that Go clients and a Java client share.
type mixed struct {
	t    testing.TB
	s    *redistest.Server
	j    *java
	c    *primitives.Client
	l    *primitives.Lock
	name string

	wg    sync.WaitGroup
	mu    sync.Mutex
	order []int // the numbers of the waiters, in the order of their acquisitions; guarded by mu
}

func newMixed(t testing.TB, s *redistest.Server, name string) *mixed {
	m := &mixed{t: t, s: s, name: name, j: newJava(t, s, name), c: fixture.NewClient(t, s.Client(t))}
	m.l = m.c.FairLock(name)
	return m
}

// queue returns the ids of the waiters, in order.
func (m *mixed) queue() []string {
	return m.s.Client(m.t).LRange(context.Background(), "redisson_lock_queue:{"+m.name+"}", 0, -1).Val()
}

// join starts a waiter and waits until it is in the queue.
func (m *mixed) join(f func()) {
	m.t.Helper()
	before := len(m.queue())
	m.wg.Go(f)
	redistest.WaitFor(m.t, fixture.Soon, func() bool { return len(m.queue()) == before+1 }, "the waiter is in the queue")
}

// section is the critical section of waiter i, which lasts for d.
func (m *mixed) section(i int, d time.Duration) {
	m.mu.Lock()
	m.order = append(m.order, i)
	m.mu.Unlock()
	time.Sleep(d)
}

// joinGo starts waiter i in Go.
func (m *mixed) joinGo(l *primitives.Lock, i int, d time.Duration) {
	m.t.Helper()
	m.join(func() {
		if err := l.Do(context.Background(), func(context.Context) error { m.section(i, d); return nil }); err != nil {
			m.t.Error(err)
		}
	})
}

// joinJava starts waiter i in Java.
func (m *mixed) joinJava(i int, d time.Duration) {
	m.t.Helper()
	m.join(func() {
		if m.j.lock(context.Background(), i) {
			m.section(i, d)
			m.j.unlock(i)
		}
	})
}

// joinLeaving starts a waiter in Go. The function it returns has the waiter leave the queue, and
// waits for that.
func (m *mixed) joinLeaving() (leave func()) {
	m.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	m.join(func() {
		if _, err := m.l.Acquire(ctx); err == nil {
			m.t.Error("a waiter acquired the lock before it left")
		}
	})
	return func() {
		before := len(m.queue())
		cancel()
		redistest.WaitFor(m.t, fixture.Soon, func() bool { return len(m.queue()) == before-1 },
			"the waiter has left the queue")
	}
}

// hold acquires the free lock. The function it returns releases it.
func (m *mixed) hold(byJava bool) (release func()) {
	if byJava {
		require.True(m.t, m.j.lock(context.Background(), 1000))
		return func() { m.j.unlock(1000) }
	}
	hold := fixture.Acquire(m.t, context.Background(), m.l)
	return func() { require.NoError(m.t, hold.Release(context.Background())) }
}

// finish waits for all waiters, and checks that they acquired in order and that nothing is left.
// dead are the ids that Java may drop from the queue.
func (m *mixed) finish(dead ...string) {
	m.t.Helper()
	m.wg.Wait()
	require.IsIncreasing(m.t, append([]int{-1}, m.order...))
	m.j.checkLog(m.t, dead...)
	fixture.RequireClean(m.t, m.s, m.name)
}

// Waiters in Go and in Java acquire in the order in which they queued. Neither drops the other's.
func TestFairLockOrderWithJava(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, pattern := range []string{"jg", "gj", "jjg", "ggj", "jgg", "jjjjjg", "gggggj"} {
			for _, first := range []string{"Go", "Java"} {
				for _, section := range []time.Duration{0, 5 * time.Millisecond} {
					if len(pattern) > 3 && section > 0 {
						continue
					}
					t.Run(fmt.Sprintf("%s, %s holds, sections of %v", pattern, first, section), func(t *testing.T) {
						m := newMixed(t, s, redistest.Name(t))
						release := m.hold(first == "Java")
						n := min(redistest.Scaled(s, 200), 20)
						for i := range n {
							if pattern[i%len(pattern)] == 'g' {
								m.joinGo(m.l, i, section)
							} else {
								m.joinJava(i, section)
							}
						}
						release()
						m.finish()
						require.Len(t, m.order, n)
					})
				}
			}
		}
	})
}

// The same with long sections, in fake time, and with a skewed Java clock: deadlines drift apart,
// TTLs expire, and the waits that Java computes end.
func TestFairLockOrderWithJavaInLongSections(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"jg", "gj", "gjj", "ggj"} {
		for _, skew := range []time.Duration{0, time.Second, -time.Second} {
			for _, section := range []time.Duration{700 * time.Millisecond, 12 * time.Second, 200 * time.Second} {
				if section > 10*time.Second && skew != 0 || section > time.Minute && pattern != "gj" {
					continue
				}
				if !redistest.Full() && skew != 0 && pattern != "gj" {
					continue
				}
				t.Run(fmt.Sprintf("%s, sections of %v, Java's clock %v ahead", pattern, section, skew), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { longSections(t, pattern, section, skew) })
				})
			}
		}
	}
}

// longSections has eight waiters join while a Java client holds the lock, and checks their order.
func longSections(t *testing.T, pattern string, section, skew time.Duration) {
	m := newMixed(t, redistest.Embedded(t), "l")
	m.j.skew, m.j.lease = skew, time.Hour
	other := fixture.NewClient(t, m.s.Client(t)).FairLock("l")
	release := m.hold(true)
	for i := range 8 {
		switch {
		case pattern[i%len(pattern)] == 'j':
			m.joinJava(i, section)
		case i%2 == 0:
			m.joinGo(m.l, i, section)
		default:
			m.joinGo(other, i, section)
		}
		time.Sleep(300 * time.Millisecond)
	}
	time.Sleep(section)
	release()
	m.finish()
	require.Len(t, m.order, 8)
}

// A refresh that comes late, when only waiters of Redisson are left in the queue, leaves no key.
func TestFairLockLateRefreshLeavesNothing(t *testing.T) {
	t.Parallel()
	refresh := scripts.Load("fairlock/refresh").SHA()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newMixed(t, s, redistest.Name(t))
		p := s.Proxy(t)
		p.Record()
		l := fixture.NewClient(t, p.Client(t)).FairLock(m.name)
		release := m.hold(true)
		ctx, leave := context.WithCancel(t.Context())
		m.join(func() { _, _ = l.Acquire(ctx) })
		sent := func() []redistest.Command {
			return fixture.Recorded(p, func(args []string) bool { return len(args) > 1 && args[1] == refresh })
		}
		redistest.WaitFor(t, fixture.Soon, func() bool { return len(sent()) > 0 }, "the waiter's client has sent a refresh")
		m.joinJava(0, 0)
		leave()
		redistest.WaitFor(t, fixture.Soon, func() bool { return len(m.queue()) == 1 }, "only the waiter of Redisson is left")
		require.NoError(t, fixture.Resend(s.Client(t), sent()[0]).Err())
		release()
		m.finish()
	})
}

// Java waiters that time out leave the queue, and the others acquire in order. This holds with a
// lease and without one, although Redisson then takes the wait's seconds for milliseconds.
func TestFairLockJavaWaitersTimeOut(t *testing.T) {
	t.Parallel()
	for _, leased := range []bool{true, false} {
		for _, wait := range []time.Duration{2 * time.Second, 10 * time.Second, 250 * time.Second} {
			redistest.RunBubble(t, fmt.Sprintf("lease %v, wait %v", leased, wait), func(t *testing.T) {
				m := newMixed(t, redistest.Embedded(t), "l")
				release := m.hold(false)
				timedOut := 0
				for i := range 12 {
					switch i % 4 {
					case 0:
						m.joinGo(m.l, i, 100*time.Millisecond)
					case 1, 3:
						m.join(func() {
							if m.j.tryLock(i, wait, leased) {
								m.section(i, 0)
								m.j.unlock(i)
							} else {
								m.mu.Lock()
								timedOut++
								m.mu.Unlock()
							}
						})
					case 2:
						m.joinJava(i, 100*time.Millisecond)
					}
				}
				time.Sleep(wait - 300*time.Millisecond)
				release()
				m.finish()
				require.Len(t, m.order, 12-timedOut)
				t.Logf("%d of 6 timed out", timedOut)
			})
		}
	}
}

// A dead waiter delays the others by its timeout at most, and then they skip it.
func TestFairLockSkipsDeadWaiters(t *testing.T) {
	t.Parallel()
	t.Run("Go waiters die", func(t *testing.T) {
		for rest, limit := range map[string]time.Duration{
			"g": 10 * time.Second, "gj": 10 * time.Second, "jg": 10 * time.Second,
			"j": 30 * time.Second, // nothing wakes it: it retries at the end of the TTL in its reply
		} {
			redistest.RunBubble(t, "then "+rest, func(t *testing.T) { skipDeadGoWaiters(t, rest, limit) })
		}
	})
	t.Run("a Java waiter dies", func(t *testing.T) { synctest.Test(t, skipDeadJavaWaiter) })
	t.Run("Java drops a dead Go waiter", func(t *testing.T) { synctest.Test(t, javaDropsDeadGoWaiter) })
	t.Run("a Go waiter dies before a Java waiter joins", func(t *testing.T) {
		for after := 9 * time.Second; after < 12*time.Second; after += 470 * time.Millisecond {
			synctest.Test(t, func(t *testing.T) { goWaiterDiesBeforeJavaJoins(t, after) })
		}
	})
}

// skipDeadGoWaiters has three waiters of a Go client die. The waiters in rest acquire within limit.
func skipDeadGoWaiters(t *testing.T, rest string, limit time.Duration) {
	m := newMixed(t, redistest.Embedded(t), "l")
	release := m.hold(false)
	crash := m.joinCrashing(3)
	for i, r := range rest {
		if r == 'g' {
			m.joinGo(m.l, i, 0)
		} else {
			m.joinJava(i, 0)
		}
	}
	dead := m.queue()[:3]
	crash()
	began := time.Now()
	release()
	m.wg.Wait()
	require.Less(t, time.Since(began), limit+50*time.Millisecond)
	// If Redisson dropped the dead, the library's own keys stay until they expire: Redisson does
	// not know them.
	time.Sleep(2 * time.Minute)
	m.finish(dead...)
}

// skipDeadJavaWaiter has a Java waiter die between Go waiters. The others acquire after its
// timeout, not earlier: for all they know, it is only slow.
func skipDeadJavaWaiter(t *testing.T) {
	m := newMixed(t, redistest.Embedded(t), "l")
	m.j.wait = 20 * time.Second
	release := m.hold(false)
	m.joinGo(m.l, 0, 0)
	ctx, die := context.WithCancel(t.Context())
	m.join(func() { m.j.lock(ctx, 1) })
	m.joinGo(m.l, 2, 0)
	m.joinJava(3, 0)
	die()
	time.Sleep(time.Minute)
	began := time.Now()
	release()
	m.wg.Wait()
	require.Less(t, time.Since(began), 21*time.Second)
	require.Greater(t, time.Since(began), 19*time.Second)
	m.finish(m.j.id(1))
}

// javaDropsDeadGoWaiter has Redisson drop a dead Go waiter while a Java waiter is queued. The
// library's own count of Go waiters, which still includes the dropped one, then equals the length
// of the queue. It must not conclude that all waiters are Go's.
func javaDropsDeadGoWaiter(t *testing.T) {
	m := newMixed(t, redistest.Embedded(t), "l")
	m.j.lease = time.Hour
	release := m.hold(true)
	crash := m.joinCrashing(1)
	m.joinJava(0, 0)
	m.joinGo(m.l, 1, 0)
	dead := m.queue()[:1]
	crash()
	time.Sleep(500 * time.Millisecond)
	m.j.skew = 15 * time.Second
	_, refused := m.j.try(99, time.Second, 0)
	require.True(t, refused)
	m.j.skew = 0
	require.Len(t, m.queue(), 2)
	time.Sleep(30 * time.Second)
	release()
	m.finish(dead...)
	require.Len(t, m.order, 2)
}

// goWaiterDiesBeforeJavaJoins has the first Go waiter die, and a Java waiter join some time after
// that. Java drops the dead waiter, and none of the live ones in between.
func goWaiterDiesBeforeJavaJoins(t *testing.T, after time.Duration) {
	m := newMixed(t, redistest.Embedded(t), "l")
	m.j.lease = time.Hour
	release := m.hold(true)
	crash := m.joinCrashing(1)
	for i := range 4 {
		m.joinGo(m.l, i, 0)
	}
	dead := m.queue()[:1]
	time.Sleep(30 * time.Second)
	crash()
	time.Sleep(after)
	m.j.skew = time.Second
	before := len(m.queue())
	m.wg.Go(func() {
		if m.j.lock(context.Background(), 4) {
			m.section(4, 0)
			m.j.unlock(4)
		}
	})
	redistest.WaitFor(t, fixture.Soon, func() bool { return len(m.queue()) >= before }, "the Java waiter is in the queue")
	time.Sleep(5 * time.Second)
	release()
	m.finish(dead...)
	require.Len(t, m.order, 5)
}

// joinCrashing starts n waiters of a new client. crash cuts that client off from Redis.
func (m *mixed) joinCrashing(n int) (crash func()) {
	p := m.s.Proxy(m.t)
	c := fixture.NewClient(m.t, p.Client(m.t, fixture.ShortTimeouts, fixture.NoRetries))
	ctx, cancel := context.WithCancel(context.Background())
	for range n {
		m.join(func() {
			if _, err := c.FairLock(m.name).Acquire(ctx); err == nil {
				m.t.Error("a crashed waiter acquired the lock")
			}
		})
	}
	return func() {
		p.Cut()
		cancel()
	}
}
