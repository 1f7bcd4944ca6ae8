package contract

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// minHoldKind is a kind, and how its holder acquires.
type minHoldKind struct {
	kinds.Kind
	rival func(c *primitives.Client, key string, opts ...primitives.Option) fixture.Handle
	opts  []primitives.Option // for each acquisition of the holder
}

// open makes a handle.
func (k minHoldKind) open(c *primitives.Client, key string, opts ...primitives.Option) kinds.Takeable {
	return k.Takeable(c, key, opts...)
}

// informed is a handle that can say who holds it.
type informed interface {
	Info(ctx context.Context) (primitives.Info, error)
}

// holders returns the holders of each part.
func (k minHoldKind) holders(t testing.TB, c *primitives.Client, key string) (list [][]primitives.Holder) {
	t.Helper()
	parts := []informed{k.open(c, key).(informed)}
	if k.Joint() {
		parts = nil
		for _, key := range k.keys(key) {
			parts = append(parts, c.Lock(key))
		}
	}
	for _, part := range parts {
		info := fixture.InfoOf(t, part)
		list = append(list, info.Holders)
	}
	return list
}

// awaitMembers waits until all members of a joint hold have joined: those of a redlock may come
// later.
func (k minHoldKind) awaitMembers(t testing.TB, c *primitives.Client, key string, hold *primitives.Hold) {
	t.Helper()
	if !k.Joint() {
		return
	}
	for _, member := range k.keys(key) {
		joined := func() bool { return c.Lock(member).HoldFrom(hold.Context()) != nil }
		redistest.WaitFor(t, fixture.Soon, joined, member+" has joined")
	}
}

// requireRest checks that id holds all parts, for d at most, and returns the longest TTL.
func (k minHoldKind) requireRest(
	t testing.TB, c *primitives.Client, key, id string, d time.Duration,
) (longest time.Duration) {
	t.Helper()
	for _, holders := range k.holders(t, c, key) {
		require.Len(t, holders, 1)
		require.Equal(t, id, holders[0].ID)
		require.Equal(t, 1, holders[0].Count)
		require.Positive(t, holders[0].TTL)
		require.LessOrEqual(t, holders[0].TTL, d+2*time.Millisecond) // a permit's end is rounded up
		longest = max(longest, holders[0].TTL)
	}
	return longest
}

// keys returns the key of each part.
func (k minHoldKind) keys(key string) []string {
	if !k.Joint() {
		return []string{key}
	}
	return k.MemberNames(key)
}

// scriptOn matches the commands that run scripts on a key.
func scriptOn(key string) redistest.Match {
	return func(args []string) bool { return fixture.Script(args) && slices.Contains(args, key) }
}

// isFree reports whether nobody holds any part.
func (k minHoldKind) isFree(t testing.TB, c *primitives.Client, key string) bool {
	t.Helper()
	for _, holders := range k.holders(t, c, key) {
		if len(holders) > 0 {
			return false
		}
	}
	return true
}

// minHoldKinds has a row for each kind with leases, one more for each kind of lock with an owner,
// and one for readers that wait for a writer.
func minHoldKinds() (rows []minHoldKind) {
	for _, k := range append(kinds.Leased(), kinds.Joints()...) {
		rows = append(rows, minHoldKind{Kind: k, rival: k.Rival})
	}
	for _, k := range kinds.Locks() {
		k.Name += " of an owner"
		owner := []primitives.Option{primitives.WithOwner(fixture.JavaThread)}
		rows = append(rows, minHoldKind{Kind: k, rival: k.Rival, opts: owner})
	}
	reads := minHoldKind{Kind: kinds.Of("writer"), rival: kinds.Of("reader").Open}
	reads.Name = "writer and readers"
	return append(rows, reads)
}

// eachMinHoldKind runs f for each kind on each server.
func eachMinHoldKind(t *testing.T, f func(t *testing.T, k minHoldKind, s *redistest.Server, key string)) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for i, k := range minHoldKinds() {
			if s.Mini() != nil && !redistest.Full() && (i >= len(kinds.Leased()) || k.Shared) {
				continue // their scripts run on the real server
			}
			t.Run(k.Name, func(t *testing.T) {
				t.Parallel()
				key := redistest.Name(t) + "."
				k.One(t, fixture.NewClient(t, s.Client(t)), key)
				f(t, k, s, key)
			})
		}
	})
}

