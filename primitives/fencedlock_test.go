package primitives_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// tokenOwner is the id of a Java thread.
var tokenOwner = primitives.WithOwner("8a0a8ea4-7f4f-4b0e-8d2b-9d6c3a5f1e11:7")

// tokenCases acquire and release a lock in different ways. tokens is the number of tokens that each
// issues.
var tokenCases = []struct {
	name   string
	tokens int64
	run    func(t *testing.T, x *fixture.FencedTest, l *primitives.Lock)
}{
	{"an acquisition", 1, func(t *testing.T, x *fixture.FencedTest, l *primitives.Lock) {
		fixture.Release(t, x.Take(t, t.Context(), l))
	}},
	{"on another client", 1, func(t *testing.T, x *fixture.FencedTest, _ *primitives.Lock) {
		fixture.Release(t, x.Take(t, t.Context(), x.On(t)))
	}},
	{"nested acquisitions share a token", 1, func(t *testing.T, x *fixture.FencedTest, l *primitives.Lock) {
		outer := x.Take(t, t.Context(), l)
		inner := x.Take(t, outer.Context(), l)
		innermost := x.Take(t, inner.Context(), l)
		fixture.Release(t, outer, inner)
		require.Equal(t, outer.Token(), innermost.Token())
		fixture.Release(t, innermost)
	}},
	{"with an owner", 1, func(t *testing.T, x *fixture.FencedTest, l *primitives.Lock) {
		fixture.Release(t, x.Take(t, t.Context(), l, tokenOwner))
	}},
	{"holds of one owner share a token", 1, func(t *testing.T, x *fixture.FencedTest, l *primitives.Lock) {
		first := x.Take(t, t.Context(), l, tokenOwner)
		second := x.Take(t, t.Context(), x.On(t), tokenOwner)
		third := x.Take(t, first.Context(), l)
		require.Equal(t, first.Token(), second.Token())
		for _, hold := range []*primitives.Hold{first, third, second} {
			fixture.Release(t, hold)
		}
	}},
	{"a refused acquisition gets no token", 1, func(t *testing.T, x *fixture.FencedTest, l *primitives.Lock) {
		hold := x.Take(t, t.Context(), l)
		require.ErrorIs(t, fixture.ErrOf(x.On(t).TryAcquire(t.Context())), primitives.ErrNotAcquired)
		_, err := l.Acquire(t.Context(), tokenOwner, primitives.WithWait(20*time.Millisecond))
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		fixture.Release(t, hold)
	}},
	{"Java issues a token in between", 3, func(t *testing.T, x *fixture.FencedTest, l *primitives.Lock) {
		fixture.Release(t, x.Take(t, t.Context(), l))
		require.NoError(t, x.Rdb.Incr(t.Context(), x.Token).Err())
		fixture.Release(t, x.Take(t, t.Context(), l))
	}},
	{"after ForceRelease", 2, func(t *testing.T, x *fixture.FencedTest, l *primitives.Lock) {
		hold := x.Take(t, t.Context(), l)
		held := fixture.ForceRelease(t, l)
		require.True(t, held)
		next := x.Take(t, t.Context(), l)
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		fixture.Release(t, next)
	}},
	{"an adopted hold gets no token", 1, func(t *testing.T, x *fixture.FencedTest, l *primitives.Lock) {
		hold := x.Take(t, t.Context(), l)
		adopted := fixture.Adopt(t, l, hold.Detach())
		require.Zero(t, adopted.Token())
		fixture.Release(t, adopted)
	}},
	{"after a lease expired", 2, func(t *testing.T, x *fixture.FencedTest, l *primitives.Lock) {
		hold := x.Take(t, t.Context(), l, primitives.WithLease(fixture.ShortLease))
		next := x.Take(t, t.Context(), l)
		require.Greater(t, next.Token(), hold.Token())
		fixture.Release(t, next)
	}},
}

// C14: each outermost acquisition issues one token, greater than all before it. All cases share one
// lock.
func TestC14Token(t *testing.T) {
	t.Parallel()
	fixture.EachFenced(t, func(t *testing.T, x *fixture.FencedTest) {
		l := x.On(t)
		last := int64(0)
		for _, tt := range tokenCases {
			t.Run(tt.name, func(t *testing.T) {
				tt.run(t, x, l)
				require.Equal(t, last+tt.tokens, x.Last(t))
				last += tt.tokens
				require.EqualValues(t, -1, x.Rdb.PTTL(t.Context(), x.Token).Val(), "the token key does not expire")
			})
		}
		require.Equal(t, "fenced", fixture.InfoOf(t, l).Kind)
	})
}

