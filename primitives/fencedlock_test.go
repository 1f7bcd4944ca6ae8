package primitives_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// fencedTest is the fixture of a test of a fenced lock.
type fencedTest struct {
	s     *redistest.Server
	rdb   *redis.Client
	name  string
	token string // the key of the last token, which outlives the lock
}

// eachFenced runs f on both servers, each time with a new lock name. When f returns, only the token
// key may be left.
func eachFenced(t *testing.T, f func(t *testing.T, x *fencedTest)) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		x := &fencedTest{s: s, rdb: s.Client(t), name: redistest.Name(t)}
		x.token = "redisson_lock_token:{" + x.name + "}"
		f(t, x)
		require.NoError(t, x.rdb.Del(context.Background(), x.token).Err())
		requireClean(t, s, x.name)
	})
}

// on returns the lock on a new client.
func (x *fencedTest) on(t *testing.T) *primitives.Lock {
	return newClient(t, x.s.Client(t)).FencedLock(x.name)
}

// last returns the last token that was issued.
func (x *fencedTest) last(t *testing.T) int64 {
	t.Helper()
	n, err := x.rdb.Get(t.Context(), x.token).Int64()
	require.NoError(t, err)
	return n
}

// take acquires l and checks that the hold has the last token.
func (x *fencedTest) take(
	t *testing.T, ctx context.Context, l *primitives.Lock, opts ...primitives.Option,
) *primitives.Hold {
	t.Helper()
	hold := acquire(t, ctx, l, opts...)
	require.Equal(t, x.last(t), hold.Token())
	return hold
}

// tokenOwner is the id of a Java thread.
var tokenOwner = primitives.WithOwner("8a0a8ea4-7f4f-4b0e-8d2b-9d6c3a5f1e11:7")

// tokenCases acquire and release a lock in different ways. tokens is the number of tokens that each
// issues.
var tokenCases = []struct {
	name   string
	tokens int64
	run    func(t *testing.T, x *fencedTest, l *primitives.Lock)
}{
	{"an acquisition", 1, func(t *testing.T, x *fencedTest, l *primitives.Lock) {
		release(t, x.take(t, t.Context(), l))
	}},
	{"on another client", 1, func(t *testing.T, x *fencedTest, _ *primitives.Lock) {
		release(t, x.take(t, t.Context(), x.on(t)))
	}},
	{"nested acquisitions share a token", 1, func(t *testing.T, x *fencedTest, l *primitives.Lock) {
		outer := x.take(t, t.Context(), l)
		inner := x.take(t, outer.Context(), l)
		innermost := x.take(t, inner.Context(), l)
		release(t, outer)
		release(t, inner)
		require.Equal(t, outer.Token(), innermost.Token())
		release(t, innermost)
	}},
	{"with an owner", 1, func(t *testing.T, x *fencedTest, l *primitives.Lock) {
		release(t, x.take(t, t.Context(), l, tokenOwner))
	}},
	{"holds of one owner share a token", 1, func(t *testing.T, x *fencedTest, l *primitives.Lock) {
		first := x.take(t, t.Context(), l, tokenOwner)
		second := x.take(t, t.Context(), x.on(t), tokenOwner)
		third := x.take(t, first.Context(), l)
		require.Equal(t, first.Token(), second.Token())
		for _, hold := range []*primitives.Hold{first, third, second} {
			release(t, hold)
		}
	}},
	{"a refused acquisition gets no token", 1, func(t *testing.T, x *fencedTest, l *primitives.Lock) {
		hold := x.take(t, t.Context(), l)
		require.ErrorIs(t, errOf(x.on(t).TryAcquire(t.Context())), primitives.ErrNotAcquired)
		_, err := l.Acquire(t.Context(), tokenOwner, primitives.WithWait(20*time.Millisecond))
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		release(t, hold)
	}},
	{"Java issues a token in between", 3, func(t *testing.T, x *fencedTest, l *primitives.Lock) {
		release(t, x.take(t, t.Context(), l))
		require.NoError(t, x.rdb.Incr(t.Context(), x.token).Err())
		release(t, x.take(t, t.Context(), l))
	}},
	{"after ForceRelease", 2, func(t *testing.T, x *fencedTest, l *primitives.Lock) {
		hold := x.take(t, t.Context(), l)
		held, err := l.ForceRelease(t.Context())
		require.NoError(t, err)
		require.True(t, held)
		next := x.take(t, t.Context(), l)
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		release(t, next)
	}},
	{"an adopted hold gets no token", 1, func(t *testing.T, x *fencedTest, l *primitives.Lock) {
		hold := x.take(t, t.Context(), l)
		adopted, err := l.Adopt(t.Context(), hold.Detach())
		require.NoError(t, err)
		require.Zero(t, adopted.Token())
		release(t, adopted)
	}},
	{"after a lease expired", 2, func(t *testing.T, x *fencedTest, l *primitives.Lock) {
		hold := x.take(t, t.Context(), l, primitives.WithLease(brief))
		next := x.take(t, t.Context(), l)
		require.Greater(t, next.Token(), hold.Token())
		release(t, next)
	}},
}