// eachMinHoldKindInABubble runs f for each kind in fake time.
func eachMinHoldKindInABubble(t *testing.T, f func(t *testing.T, k minHoldKind, s *redistest.Server, key string)) {
	for _, k := range minHoldKinds() {
		fixture.RunEmbedded(t, k.Name, func(t *testing.T, s *redistest.Server) {
			k.One(t, fixture.NewClient(t, s.Client(t)), "key.")
			f(t, k, s, "key.")
		})
	}
}

// learnsIn is the bar of how late a waiter acquires after the end of the rest. One that has not
// learned the new TTL finds it by its slow poll.
const learnsIn = 100 * time.Millisecond

// A release within the minimum ends the hold at once, and leaves the lock taken. The release is
// announced, and whoever waits acquires as soon as the minimum is over.
func TestC28ReleaseWithinTheMinimumLeavesTheLockTaken(t *testing.T) {
	t.Run("fake time", func(t *testing.T) {
		eachMinHoldKindInABubble(t, func(t *testing.T, k minHoldKind, s *redistest.Server, key string) {
			late := releaseWithinTheMinimum(t, k, s, key, 1500*time.Millisecond) // between two slow polls
			require.LessOrEqual(t, late, learnsIn, "after the end of the minimum")
		})
	})
	t.Run("real time", func(t *testing.T) {
		redistest.NeedFull(t, "seconds for each kind")
		eachMinHoldKind(t, func(t *testing.T, k minHoldKind, s *redistest.Server, key string) {
			late := releaseWithinTheMinimum(t, k, s, key, 3*time.Second) // outlasts a stall
			require.True(t, !redistest.Nightly() || late <= learnsIn, "%v after the end of the minimum", late)
		})
	})
}

// releaseWithinTheMinimum returns how long after the end of the minimum, which is d, the first
// waiter acquires.
func releaseWithinTheMinimum(
	t *testing.T, k minHoldKind, s *redistest.Server, key string, d time.Duration,
) (late time.Duration) {
	heard := &fixture.Recorder{}
	c, other := fixture.NewClient(t, s.Client(t), heard.Option()), fixture.NewClient(t, s.Client(t))
	l, rival := k.open(c, key, primitives.WithMinHold(d)), k.rival(other, key)
	local := k.rival(c, key) // waits at the client that holds, and would get the lock by a hand-off
	began := time.Now()
	hold := fixture.Acquire(t, t.Context(), l, k.opts...)
	k.awaitMembers(t, c, key, hold)
	waiting := fixture.StartAcquire(t.Context(), rival)
	waitingHere := fixture.StartAcquire(t.Context(), local)
	time.Sleep(100 * time.Millisecond) // both have tried, and have subscribed
	messages := s.Client(t).PSubscribe(t.Context(), "*"+key+"*")
	defer func() { _ = messages.Close() }()
	require.NoError(t, fixture.ErrOf(messages.Receive(t.Context())))
	announced := make(chan *redis.Message, 100)
	go func() { // reads all of them: a pipe has no buffer
		for {
			m, err := messages.ReceiveMessage(context.Background())
			if err != nil {
				return
			}
			announced <- m
		}
	}()

	fixture.Release(t, hold)
	fixture.RequireEnds(t, hold.Context(), primitives.ErrReleased)
	require.Len(t, heard.All(primitives.EventReleased), 1)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrReleased)
	k.requireRest(t, other, key, hold.ID(), d)
	require.ErrorIs(t, fixture.ErrOf(rival.TryAcquire(t.Context())), primitives.ErrNotAcquired)
	wakesAll := func(m *redis.Message) bool { // "0" and "1" in Redisson wake one thread of a client and all that sleep
		return strings.HasSuffix(m.Channel, "}") && (m.Payload == "1" || m.Payload == strconv.Itoa(math.MaxInt32))
	}
	isFair := strings.HasPrefix(k.Name, "fair") // then only the next waiter hears of it
	redistest.WaitFor(t, fixture.Soon, func() bool {
		return len(announced) > 0 && (wakesAll(<-announced) || isFair)
	}, "the release is announced to all that wait")

	first, second := awaitFirst(t, waiting, waitingHere)
	late = first.At.Sub(began) - d
	require.GreaterOrEqual(t, late, -2*time.Millisecond, "nobody acquires before the minimum is over")
	fixture.Release(t, first.Hold)
	fixture.Release(t, fixture.AwaitHold(t, second))
	return late
}