// A counter that went backwards is logged once, with the greatest token that the client has got.
func TestC14LostCounterIsLogged(t *testing.T) {
	t.Parallel()
	fixture.EachFenced(t, func(t *testing.T, x *fixture.FencedTest) {
		var log fixture.LogBuffer
		l := fixture.NewClient(t, x.S.Client(t), log.Logger()).FencedLock(x.Name)
		backwards := func() []map[string]any { return log.Records(t, "fencing token went backwards") }
		var last, hold *primitives.Hold
		for range 2 {
			last = x.Take(t, t.Context(), l, tokenOwner)
			fixture.Release(t, x.Take(t, t.Context(), l, tokenOwner))
			fixture.Release(t, last)
			last = x.Take(t, t.Context(), l)
			fixture.Release(t, last)
		}
		require.NoError(t, x.Rdb.Del(t.Context(), x.Token).Err())
		for range 3 {
			hold = x.Take(t, t.Context(), l)
			fixture.Release(t, hold)
		}
		require.EqualValues(t, 3, hold.Token())
		require.Eventually(t, func() bool { return len(backwards()) > 0 }, 5*time.Second, time.Millisecond)
		records := backwards()
		require.Len(t, records, 1)
		require.Equal(t, "WARN", records[0]["level"])
		require.Equal(t, []any{"fenced", x.Name, 1.0, float64(last.Token())},
			[]any{records[0]["kind"], records[0]["name"], records[0]["token"], records[0]["earlier"]})
	})
}

// Tokens that rise are never logged, however they are reserved.
func TestC14RisingTokensAreNotLogged(t *testing.T) {
	t.Parallel()
	fixture.EachFenced(t, func(t *testing.T, x *fixture.FencedTest) {
		var log fixture.LogBuffer
		for use := range fixture.TokenUses {
			x.UseTokens(t, use, 20, log.Logger())
		}
		require.Empty(t, log.Records(t, "fencing token went backwards"))
	})
}