// C14: each outermost acquisition issues one token, greater than all before it. All cases share one
// lock.
func TestC14Token(t *testing.T) {
	t.Parallel()
	eachFenced(t, func(t *testing.T, x *fencedTest) {
		l := x.on(t)
		last := int64(0)
		for _, tt := range tokenCases {
			t.Run(tt.name, func(t *testing.T) {
				tt.run(t, x, l)
				require.Equal(t, last+tt.tokens, x.last(t))
				last += tt.tokens
				require.EqualValues(t, -1, x.rdb.PTTL(t.Context(), x.token).Val(), "the token key does not expire")
			})
		}
		info, err := l.Info(t.Context())
		require.NoError(t, err)
		require.Equal(t, "fenced", info.Kind)
	})
}

// Tokens rise in the order in which clients hold the lock.
func TestC14TokensRiseAcrossClients(t *testing.T) {
	t.Parallel()
	eachFenced(t, func(t *testing.T, x *fencedTest) {
		measured := redistest.Bar(t, x.s, 9)
		var last int64 // guarded by the lock
		n := redistest.Sized(x.s, redistest.Scaled(x.s, 40), 4000)
		var wg sync.WaitGroup
		for range 5 {
			l := x.on(t)
			wg.Go(func() {
				for range n {
					hold, err := l.Acquire(context.Background())
					if err != nil {
						t.Error(err)
						return
					}
					if hold.Token() != last+1 {
						t.Errorf("token %d after %d", hold.Token(), last)
					}
					last = hold.Token()
					if err := hold.Release(context.Background()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 5*n, last)
		measured("%d acquisitions by 5 clients, each token one more than the last", 5*n)
	})
}

// A token key of another type makes the acquisition fail. It is not overwritten.
func TestC14TokenKeyOfAnotherType(t *testing.T) {
	t.Parallel()
	eachFenced(t, func(t *testing.T, x *fencedTest) {
		l := x.on(t)
		require.NoError(t, x.rdb.LPush(t.Context(), x.token, "x").Err())
		for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("me")}} {
			_, err := l.Acquire(t.Context(), opts...)
			require.ErrorContains(t, err, "WRONGTYPE")
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
			require.Empty(t, fields(t, x.s, x.name))
		}
	})
}

// tokenUses acquire a fenced lock in all ways that reserve tokens.
var tokenUses = []struct {
	name       string
	goroutines int
	option     func(goroutine int) primitives.Option
	lost       float64 // how many replies are lost
}{
	{"one after another", 1, nil, 0},
	{"handed off", 8, nil, 0},
	{"in cohorts", 8, func(int) primitives.Option { return primitives.WithCohort(5 * time.Millisecond) }, 0},
	{"with owners", 4, func(n int) primitives.Option { return primitives.WithOwner(fmt.Sprint("owner ", n)) }, 0},
	{"with lost replies", 1, nil, 0.2},
	{"with owners and lost replies", 4, func(n int) primitives.Option {
		return primitives.WithOwner(fmt.Sprint("owner ", n))
	}, 0.2},
	{
		"in cohorts with lost replies", 8,
		func(int) primitives.Option { return primitives.WithCohort(5 * time.Millisecond) }, 0.2,
	},
}

// useTokens has goroutines acquire the lock, n times each. It returns the tokens in the order of the holds, and
// the errors.
func (x *fencedTest) useTokens(t *testing.T, use int, n int) (tokens []int64, errs []error) {
	u := tokenUses[use]
	p := x.s.Proxy(t)
	l := newClient(t, p.Client(t, quick)).FencedLock(x.name)
	if u.lost > 0 {
		p.DropRepliesRandomly(u.lost, 1, script)
		defer p.Heal()
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for g := range u.goroutines {
		var opts []primitives.Option
		if u.option != nil {
			opts = append(opts, u.option(g))
		}
		wg.Go(func() {
			for range n {
				hold, err := l.Acquire(context.Background(), opts...)
				mu.Lock()
				if err != nil {
					errs = append(errs, err)
				} else {
					tokens = append(tokens, hold.Token())
				}
				mu.Unlock()
				if err == nil {
					_ = hold.Release(context.Background()) // a lost reply may look like a lost hold
				}
			}
		})
	}
	wg.Wait()
	return tokens, errs
}

// C14: tokens are exact beyond 2^53, where numbers of Lua are not.
func TestC14TokensBeyond53Bits(t *testing.T) {
	t.Parallel()
	eachFenced(t, func(t *testing.T, x *fencedTest) {
		for i, use := range tokenUses {
			t.Run(use.name, func(t *testing.T) {
				for _, start := range []int64{1<<53 - 2, 1_700_000_000_000_000_000} {
					require.NoError(t, x.rdb.Set(t.Context(), x.token, start, 0).Err())
					tokens, errs := x.useTokens(t, i, redistest.Scaled(x.s, 20))
					for _, err := range errs {
						require.ErrorIs(t, err, primitives.ErrOutcomeUnknown) // all replies to one call were lost
					}
					last := start
					for _, token := range tokens {
						require.Greater(t, token, last)
						last = token
					}
					require.LessOrEqual(t, last, x.last(t))
					if use.goroutines == 1 {
						require.Equal(t, start+int64(len(tokens)), last)
					}
				}
			})
		}
	})
}

// C14: the last token is 2^63-1. Then each acquisition fails and leaves the lock free. Cohorts take single tokens
// when no block is left.
func TestC14LastToken(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t) // miniredis counts beyond the end
	for i, use := range tokenUses {
		if use.lost > 0 && use.goroutines > 1 {
			continue // a waiter whose reply was lost tries again a second later
		}
		t.Run(use.name, func(t *testing.T) {
			t.Parallel()
			for left := range int64(4) {
				x := &fencedTest{s: s, rdb: s.Client(t), name: redistest.Name(t)}
				x.token = "redisson_lock_token:{" + x.name + "}"
				require.NoError(t, x.rdb.Set(t.Context(), x.token, math.MaxInt64-left, 0).Err())
				tokens, errs := x.useTokens(t, i, 4)
				if use.lost == 0 {
					var want []int64
					for n := left; n > 0; n-- {
						want = append(want, math.MaxInt64-n+1)
					}
					require.Equal(t, want, tokens)
				}
				require.True(t, slices.IsSorted(tokens))
				require.Len(t, slices.Compact(tokens), len(tokens))
				for _, err := range errs {
					if use.lost == 0 || !errors.Is(err, primitives.ErrOutcomeUnknown) {
						require.ErrorContains(t, err, "the counter of fencing tokens "+x.token)
					}
					require.NotErrorIs(t, err, primitives.ErrNotAcquired)
				}
				require.EqualValues(t, math.MaxInt64, x.last(t))
				requireClean(t, s, x.name, x.token)
			}
		})
	}
}

// A counter that is no number makes acquisitions fail. A release that would hand the lock off frees it.
func TestC14CounterThatIsNoNumber(t *testing.T) {
	t.Parallel()
	eachFenced(t, func(t *testing.T, x *fencedTest) {
		c := newClient(t, x.s.Client(t))
		for _, counter := range []string{"abc", "1.5", "", " 1", "99999999999999999999", "-7777"} {
			t.Run(counter, func(t *testing.T) {
				require.NoError(t, x.rdb.Set(t.Context(), x.token, "1", 0).Err())
				l := c.FencedLock(x.name)
				hold := acquire(t, t.Context(), l)
				waiter := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
				awaitLocalWaiters(t, c, 1)
				require.NoError(t, x.rdb.Set(t.Context(), x.token, counter, 0).Err())
				release(t, hold)
				errs := []error{await(t, waiter).err}
				for _, opts := range [][]primitives.Option{nil, {tokenOwner}, {primitives.WithCohort(time.Second)}} {
					errs = append(errs, errOf(l.Acquire(t.Context(), opts...)))
				}
				for _, err := range errs {
					require.ErrorContains(t, err, "the counter of fencing tokens "+x.token)
					require.NotErrorIs(t, err, primitives.ErrNotAcquired)
				}
				require.Empty(t, fields(t, x.s, x.name))
				if counter != "-7777" {
					require.Equal(t, counter, x.rdb.Get(t.Context(), x.token).Val())
				}
				// Re-entry by an owner reads the counter.
				require.NoError(t, x.rdb.Set(t.Context(), x.token, "1", 0).Err())
				hold = acquire(t, t.Context(), l, tokenOwner)
				require.NoError(t, x.rdb.Set(t.Context(), x.token, counter, 0).Err())
				require.ErrorContains(t, errOf(l.Acquire(t.Context(), tokenOwner)), "the counter of fencing tokens")
				require.Equal(t, map[string]string{hold.ID(): "1"}, fields(t, x.s, x.name))
				release(t, hold)
			})
		}
	})
}