// awaitFirst waits for the first of two acquisitions, and returns the other one too.
func awaitFirst(t testing.TB, a, b <-chan fixture.Result) (fixture.Result, <-chan fixture.Result) {
	t.Helper()
	var r fixture.Result
	rest := b
	select {
	case r = <-a:
	case r = <-b:
		rest = a
	case <-time.After(fixture.Soon):
		require.FailNow(t, "timed out waiting for an acquisition to return")
	}
	require.NoError(t, r.Err)
	return r, rest
}

// Close does not wait for the rest of a minimum. ForceRelease and ReleaseID end it, and Adopt takes
// the lock over.
func TestC28TheRestCanBeEnded(t *testing.T) {
	t.Parallel()
	for _, end := range takeovers {
		t.Run(end.name, func(t *testing.T) {
			eachMinHoldKind(t, func(t *testing.T, k minHoldKind, s *redistest.Server, key string) {
				_, isLock := k.open(fixture.NewClient(t, s.Client(t)), key).(*primitives.Lock)
				if end.name == "ForceRelease" && (k.Joint() || !isLock) {
					t.Skip("this kind has no ForceRelease")
				}
				c, other := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
				hold := fixture.Acquire(t, t.Context(), k.open(c, key, primitives.WithMinHold(time.Hour)), k.opts...)
				k.awaitMembers(t, c, key, hold)
				fixture.Release(t, hold)
				k.requireRest(t, other, key, hold.ID(), time.Hour)
				require.NoError(t, c.Close(t.Context()))
				require.NoError(t, end.take(t.Context(), k.open(other, key), hold.ID()))
				fixture.Release(t, fixture.Acquire(t, t.Context(), k.rival(other, key), primitives.WithWait(0)))
				require.True(t, k.isFree(t, other, key))
			})
		})
	}
}

// A holder that crashes, or detaches, leaves the lock taken for its minimum, even if its lease is
// shorter. A lease that ends within the minimum ends the hold, and its Release leaves the rest.
func TestC28TheMinimumOutlivesTheLease(t *testing.T) {
	eachMinHoldKind(t, func(t *testing.T, k minHoldKind, s *redistest.Server, key string) {
		const d = time.Minute
		c, other := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
		const shorter, lapsing = d / 3, fixture.ShortLease
		for _, lease := range []primitives.Option{primitives.WithWatchdog(shorter), primitives.WithLease(shorter)} {
			l := k.open(c, key, lease, primitives.WithMinHold(d))
			hold := fixture.Acquire(t, t.Context(), l, k.opts...)
			k.awaitMembers(t, c, key, hold)
			require.Less(t, time.Until(hold.ValidUntil()), shorter, "the hold is trusted for its lease")
			require.Greater(t, k.requireRest(t, other, key, hold.ID(), d), d-fixture.Soon)
			require.Equal(t, hold.ID(), hold.Detach())
			require.Greater(t, k.requireRest(t, other, key, hold.ID(), d), d-fixture.Soon)
			require.NoError(t, k.open(other, key).ReleaseID(t.Context(), hold.ID()))
		}
		// The hold is lost when its lease ends, and its Release leaves the rest.
		l := k.open(c, key, primitives.WithMinHold(d), primitives.WithLease(lapsing))
		hold := fixture.Acquire(t, t.Context(), l, k.opts...)
		k.awaitMembers(t, c, key, hold)
		fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		time.Sleep(20 * time.Millisecond) // a release in the background
		k.requireRest(t, other, key, hold.ID(), d)
		require.ErrorIs(t, fixture.ErrOf(k.rival(other, key).TryAcquire(t.Context())), primitives.ErrNotAcquired)
	})
}

