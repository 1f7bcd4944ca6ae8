package primitives_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// mixed is a fair lock that Go and Java share.
type mixed struct {
	t    testing.TB
	s    *redistest.Server
	j    *java
	c    *primitives.Client
	l    *primitives.Lock
	name string

	wg    sync.WaitGroup
	mu    sync.Mutex
	order []int
}

func newMixed(t testing.TB, s *redistest.Server, name string) *mixed {
	m := &mixed{t: t, s: s, name: name, j: newJava(t, s, name), c: newClient(t, s.Client(t))}
	m.l = m.c.FairLock(name)
	return m
}

// queue is who waits, in order.
func (m *mixed) queue() []string {
	return m.s.Client(m.t).LRange(context.Background(), "redisson_lock_queue:{"+m.name+"}", 0, -1).Val()
}

// enters starts a waiter and returns once it stands in the queue.
func (m *mixed) enters(f func()) {
	m.t.Helper()
	before := len(m.queue())
	m.wg.Go(f)
	redistest.WaitFor(m.t, soon, func() bool { return len(m.queue()) == before+1 }, "one more in the queue")
}

// section is what waiter i does with the lock.
func (m *mixed) section(i int, d time.Duration) {
	m.mu.Lock()
	m.order = append(m.order, i)
	m.mu.Unlock()
	time.Sleep(d)
}

// goes has a Go waiter enter the queue, jumps one of Java's.
func (m *mixed) goes(l *primitives.Lock, i int, d time.Duration) {
	m.t.Helper()
	m.enters(func() {
		if err := l.Do(context.Background(), func(context.Context) error { m.section(i, d); return nil }); err != nil {
			m.t.Error(err)
		}
	})
}

func (m *mixed) jumps(i int, d time.Duration) {
	m.t.Helper()
	m.enters(func() {
		if m.j.lock(context.Background(), i) {
			m.section(i, d)
			m.j.unlock(i)
		}
	})
}

// holds takes the free lock; the result gives it back.
func (m *mixed) holds(byJava bool) (release func()) {
	if byJava {
		require.True(m.t, m.j.lock(context.Background(), 1000))
		return func() { m.j.unlock(1000) }
	}
	hold := acquire(m.t, context.Background(), m.l)
	return func() { require.NoError(m.t, hold.Release(context.Background())) }
}

// ends waits for all and checks that they went in order and nothing is left.
func (m *mixed) ends(dead ...string) {
	m.t.Helper()
	m.wg.Wait()
	require.IsIncreasing(m.t, append([]int{-1}, m.order...))
	m.j.inspect(m.t, dead...)
	requireClean(m.t, m.s, m.name)
}

// Waiters of Go and of Java are served in the order in which they came, and none of either is dropped.
func TestFairLockBesideJava(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, pattern := range []string{"jg", "gj", "jjg", "ggj", "jgg", "jjjjjg", "gggggj"} {
			for _, first := range []string{"Go", "Java"} {
				for _, section := range []time.Duration{0, 5 * time.Millisecond} {
					if len(pattern) > 3 && section > 0 {
						continue
					}
					t.Run(fmt.Sprintf("%s, %s holds, sections of %v", pattern, first, section), func(t *testing.T) {
						m := newMixed(t, s, redistest.Name(t))
						release := m.holds(first == "Java")
						n := min(scaled(s, 200), 20)
						for i := range n {
							if pattern[i%len(pattern)] == 'g' {
								m.goes(m.l, i, section)
							} else {
								m.jumps(i, section)
							}
						}
						release()
						m.ends()
						require.Len(t, m.order, n)
					})
				}
			}
		}
	})
}

// The same over hours of holding, in fake time: scores drift apart, TTLs end, Java's waits are over.
func TestFairLockBesideJavaSlowly(t *testing.T) {
	for _, pattern := range []string{"jg", "gj", "gjj", "ggj"} {
		for _, skew := range []time.Duration{0, time.Second, -time.Second} {
			for _, section := range []time.Duration{700 * time.Millisecond, 12 * time.Second, 200 * time.Second} {
				if section > 10*time.Second && skew != 0 || section > time.Minute && pattern != "gj" {
					continue
				}
				t.Run(fmt.Sprintf("%s, sections of %v, Java's clock %v ahead", pattern, section, skew), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						m := newMixed(t, redistest.Embedded(t), "l")
						m.j.skew, m.j.lease = skew, time.Hour
						other := newClient(t, m.s.Client(t)).FairLock("l")
						release := m.holds(true)
						for i := range 8 {
							switch {
							case pattern[i%len(pattern)] == 'j':
								m.jumps(i, section)
							case i%2 == 0:
								m.goes(m.l, i, section)
							default:
								m.goes(other, i, section)
							}
							time.Sleep(300 * time.Millisecond)
						}
						time.Sleep(section)
						release()
						m.ends()
						require.Len(t, m.order, 8)
					})
				})
			}
		}
	}
}