// Tokens rise in the order in which clients hold the lock.
func TestC14TokensRiseAcrossClients(t *testing.T) {
	t.Parallel()
	fixture.EachFenced(t, func(t *testing.T, x *fixture.FencedTest) {
		measured := redistest.Bar(t, x.S, 9)
		var last int64 // guarded by the lock
		n := redistest.Sized(x.S, redistest.Scaled(x.S, 40), 4000)
		var wg sync.WaitGroup
		for range 5 {
			l := x.On(t)
			wg.Go(func() {
				for range n {
					hold, err := l.Acquire(context.Background())
					if !assert.NoError(t, err) {
						return
					}
					if hold.Token() != last+1 {
						t.Errorf("token %d after %d", hold.Token(), last)
					}
					last = hold.Token()
					assert.NoError(t, hold.Release(context.Background()))
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
	fixture.EachFenced(t, func(t *testing.T, x *fixture.FencedTest) {
		l := x.On(t)
		require.NoError(t, x.Rdb.LPush(t.Context(), x.Token, "x").Err())
		for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("me")}} {
			_, err := l.Acquire(t.Context(), opts...)
			require.ErrorContains(t, err, "WRONGTYPE")
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
			require.Empty(t, fixture.Fields(t, x.S, x.Name))
		}
	})
}

// C14: tokens are exact beyond 2^53, where numbers of Lua are not.
func TestC14TokensBeyond53Bits(t *testing.T) {
	t.Parallel()
	fixture.EachFenced(t, func(t *testing.T, x *fixture.FencedTest) {
		for i, use := range fixture.TokenUses {
			t.Run(use.Name, func(t *testing.T) {
				for _, start := range []int64{1<<53 - 2, 1_700_000_000_000_000_000} {
					require.NoError(t, x.Rdb.Set(t.Context(), x.Token, start, 0).Err())
					tokens, errs := x.UseTokens(t, i, redistest.Scaled(x.S, 20))
					for _, err := range errs {
						require.ErrorIs(t, err, primitives.ErrOutcomeUnknown) // all replies to one call were lost
					}
					last := start
					for _, token := range tokens {
						require.Greater(t, token, last)
						last = token
					}
					require.LessOrEqual(t, last, x.Last(t))
					if use.Goroutines == 1 {
						require.Equal(t, start+int64(len(tokens)), last)
					}
				}
			})
		}
	})
}

// C14: the last token is 2^63-1. Then each acquisition fails and leaves the lock free. Cohorts take
// single tokens when no block is left.
func TestC14LastToken(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t) // miniredis counts beyond the end
	for i, use := range fixture.TokenUses {
		if use.Lost > 0 && use.Goroutines > 1 {
			continue // a waiter whose reply was lost tries again a second later
		}
		t.Run(use.Name, func(t *testing.T) {
			t.Parallel()
			for left := range int64(4) {
				x := &fixture.FencedTest{S: s, Rdb: s.Client(t), Name: redistest.Name(t)}
				x.Token = "redisson_lock_token:{" + x.Name + "}"
				require.NoError(t, x.Rdb.Set(t.Context(), x.Token, math.MaxInt64-left, 0).Err())
				tokens, errs := x.UseTokens(t, i, 4)
				if use.Lost == 0 {
					var want []int64
					for n := left; n > 0; n-- {
						want = append(want, math.MaxInt64-n+1)
					}
					require.Equal(t, want, tokens)
				}
				require.True(t, slices.IsSorted(tokens))
				require.Len(t, slices.Compact(tokens), len(tokens))
				for _, err := range errs {
					if use.Lost == 0 || !errors.Is(err, primitives.ErrOutcomeUnknown) {
						require.ErrorContains(t, err, "the counter of fencing tokens "+x.Token)
					}
					require.NotErrorIs(t, err, primitives.ErrNotAcquired)
				}
				require.Equal(t, int64(math.MaxInt64), x.Last(t))
				fixture.RequireClean(t, s, x.Name, x.Token)
			}
		})
	}
}

// A counter that is no number makes acquisitions fail. A release that would hand the lock off frees
// it.
func TestC14CounterThatIsNoNumber(t *testing.T) {
	t.Parallel()
	fixture.EachFenced(t, func(t *testing.T, x *fixture.FencedTest) {
		c := fixture.NewClient(t, x.S.Client(t))
		for _, counter := range []string{"abc", "1.5", "", " 1", "99999999999999999999", "-7777"} {
			t.Run(counter, func(t *testing.T) {
				require.NoError(t, x.Rdb.Set(t.Context(), x.Token, "1", 0).Err())
				l := c.FencedLock(x.Name)
				hold := fixture.Acquire(t, t.Context(), l)
				waiter := fixture.StartAcquire(t.Context(), l)
				fixture.AwaitWaiters(t, c, 1)
				require.NoError(t, x.Rdb.Set(t.Context(), x.Token, counter, 0).Err())
				fixture.Release(t, hold)
				errs := []error{fixture.Await(t, waiter).Err}
				for _, opts := range [][]primitives.Option{nil, {tokenOwner}, {primitives.WithCohort(time.Second)}} {
					errs = append(errs, fixture.ErrOf(l.Acquire(t.Context(), opts...)))
				}
				for _, err := range errs {
					require.ErrorContains(t, err, "the counter of fencing tokens "+x.Token)
					require.NotErrorIs(t, err, primitives.ErrNotAcquired)
				}
				require.Empty(t, fixture.Fields(t, x.S, x.Name))
				if counter != "-7777" {
					require.Equal(t, counter, x.Rdb.Get(t.Context(), x.Token).Val())
				}
				// Re-entry by an owner reads the counter.
				require.NoError(t, x.Rdb.Set(t.Context(), x.Token, "1", 0).Err())
				hold = fixture.Acquire(t, t.Context(), l, tokenOwner)
				require.NoError(t, x.Rdb.Set(t.Context(), x.Token, counter, 0).Err())
				require.ErrorContains(t, fixture.ErrOf(l.Acquire(t.Context(), tokenOwner)), "the counter of fencing tokens")
				require.Equal(t, map[string]string{hold.ID(): "1"}, fixture.Fields(t, x.S, x.Name))
				fixture.Release(t, hold)
			})
		}
	})
}