// A release after the minimum frees the lock, and an acquisition that fails leaves nothing.
func TestC28OtherwiseReleasesAreOrdinary(t *testing.T) {
	eachMinHoldKind(t, func(t *testing.T, k minHoldKind, s *redistest.Server, key string) {
		c := fixture.NewClient(t, s.Client(t))
		const d = 50 * time.Millisecond
		hold := fixture.Acquire(t, t.Context(), k.open(c, key), append(k.opts, primitives.WithMinHold(d))...)
		k.awaitMembers(t, c, key, hold)
		k.requireRest(t, c, key, hold.ID(), time.Minute)
		time.Sleep(d)
		fixture.Release(t, hold)
		require.True(t, k.isFree(t, c, key))

		p := s.Proxy(t)
		cut := k.open(fixture.NewClient(t, p.Client(t, fixture.FastRetries, fixture.NoRetries)), key,
			primitives.WithMinHold(time.Hour))
		p.DropReplies(1, fixture.Script)
		if hold, err := cut.TryAcquire(t.Context(), k.opts...); err == nil { // the others of a redlock, or a repetition
			require.NoError(t, k.open(c, key).ReleaseID(t.Context(), hold.ID()))
		}
		p.Heal()
		redistest.WaitFor(t, fixture.Soon, func() bool { return k.isFree(t, c, key) },
			"nothing is left of a failed acquisition")
	})
}

// A release in the last millisecond of the minimum leaves no key that never expires: a PEXPIRE of 0
// would delete the key, and the next write would make it again without a TTL. It is a matter of a
// millisecond, so it is tried often, and on a real server only: miniredis has another clock.
func TestC28ReleaseInTheLastMillisecondLeavesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	for _, k := range minHoldKinds() {
		if k.Joint() {
			continue // their members are plain locks
		}
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			key := redistest.Name(t) + "."
			c := fixture.NewClient(t, s.Client(t))
			k.One(t, c, key)
			const d = 10 * time.Millisecond
			l := k.open(c, key, primitives.WithMinHold(2*d), primitives.WithLease(time.Second),
				primitives.WithWait(fixture.Soon))
			rdb := s.Client(t)
			for range redistest.Scaled(s, 100) {
				hold := fixture.Acquire(t, t.Context(), l, k.opts...)
				k.awaitMembers(t, c, key, hold)
				for _, key := range redistest.Keys(t, s, "*"+key+"*") {
					if rdb.PTTL(t.Context(), key).Val() > time.Millisecond {
						rdb.PExpire(t.Context(), key, d)
					}
				}
				time.Sleep(d - time.Duration(rand.Int64N(int64(2*time.Millisecond))))
				_ = hold.Release(t.Context()) // it may be lost by now
			}
			redistest.WaitFor(t, fixture.Soon, func() bool { return k.isFree(t, c, key) }, "the lock becomes free")
		})
	}
}

// A plain semaphore ignores the minimum.
func TestC28APlainSemaphoreIgnoresTheMinimum(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		sem := fixture.WithOnePermit(t, fixture.NewClient(t, s.Client(t)).Semaphore(redistest.Name(t),
			primitives.WithMinHold(time.Hour)))
		for range 2 {
			fixture.Release(t, fixture.Acquire(t, t.Context(), sem, primitives.WithWait(0)))
		}
	})
}

// The outermost hold decides, in whichever order the holds are released.
func TestC28TheOutermostHoldDecides(t *testing.T) {
	eachMinHoldKind(t, func(t *testing.T, k minHoldKind, s *redistest.Server, key string) {
		if strings.Contains(t.Name(), "permits") {
			t.Skip("permits do not nest")
		}
		c := fixture.NewClient(t, s.Client(t))
		for _, tt := range []struct {
			name       string
			outer      time.Duration
			innerFirst bool
		}{{"inner first", time.Hour, true}, {"outer first", time.Hour, false}, {"inner alone has one", 0, true}} {
			l := k.open(c, key)
			outer := fixture.Acquire(t, t.Context(), l, append(k.opts, primitives.WithMinHold(tt.outer))...)
			k.awaitMembers(t, c, key, outer)
			inner := fixture.Acquire(t, outer.Context(), l, primitives.WithMinHold(2*time.Hour),
				primitives.WithLease(time.Minute))
			holds := []*primitives.Hold{outer, inner}
			if tt.innerFirst {
				holds = []*primitives.Hold{inner, outer}
			}
			fixture.Release(t, holds[0])
			require.NoError(t, holds[1].Check(t.Context()), tt.name)
			fixture.Release(t, holds[1])
			if tt.outer == 0 {
				require.True(t, k.isFree(t, c, key), tt.name)
				continue
			}
			require.Greater(t, k.requireRest(t, c, key, outer.ID(), tt.outer), tt.outer-fixture.Soon, tt.name)
			require.NoError(t, l.ReleaseID(t.Context(), outer.ID()))
		}
	})
}