// Those of Java's that give up go, and those that got it in time got it in order, whatever unit Redisson took their wait for.
func TestFairLockBesideJavaThatGivesUp(t *testing.T) {
	for _, leased := range []bool{true, false} {
		for _, wait := range []time.Duration{2 * time.Second, 10 * time.Second, 250 * time.Second} {
			t.Run(fmt.Sprintf("lease %v, wait %v", leased, wait), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := newMixed(t, redistest.Embedded(t), "l")
					release := m.holds(false)
					gaveUp := 0
					for i := range 12 {
						switch i % 4 {
						case 0:
							m.goes(m.l, i, 100*time.Millisecond)
						case 1, 3:
							m.enters(func() {
								if m.j.tryLock(i, wait, leased) {
									m.section(i, 0)
									m.j.unlock(i)
								} else {
									m.mu.Lock()
									gaveUp++
									m.mu.Unlock()
								}
							})
						case 2:
							m.jumps(i, 100*time.Millisecond)
						}
					}
					time.Sleep(wait - 300*time.Millisecond)
					release()
					m.ends()
					require.Len(t, m.order, 12-gaveUp)
					t.Logf("%d of 6 gave up", gaveUp)
				})
			})
		}
	}
}

// A dead waiter costs the others what it is given, and they pass it. Java does not spin meanwhile for longer than that.
func TestFairLockPassesTheDead(t *testing.T) {
	t.Run("Go's", func(t *testing.T) {
		for rest, limit := range map[string]time.Duration{
			"g": 10 * time.Second, "gj": 10 * time.Second, "jg": 10 * time.Second,
			"j": 30 * time.Second, // nobody tells it: it looks when the holder's TTL that it was told is over
		} {
			t.Run("then "+rest, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := newMixed(t, redistest.Embedded(t), "l")
					release := m.holds(false)
					crash := m.crashing(3)
					for i, r := range rest {
						if r == 'g' {
							m.goes(m.l, i, 0)
						} else {
							m.jumps(i, 0)
						}
					}
					dead := m.queue()[:3]
					crash()
					began := time.Now()
					release()
					m.wg.Wait()
					require.Less(t, time.Since(began), limit+50*time.Millisecond)
					time.Sleep(2 * time.Minute) // Redisson, which dropped the dead, does not know of our helper keys: they run out
					m.ends(dead...)
				})
			})
		}
	})
	t.Run("Java's", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMixed(t, redistest.Embedded(t), "l")
			m.j.wait = 20 * time.Second
			release := m.holds(false)
			m.goes(m.l, 0, 0)
			died, die := context.WithCancel(t.Context())
			m.enters(func() { m.j.lock(died, 1) })
			m.goes(m.l, 2, 0)
			m.jumps(3, 0)
			die()
			time.Sleep(time.Minute)
			began := time.Now()
			release()
			m.wg.Wait()
			require.Less(t, time.Since(began), 21*time.Second)
			m.ends(m.j.id(1))
		})
	})
	// Redisson drops one of Go's while another of its own waits: there are as many of ours then, the dropped one counted, as wait in all.
	t.Run("Go's, dropped by Java", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMixed(t, redistest.Embedded(t), "l")
			m.j.lease = time.Hour
			release := m.holds(true)
			crash := m.crashing(1)
			m.jumps(0, 0)
			m.goes(m.l, 1, 0)
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
			m.ends(dead...)
			require.Len(t, m.order, 2)
		})
	})
	// One of Go's dies just before one of Java's comes: those in between do not die with it.
	t.Run("Go's, at the moment when Java comes", func(t *testing.T) {
		for late := 9 * time.Second; late < 12*time.Second; late += 470 * time.Millisecond {
			synctest.Test(t, func(t *testing.T) {
				m := newMixed(t, redistest.Embedded(t), "l")
				m.j.lease = time.Hour
				release := m.holds(true)
				crash := m.crashing(1)
				for i := range 4 {
					m.goes(m.l, i, 0)
				}
				dead := m.queue()[:1]
				time.Sleep(30 * time.Second)
				crash()
				time.Sleep(late)
				m.j.skew = time.Second
				before := len(m.queue())
				m.wg.Go(func() {
					if m.j.lock(context.Background(), 4) {
						m.section(4, 0)
						m.j.unlock(4)
					}
				})
				redistest.WaitFor(t, soon, func() bool { return len(m.queue()) >= before }, "Java waits")
				time.Sleep(5 * time.Second)
				release()
				m.ends(dead...)
				require.Len(t, m.order, 5)
			})
		}
	})
}

// crashing has n waiters of another client enter; crash cuts it off.
func (m *mixed) crashing(n int) (crash func()) {
	p := m.s.Proxy(m.t)
	c := newClient(m.t, p.Client(m.t, hasty, noRetries))
	ctx, cancel := context.WithCancel(context.Background())
	for range n {
		m.enters(func() {
			if _, err := c.FairLock(m.name).Acquire(ctx); err == nil {
				m.t.Error("the dead got the lock")
			}
		})
	}
	return func() {
		p.Refuse(true)
		p.Reset()
		cancel()
	}
}

// Fair queues carry the server's time alone: no client's clock is in what clients send.
func TestFairLockSendsNoClock(t *testing.T) {
	s := redistest.Redis(t)
	p := s.Proxy(t)
	name := redistest.Name(t)
	l := newClient(t, p.Client(t)).FairLock(name)
	p.Record()
	hold := acquire(t, t.Context(), l)
	waiting := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
	awaitWaiter(t, s, name)
	time.Sleep(1100 * time.Millisecond) // a refresh
	release(t, hold)
	release(t, await(t, waiting).hold)
	today := fmt.Sprint(time.Now().UnixMilli())[:5]
	for _, c := range p.Commands() {
		for _, arg := range c.Args {
			require.False(t, len(arg) >= 10 && len(arg) <= 20 && strings.HasPrefix(arg, today), "%q in %q", arg, c.Args)
		}
	}
}
