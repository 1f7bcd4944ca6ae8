package fence

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/fence"
	"github.com/redlatch/redlatch/primitives"
)

// writes is how many writes late writers try on each store, and stopped processes again. The
// nightly run has a million.
var writes = flag.Int("writes", 1000,
	"how many writes of late writers, and of stopped processes, are tried on each store")

func isStale(err error) bool { return errors.Is(err, fence.ErrStale) }

// check checks a token in a transaction of its own, which is committed if the token passes.
func check(ctx context.Context, of database, db *sql.DB, resource string, token int64) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	err = fence.SQL(of.dialect).Check(ctx, tx, resource, token)
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// Each database has one server for all of this.
func TestFences(t *testing.T) {
	for _, of := range databases {
		t.Run(of.name, func(t *testing.T) {
			t.Parallel()
			db, dsn := of.open(t)
			require.NoError(t, fence.SQL(of.dialect).Create(t.Context(), db))
			createPages(t, db)
			pages, addr := newSQLBook(of, db), startRedis(t)
			t.Run("tokens", func(t *testing.T) { testTokens(t, of, db) })
			t.Run("the row decides", func(t *testing.T) { testRow(t, of, db) })
			t.Run(lateWriters, func(t *testing.T) { testLateWriters(t, addr, pages) })
			t.Run(stoppedProcesses, func(t *testing.T) { testStoppedProcesses(t, of.name, dsn, addr, pages) })
		})
	}
	t.Run("redis", func(t *testing.T) { // package fence tests the rest
		t.Parallel()
		addr := startRedis(t)
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		defer func() { require.NoError(t, rdb.Close()) }()
		t.Run(lateWriters, func(t *testing.T) { testLateWriters(t, addr, redisBook{rdb}) })
		t.Run(stoppedProcesses, func(t *testing.T) { testStoppedProcesses(t, "redis", "", addr, redisBook{rdb}) })
	})
}

func testTokens(t *testing.T, of database, db *sql.DB) {
	for _, tt := range []struct {
		name        string
		first, then int64
		isStale     bool
	}{
		{"a greater one", 1, 2, false},
		{"the same one", 7, 7, false},
		{"a smaller one", 8, 7, true},
		{"the greatest one", math.MaxInt64 - 1, math.MaxInt64, false},
		{"one less than the greatest one", math.MaxInt64, math.MaxInt64 - 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.NoError(t, check(t.Context(), of, db, t.Name(), tt.first))
			err := check(t.Context(), of, db, t.Name(), tt.then)
			require.Equal(t, tt.isStale, errors.Is(err, fence.ErrStale), "%v", err)
			require.Equal(t, tt.isStale, err != nil)
			require.NoError(t, check(t.Context(), of, db, t.Name(), max(tt.first, tt.then)))
		})
	}
	t.Run("Create may be called again", func(t *testing.T) {
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				if err := fence.SQL(of.dialect).Create(t.Context(), db); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		require.NoError(t, check(t.Context(), of, db, t.Name(), 5))
		require.ErrorIs(t, check(t.Context(), of, db, t.Name(), 4), fence.ErrStale)
	})
	t.Run("a transaction that is rolled back leaves the fence", func(t *testing.T) {
		require.NoError(t, check(t.Context(), of, db, t.Name(), 1))
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, fence.SQL(of.dialect).Check(t.Context(), tx, t.Name(), 9))
		require.NoError(t, tx.Rollback())
		require.NoError(t, check(t.Context(), of, db, t.Name(), 2))
	})
	t.Run("names are data", func(t *testing.T) {
		names := []string{
			"a", "A", "a ", "ä", "a\x00", "\xff", "'; DROP TABLE redlatch_fences; --", `\`, "%", "$1", "?",
			strings.Repeat("x", 700), strings.Repeat("x", 699) + "y",
		}
		for i, name := range names {
			require.NoError(t, check(t.Context(), of, db, name, int64(1000-i)), "%q has a fence of its own", name)
			require.ErrorIs(t, check(t.Context(), of, db, name, 1), fence.ErrStale, name)
		}
	})
	t.Run("an invalid name or token", func(t *testing.T) {
		for _, err := range []error{
			check(t.Context(), of, db, "", 1),
			check(t.Context(), of, db, strings.Repeat("x", 701), 1),
			check(t.Context(), of, db, "x", 0),
			check(t.Context(), of, db, "x", -1),
		} {
			require.Error(t, err)
			require.NotErrorIs(t, err, fence.ErrStale)
		}
	})
}

// A transaction with a greater token is under way. A stale one waits for it, and is then refused;
// if it is rolled back, the other one passes.
func testRow(t *testing.T, of database, db *sql.DB) {
	for name, commits := range map[string]bool{"committed": true, "rolled back": false} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, check(t.Context(), of, db, name, 1))
			newer, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			require.NoError(t, fence.SQL(of.dialect).Check(t.Context(), newer, name, 9))
			result := make(chan error, 1)
			go func() { result <- check(t.Context(), of, db, name, 5) }()
			select {
			case err := <-result:
				require.FailNow(t, "the row is not locked", "%v", err)
			case <-time.After(100 * time.Millisecond):
			}
			if commits {
				require.NoError(t, newer.Commit())
				require.ErrorIs(t, <-result, fence.ErrStale)
			} else {
				require.NoError(t, newer.Rollback())
				require.NoError(t, <-result)
			}
		})
	}
}

// Writers lose their locks before they write, as if they had been stopped for longer than their
// leases, and go on. None of their writes comes after that of a later holder.
func testLateWriters(t *testing.T, addr string, pages book) {
	ctx, began := t.Context(), time.Now()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { require.NoError(t, rdb.Close()) }()
	client, err := primitives.New(rdb)
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close(context.Background())) }()
	var tried atomic.Int64
	var counts tally
	var writers sync.WaitGroup
	for i := range 2 * numberOfPages {
		page := pageName(lateWriters, i%numberOfPages)
		writers.Go(func() {
			lock := client.FencedLock(lockName(page))
			for tried.Add(1) <= int64(*writes) {
				hold, err := lock.Acquire(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				isStopped := rand.IntN(2) == 0
				if isStopped { // the next holder comes while this one has not written yet
					hold.Detach()
					_, _ = lock.ForceRelease(ctx)
					time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
				}
				err = pages.write(ctx, page, hold.Token())
				_ = hold.Release(ctx)
				counts.add(err)
				if err != nil && !isStale(err) {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	require.Positive(t, counts.written.Load())
	require.Positive(t, counts.refused.Load())
	checkWritten(t, pages, lateWriters, &counts)
	t.Logf("%d writes were tried, %d stale ones were refused, in %.0f s", counts.tried(), counts.refused.Load(),
		time.Since(began).Seconds())
}