// A reader whose minimum is not over keeps writers out, and lets readers in.
func TestC28ReadersEnterDuringTheRestOfAReader(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		key := redistest.Name(t) + "."
		c := fixture.NewClient(t, s.Client(t))
		rw := c.RWLock(key)
		hold := fixture.Acquire(t, t.Context(), rw.Reader(), primitives.WithMinHold(time.Hour))
		fixture.Release(t, hold)
		other := fixture.Acquire(t, t.Context(), rw.Reader(), primitives.WithWait(0))
		require.ErrorIs(t, fixture.ErrOf(rw.Writer().TryAcquire(t.Context())), primitives.ErrNotAcquired)
		fixture.Release(t, other)
		info := fixture.InfoOf(t, rw.Reader())
		require.Len(t, info.Holders, 1)
		require.Greater(t, info.TTL, time.Hour-fixture.Soon, "the hash lasts as long as the rest")
		require.NoError(t, rw.Reader().ReleaseID(t.Context(), hold.ID()))
		fixture.RequireClean(t, s, key)
	})
}

// A writer waits behind two readers. The first one's rest ends soon after the other, whose lease
// was longer, is released: the writer does not go on waiting for that lease.
func TestC28AWriterWaitsForTheRestOfAReader(t *testing.T) {
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		const minimum = 300 * time.Millisecond
		reader, began := b.C.RWLock("x").Reader(), time.Now()
		first := fixture.Acquire(t, t.Context(), reader, primitives.WithMinHold(minimum))
		second := fixture.Acquire(t, t.Context(), reader)
		writer := fixture.NewClient(t, b.S.Client(t)).RWLock("x").Writer()
		waiting := fixture.StartAcquire(t.Context(), writer)
		synctest.Wait()
		fixture.Release(t, first)
		synctest.Wait()
		fixture.Release(t, second)
		fixture.Release(t, fixture.AwaitHold(t, waiting))
		require.InDelta(t, minimum, time.Since(began), float64(10*time.Millisecond))
	})
}

// A writer goes on reading after its release. When its minimum hold is over, it is no longer the
// writer, whether or not the reader has gone, although the reader's lease is longer.
func TestC28MinimumOfAWriterThatReads(t *testing.T) {
	const minimum = 5 * time.Second
	for _, tt := range []struct {
		name    string
		reads   time.Duration
		inDoubt bool // a copy of the acquisition may come
		late    bool // the reply to the release comes when the minimum is over
	}{
		{"for less", time.Second, false, false},
		{"for longer", time.Minute, false, false},
		{"for longer, in doubt", time.Minute, true, false},
		{"for longer, late", time.Minute, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reads := tt.reads
			fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
				rw, other := b.C.RWLock("x"), fixture.NewClient(t, b.S.Client(t)).RWLock("x")
				loads := b.C.RWLock("loads the scripts").Writer()
				for _, d := range []time.Duration{0, minimum} {
					fixture.Release(t, fixture.Acquire(t, t.Context(), loads, primitives.WithMinHold(d)))
				}
				if tt.inDoubt {
					b.P.DropReplies(1, fixture.Script)
				}
				writer := fixture.Acquire(t, t.Context(), rw.Writer(), primitives.WithMinHold(minimum))
				began := time.Now()
				reader := fixture.Acquire(t, context.WithoutCancel(writer.Context()), rw.Reader())
				if tt.late {
					time.Sleep(minimum - 20*time.Millisecond)
					b.P.Delay(40 * time.Millisecond)
				}
				fixture.Release(t, writer)
				b.P.Heal()
				for _, l := range []*primitives.Lock{other.Reader(), other.Writer()} {
					if !tt.late {
						require.ErrorIs(t, fixture.ErrOf(l.TryAcquire(t.Context())), primitives.ErrNotAcquired)
					}
				}
				left := time.AfterFunc(reads, func() { assert.NoError(t, reader.Release(t.Context())) })
				defer left.Stop()
				fixture.Release(t, fixture.Acquire(t, t.Context(), other.Reader()))
				assert.InDelta(t, minimum, time.Since(began), float64(50*time.Millisecond))
				fixture.Release(t, fixture.Acquire(t, t.Context(), other.Writer()))
				assert.Less(t, time.Since(began), minimum+reads+50*time.Millisecond)
			})
		})
	}
}

// A command that extends the lease is executed, or executed again, after the release. The lock is
// free when the minimum is over all the same.
func TestC28ALateExtensionDoesNotOutlastTheMinimum(t *testing.T) {
	const minimum = 30 * time.Second
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, b *fixture.BubbleTest, hold *primitives.Hold)
	}{
		{"a renewal", func(_ *testing.T, b *fixture.BubbleTest, _ *primitives.Hold) {
			b.P.DropCommands(math.MaxInt, fixture.Script)
			time.Sleep(minimum - 5*time.Second)
			b.P.Heal()
		}},
		{"an extension", func(t *testing.T, b *fixture.BubbleTest, hold *primitives.Hold) {
			b.P.DropReplies(1, fixture.Script)
			require.NoError(t, hold.Extend(t.Context(), time.Minute))
		}},
		{"a nested acquisition", func(t *testing.T, b *fixture.BubbleTest, hold *primitives.Hold) {
			b.P.DropReplies(1, fixture.Script)
			fixture.Release(t, fixture.Acquire(t, hold.Context(), b.L))
		}},
	} {
		fixture.RunBubble(t, tt.name, func(t *testing.T, b *fixture.BubbleTest) {
			began := time.Now()
			hold := fixture.Acquire(t, t.Context(), b.L, primitives.WithMinHold(minimum), primitives.WithWatchdog(time.Minute))
			tt.do(t, b, hold)
			fixture.Release(t, hold)
			b.S.Mini().SetTTL("l", time.Minute) // the late command
			fixture.Release(t, fixture.Acquire(t, t.Context(), b.Other))
			assert.InDelta(t, minimum, time.Since(began), float64(50*time.Millisecond))
		})
	}
}

// The same after an acquisition and an extension whose first replies were lost: Redis remembers the
// release, and a copy of the extension is executed after it.
func TestC28ACopyOfAnExtensionDoesNotOutlastTheMinimum(t *testing.T) {
	const minimum = 30 * time.Second
	for _, k := range kinds.Leased() {
		fixture.RunBubble(t, k.Name, func(t *testing.T, b *fixture.BubbleTest) {
			var extension redistest.Command
			l := k.One(t, b.C, "x", primitives.WithMinHold(minimum))
			fixture.Release(t, fixture.Acquire(t, t.Context(), l, primitives.WithMinHold(0))) // loads the script
			b.P.DropReplies(1, fixture.Script)
			hold, began := fixture.Acquire(t, t.Context(), l), time.Now()
			b.P.DropReplies(1, func(args []string) bool {
				extension.Args = args
				return fixture.Script(args)
			})
			require.NoError(t, hold.Extend(t.Context(), time.Minute))
			b.P.Heal()
			fixture.Release(t, hold)
			require.NoError(t, fixture.Resend(b.S.Client(t), extension).Err())
			fixture.Release(t, fixture.Acquire(t, t.Context(), k.Rival(fixture.NewClient(t, b.S.Client(t)), "x")))
			require.InDelta(t, minimum, time.Since(began), float64(50*time.Millisecond))
		})
	}
}

// A hold with a minimum is part of no cohort: its release sends a command, and the next member
// waits.
func TestC28NoCohort(t *testing.T) {
	t.Parallel()
	fixture.EachKind(t, kinds.Cohorts(), func(t *testing.T, s *redistest.Server, kind kinds.Kind) {
		const d = 200 * time.Millisecond
		c := fixture.NewClient(t, s.Client(t))
		l := kind.Lock(c, redistest.Name(t), primitives.WithCohort(time.Minute), primitives.WithMinHold(d))
		began := time.Now()
		hold := fixture.Acquire(t, t.Context(), l)
		waiting := fixture.StartAcquire(t.Context(), l)
		fixture.AwaitWaiters(t, c, 1)
		fixture.Release(t, hold)
		r := fixture.AwaitAcquired(t, waiting)
		require.NotEqual(t, hold.ID(), r.Hold.ID())
		require.GreaterOrEqual(t, r.At.Sub(began), d-2*time.Millisecond)
		fixture.Release(t, r.Hold)
	})
}

// A fair waiter may be granted the lock with a lease that is shorter than its minimum. A crash
// after that must not free the lock sooner.
func TestC28AGrantLastsForTheMinimum(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		key := redistest.Name(t)
		c := fixture.NewClient(t, s.Client(t))
		first := fixture.Acquire(t, t.Context(), c.FairLock(key))
		waiting := fixture.Start(func() (*primitives.Hold, error) {
			l := c.FairLock(key, primitives.WithMinHold(time.Hour), primitives.WithWatchdog(3*time.Second))
			return l.Acquire(t.Context())
		})
		redistest.WaitFor(t, fixture.Soon, func() bool {
			info, err := c.FairLock(key).Info(t.Context())
			return err == nil && len(info.Waiters) == 1
		}, "it is in the queue")
		fixture.Release(t, first)
		hold := fixture.AwaitHold(t, waiting)
		require.Greater(t, s.Client(t).PTTL(t.Context(), key).Val(), time.Hour-fixture.Soon)
		fixture.Release(t, hold)
		require.NoError(t, c.FairLock(key).ReleaseID(t.Context(), hold.ID()))
	})
}

// renewals are the digests and the texts of the scripts that renew leases.
var renewals = func() (all []string) {
	for _, name := range []string{
		"lock/renew", "lock/renew_shared", "rwlock/read_renew", "rwlock/read_renew_shared", "permitsemaphore/renew",
	} {
		script := scripts.Load(name)
		all = append(all, script.SHA(), script.Text())
	}
	return all
}()

// C16: replies of the acquisition and of the release are lost, so go-redis repeats both. Copies of
// all commands arrive in any order, during the rest and after it, when somebody else holds the
// lock. The rest never grows, and no copy touches the next holder.
func TestC28CopiesNeverKeepTheLockLonger(t *testing.T) {
	const d = 400 * time.Millisecond
	eachMinHoldKind(t, func(t *testing.T, k minHoldKind, s *redistest.Server, key string) {
		p, rdb := s.Proxy(t), s.Client(t)
		c, other := fixture.NewClient(t, p.Client(t, fixture.FastRetries)), fixture.NewClient(t, s.Client(t))
		l := k.open(c, key, primitives.WithMinHold(d))
		p.Record()
		loseReplies := func() {
			for _, key := range k.keys(key) {
				p.DropReplies(1, scriptOn(key))
			}
		}
		loseReplies()
		began := time.Now()
		hold := fixture.Acquire(t, t.Context(), l, k.opts...)
		k.awaitMembers(t, c, key, hold)
		loseReplies()
		fixture.Release(t, hold)
		p.Heal()
		over := time.Now().Add(d)
		// Of a renewal a late copy may keep the lock longer. The client renews when a connection
		// breaks.
		renews := func(c redistest.Command) bool { return slices.Contains(renewals, c.Args[1]) }
		copies := slices.DeleteFunc(fixture.ScriptsOf(p), renews)
		acquisitions := len(k.keys(key))
		if k.Name == "multi" { // one command acquires all members
			acquisitions = 1
		}
		// Each acquisition is repeated. The lost reply after that may have been a renewal's instead
		// of a release's.
		require.GreaterOrEqual(t, len(copies), 2*acquisitions+len(k.keys(key)))
		repeat := func() {
			for _, i := range rand.Perm(len(copies)) {
				_ = fixture.Resend(rdb, copies[i]).Err()
			}
		}
		for range 10 {
			repeat()
			limit := time.Until(over) + 20*time.Millisecond // before Redis is asked: the TTL is no longer than that
			if k.isFree(t, other, key) {
				require.GreaterOrEqual(t, time.Since(began), d-2*time.Millisecond, "a copy frees it too soon")
				break // the machine is slow
			}
			for _, holders := range k.holders(t, other, key) {
				for _, holder := range holders {
					require.Equal(t, hold.ID(), holder.ID)
					// The clock of miniredis goes on between the PTTL and the PEXPIRE of a script.
					if s.Mini() == nil && !slices.ContainsFunc(fixture.ScriptsOf(p), renews) {
						require.LessOrEqual(t, holder.TTL, limit)
					}
				}
			}
		}
		next := fixture.AwaitHold(t, fixture.StartAcquire(t.Context(), k.rival(other, key)))
		for range 3 {
			repeat()
			require.NoError(t, next.Check(t.Context()))
		}
		fixture.Release(t, next)
		repeat()
		// The next holder of a redlock needs only a majority: the rest of another member may end a
		// little later.
		redistest.WaitFor(t, fixture.Soon, func() bool { return k.isFree(t, other, key) }, "no copy has acquired it")
	})
}

// A release that Redis never answers is repeated in the background. If none was executed, the lock
// stays taken until its lease ends; as soon as one is, for the rest.
func TestC28AnUnansweredReleaseIsRepeated(t *testing.T) {
	eachMinHoldKind(t, func(t *testing.T, k minHoldKind, s *redistest.Server, key string) {
		const d = 10 * time.Second
		p := s.Proxy(t)
		c, other := fixture.NewClient(t, p.Client(t, fixture.FastRetries, fixture.NoRetries)), fixture.NewClient(t,
			s.Client(t))
		hold := fixture.Acquire(t, t.Context(),
			k.open(c, key, primitives.WithMinHold(d), primitives.WithLease(time.Hour)), k.opts...)
		k.awaitMembers(t, c, key, hold)
		for _, key := range k.keys(key) {
			p.DropCommands(1, scriptOn(key))
		}
		require.Error(t, hold.Release(t.Context()))
		redistest.WaitFor(t, fixture.Soon, func() bool {
			for _, holders := range k.holders(t, other, key) {
				if len(holders) > 0 && holders[0].TTL > d {
					return false
				}
			}
			return true
		}, "a repetition shortens the TTL")
		if !k.isFree(t, other, key) { // else it took longer than d
			require.NoError(t, k.open(other, key).ReleaseID(t.Context(), hold.ID()))
		}
	})
}

// An owner that enters again during the rest takes a count of its own. The lock is free at the
// latest when the lease of that acquisition ends.
func TestC28AnOwnerEntersDuringItsRest(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		key := redistest.Name(t) + "."
		l := fixture.NewClient(t, s.Client(t)).Lock(key, primitives.WithOwner(fixture.JavaThread))
		fixture.Release(t, fixture.Acquire(t, t.Context(), l, primitives.WithMinHold(time.Hour)))
		hold := fixture.Acquire(t, t.Context(), l, primitives.WithWait(0))
		require.NoError(t, hold.Check(t.Context()))
		fixture.Release(t, hold)
		require.NoError(t, l.ReleaseID(t.Context(), fixture.JavaThread))
		fixture.RequireClean(t, s, key)
	})
}

// A failed attempt of a joint lock frees the members that it took, although the lock has a minimum.
func TestC28AFailedJointAttemptLeavesNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, join := range map[string]fixture.Join{"multi": primitives.NewMultiLock, "red": primitives.NewRedLock} {
			t.Run(name, func(t *testing.T) {
				key := redistest.Name(t)
				c := fixture.NewClient(t, s.Client(t))
				locks := kinds.Members(c, key, 3)
				for _, l := range locks[1:] {
					fixture.Acquire(t, t.Context(), l)
				}
				joint := join(locks, primitives.WithMinHold(time.Hour))
				require.ErrorIs(t, fixture.ErrOf(joint.TryAcquire(t.Context())), primitives.ErrNotAcquired)
				redistest.WaitFor(t, fixture.Soon, func() bool { return len(fixture.Fields(t, s, key+"-0")) == 0 },
					"the member is free")
			})
		}
	})
}

// A member's own minimum counts, unless the joint lock or the call has one.
func TestC28MinimumOfAMember(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := fixture.NewClient(t, s.Client(t))
		for _, tt := range []struct {
			name string
			opts []primitives.Option
			most time.Duration // 0: free
		}{
			{"its own", nil, time.Hour},
			{"the call's", []primitives.Option{primitives.WithMinHold(time.Minute)}, time.Minute},
			{"the call's, none", []primitives.Option{primitives.WithMinHold(0)}, 0},
		} {
			key := redistest.Name(t)
			member := c.Lock(key, primitives.WithMinHold(time.Hour))
			fixture.Release(t, fixture.Acquire(t, t.Context(), primitives.NewMultiLock([]*primitives.Lock{member}), tt.opts...))
			info := fixture.InfoOf(t, member)
			require.LessOrEqual(t, info.TTL, tt.most, tt.name)
			require.Equal(t, tt.most > 0, info.TTL > max(tt.most-fixture.Soon, 0), tt.name)
		}
	})
}
