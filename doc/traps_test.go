package doc_test

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// trap is the wrong and the right code of traps.md, in fake time. ctx ends after a minute of it.
type trap struct {
	ctx    context.Context
	rdb    *redis.Client
	client *primitives.Client
	lock   *primitives.Lock
}

// database is the part of a store that the page uses.
type database struct{ args []any }

func (d *database) Exec(_ context.Context, _ string, args ...any) error {
	d.args = args
	return nil
}

var errBusy = errors.New("busy")

// accounts is a transaction on a database with one number. It reads what others have committed, and
// its own sum is visible when it commits.
type accounts struct {
	committed *atomic.Int64
	sum       int64
}

func (a *accounts) add(n int64) error {
	a.sum = a.committed.Load() + n
	return nil
}

// transactionOn returns a function that runs transactions on a database. A commit takes a while.
func transactionOn(committed *atomic.Int64) func(context.Context, func(tx *accounts) error) error {
	return func(ctx context.Context, f func(tx *accounts) error) error {
		tx := &accounts{committed: committed}
		if err := f(tx); err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
		if err := ctx.Err(); err != nil {
			return err // it is rolled back
		}
		committed.Store(tx.sum)
		return nil
	}
}

func work(ctx context.Context) error { return ctx.Err() }

// report takes longer than ten seconds, and is too busy to look at its context.
func report(context.Context) error {
	time.Sleep(20 * time.Second)
	return nil
}

func inTrap(t *testing.T, name string, f func(t *testing.T, in *trap)) {
	t.Run(name, func(t *testing.T) {
		// The cleanup of a forgotten hold runs outside the bubble, and must not meet the bubble's
		// channels.
		defer debug.SetGCPercent(debug.SetGCPercent(-1))
		synctest.Test(t, func(t *testing.T) {
			rdb := redistest.Embedded(t).Client(t)
			client, err := primitives.New(rdb)
			require.NoError(t, err)
			// A waiter polls once a second. The deadline falls between two polls.
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute+500*time.Millisecond)
			defer cancel()
			f(t, &trap{ctx, rdb, client, client.Lock("orders:42")})
			over, end := context.WithCancel(context.Background())
			end()
			_ = client.Close(over) // waits for no hold
		})
	})
}

func TestTraps(t *testing.T) {
	inTrap(t, "a context with a timeout", func(t *testing.T, in *trap) {
		ctx, lock := in.ctx, in.lock
		wrong := func() (*primitives.Hold, error) {
			waiting, cancel := context.WithTimeout(ctx, 2*time.Second)
			hold, err := lock.Acquire(waiting)
			cancel() // hold.Context() ends here, before the work begins
			return hold, err
		}
		hold, err := wrong()
		require.NoError(t, err)
		require.ErrorIs(t, hold.Context().Err(), context.Canceled)
		require.NoError(t, hold.Release(ctx))
		right := func() (*primitives.Hold, error) {
			hold, err := lock.Acquire(ctx, primitives.WithWait(2*time.Second))
			return hold, err
		}
		hold, err = right()
		require.NoError(t, err)
		time.Sleep(3 * time.Second)
		require.NoError(t, hold.Context().Err())
	})

	inTrap(t, "the outer context", func(t *testing.T, in *trap) {
		ctx, lock := in.ctx, in.lock
		right := func() error {
			err := lock.Do(ctx, func(ctx context.Context) error {
				return lock.Do(ctx, work) // nests
			})
			return err
		}
		require.NoError(t, right())
		wrong := func() error {
			err := lock.Do(ctx, func(context.Context) error {
				return lock.Do(ctx, work) // waits for the lock that this goroutine holds
			})
			return err
		}
		require.ErrorIs(t, wrong(), primitives.ErrNotAcquired)
	})

	inTrap(t, "the error of a wait", func(t *testing.T, in *trap) {
		ctx, lock := in.ctx, in.lock
		require.NoError(t, errOf(lock.Acquire(ctx)))
		wrong := func() error {
			_, err := lock.Acquire(ctx, primitives.WithWait(time.Second))
			if errors.Is(err, context.DeadlineExceeded) { // never: ctx has not ended
				return errBusy
			}
			return err
		}
		require.NotErrorIs(t, wrong(), errBusy)
		right := func() error {
			_, err := lock.Acquire(ctx, primitives.WithWait(time.Second))
			if errors.Is(err, primitives.ErrNotAcquired) {
				return errBusy
			}
			return err
		}
		require.ErrorIs(t, right(), errBusy)
	})

	inTrap(t, "goroutines that outlive the section", func(t *testing.T, in *trap) {
		ctx, lock := in.ctx, in.lock
		var shipped sync.WaitGroup
		var ended error
		ship := func(ctx context.Context) {
			defer shipped.Done()
			time.Sleep(time.Second)
			ended = context.Cause(ctx)
		}
		wrong := func() error {
			err := lock.Do(ctx, func(ctx context.Context) error {
				go ship(ctx) // may run after the release
				return nil
			})
			return err
		}
		shipped.Add(1)
		require.NoError(t, wrong())
		shipped.Wait()
		require.ErrorIs(t, ended, primitives.ErrReleased)
		right := func() error {
			err := lock.Do(ctx, func(ctx context.Context) error {
				var tasks sync.WaitGroup
				tasks.Go(func() { ship(ctx) })
				tasks.Wait()
				return nil
			})
			return err
		}
		shipped.Add(1)
		require.NoError(t, right())
		require.NoError(t, ended)
	})

	inTrap(t, "a lease that is too short", func(t *testing.T, in *trap) {
		ctx, lock := in.ctx, in.lock
		wrong := func() error {
			err := lock.Do(ctx, report, primitives.WithLease(10*time.Second)) // report takes up to a minute
			return err
		}
		require.ErrorIs(t, wrong(), primitives.ErrLost)
		right := func() error {
			err := lock.Do(ctx, report, primitives.WithMaxHold(5*time.Minute))
			return err
		}
		require.NoError(t, right())
	})

	inTrap(t, "a store without tokens", func(t *testing.T, in *trap) {
		ctx, client, db, balance := in.ctx, in.client, &database{}, 100
		wrong := func() error {
			err := client.Lock("account:7").Do(ctx, func(ctx context.Context) error {
				return db.Exec(ctx, "UPDATE accounts SET balance = $1 WHERE id = 7", balance)
			})
			return err
		}
		require.NoError(t, wrong())
		right := func() error {
			account := client.FencedLock("account:7")
			err := account.Do(ctx, func(ctx context.Context) error {
				return db.Exec(ctx, "UPDATE accounts SET balance = $1, token = $2 WHERE id = 7 AND token <= $2",
					balance, account.HoldFrom(ctx).Token())
			})
			return err
		}
		require.NoError(t, right())
		require.Equal(t, []any{100, int64(1)}, db.args)
	})

	inTrap(t, "Init finds a count", func(t *testing.T, in *trap) {
		ctx, permits := in.ctx, in.client.PermitExpirableSemaphore("slots")
		require.NoError(t, errOf(permits.Init(ctx, 3)))
		wrong := func() error {
			_, err := permits.Init(ctx, 5) // the pool has 3 since the first deployment: it keeps them
			return err
		}
		require.NoError(t, wrong())
		info, err := permits.Info(ctx)
		require.NoError(t, err)
		require.Equal(t, 3, info.Permits)
		right := func() error {
			err := permits.Resize(ctx, 5)
			return err
		}
		require.NoError(t, right())
		info, err = permits.Info(ctx)
		require.NoError(t, err)
		require.Equal(t, 5, info.Permits)
	})

	inTrap(t, "a semaphore without a count", func(t *testing.T, in *trap) {
		ctx, client := in.ctx, in.client
		right := func() error {
			workers := client.Semaphore("workers")
			if _, err := workers.Init(ctx, 3); err != nil {
				return err
			}
			err := workers.Do(ctx, work)
			return err
		}
		require.NoError(t, right())
		require.NoError(t, errOf(client.Semaphore("workers").Delete(ctx)))
		wrong := func() error {
			err := client.Semaphore("workers").Do(ctx, work) // nobody has called Init
			return err
		}
		err := wrong()
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		require.ErrorContains(t, err, "the semaphore has no count: Init sets it")
	})

	inTrap(t, "one name for two kinds", func(t *testing.T, in *trap) {
		ctx, client := in.ctx, in.client
		wrong := func() (*primitives.Semaphore, *primitives.PermitExpirableSemaphore) {
			hour := client.Semaphore("reports")
			slot := client.PermitExpirableSemaphore("reports") // takes from the same number
			return hour, slot
		}
		right := func() (*primitives.Semaphore, *primitives.PermitExpirableSemaphore) {
			hour := client.Semaphore("reports:hour")
			slot := client.PermitExpirableSemaphore("reports:slot")
			return hour, slot
		}
		for _, open := range []func() (*primitives.Semaphore, *primitives.PermitExpirableSemaphore){wrong, right} {
			hour, slot := open()
			require.NoError(t, errOf(hour.Init(ctx, 1)))
			require.NoError(t, errOf(slot.Init(ctx, 1)))
			require.NoError(t, errOf(hour.TryAcquire(ctx)))
			_, err := slot.TryAcquire(ctx)
			if hour.Name() == slot.Name() {
				require.ErrorIs(t, err, primitives.ErrNotAcquired)
			} else {
				require.NoError(t, err)
			}
		}
	})

	inTrap(t, "an error of the section that looks like a refusal", func(t *testing.T, in *trap) {
		ctx, client := in.ctx, in.client
		orders, ledger := client.Lock("orders:1"), client.Lock("ledger")
		held, err := client.Lock("ledger").Acquire(ctx)
		require.NoError(t, err)
		skipped := false
		skip := func() error { skipped = true; return nil }
		book := work
		wrong := func() error {
			err := orders.Do(ctx, func(ctx context.Context) error {
				return ledger.Do(ctx, book, primitives.WithWait(0))
			})
			if errors.Is(err, primitives.ErrNotAcquired) {
				return skip() // perhaps of the ledger: the order is half done
			}
			return err
		}
		require.NoError(t, wrong())
		require.True(t, skipped, "although the section has run")
		right := func() error {
			ran, err := orders.TryDo(ctx, func(ctx context.Context) error {
				return ledger.Do(ctx, book, primitives.WithWait(0))
			})
			if !ran && err == nil {
				return skip() // of the orders: nothing was begun
			}
			return err
		}
		skipped = false
		err = right()
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		require.False(t, skipped)
		failed, ok := errors.AsType[*primitives.Error](err)
		require.True(t, ok)
		require.Equal(t, "ledger", failed.Name)
		require.NoError(t, held.Release(ctx))
	})

	inTrap(t, "keys of other libraries", func(t *testing.T, in *trap) {
		ctx, client, rdb := in.ctx, in.client, in.rdb
		wrong := func() error {
			rdb.SetNX(ctx, "nightly", "the lock of another library", time.Minute)
			_, err := client.Lock("nightly").Acquire(ctx) // WRONGTYPE, at once
			return err
		}
		err := wrong()
		require.ErrorContains(t, err, "WRONGTYPE")
		require.NotErrorIs(t, err, primitives.ErrNotAcquired)
		right := func() (*primitives.Client, error) {
			client, err := primitives.New(rdb, primitives.WithPrefix("redlatch:"))
			return client, err
		}
		prefixed, err := right()
		require.NoError(t, err)
		require.NoError(t, prefixed.Lock("nightly").Do(ctx, work))
		require.NoError(t, prefixed.Close(ctx))
	})

	inTrap(t, "a Locker and a request", func(t *testing.T, in *trap) {
		lock := in.lock
		require.NoError(t, errOf(lock.Acquire(in.ctx)))
		request, cancel := context.WithTimeout(in.ctx, time.Second)
		defer cancel()
		wrong := func() {
			mu := lock.Locker(request) // the context of one request
			mu.Lock()                  // panics if the client goes away
			defer mu.Unlock()
		}
		require.Panics(t, wrong)
		right := func() error {
			err := lock.Do(request, work)
			return err
		}
		require.ErrorIs(t, right(), primitives.ErrNotAcquired)
	})

	inTrap(t, "a lock inside the transaction", func(t *testing.T, in *trap) {
		ctx, lock := in.ctx, in.lock
		type transactions = func(ctx context.Context, f func(tx *accounts) error) error
		wrong := func(transaction transactions) error {
			err := transaction(ctx, func(tx *accounts) error { // commits when this function returns
				return lock.Do(ctx, func(context.Context) error {
					return tx.add(10) // the lock is released before the commit
				})
			})
			return err
		}
		right := func(transaction transactions) error {
			err := lock.Do(ctx, func(ctx context.Context) error {
				return transaction(ctx, func(tx *accounts) error {
					return tx.add(10)
				})
			})
			return err
		}
		sum := func(add func(transactions) error) int64 {
			var committed atomic.Int64
			var adding sync.WaitGroup
			for range 2 {
				adding.Go(func() {
					if err := add(transactionOn(&committed)); err != nil {
						t.Error(err)
					}
				})
			}
			adding.Wait()
			return committed.Load()
		}
		require.EqualValues(t, 10, sum(wrong), "one addition is lost")
		require.EqualValues(t, 20, sum(right))
	})

	inTrap(t, "keep the hold", func(t *testing.T, in *trap) {
		ctx, lock := in.ctx, in.lock
		s := &struct {
			held context.Context
			hold *primitives.Hold
		}{}
		right := func() error {
			hold, err := lock.Acquire(ctx)
			if err != nil {
				return err
			}
			s.hold = hold // released by s.Close
			return nil
		}
		require.NoError(t, right())
		time.Sleep(40 * time.Second)
		require.NoError(t, s.hold.Check(ctx), "it is renewed")
		require.NoError(t, s.hold.Release(ctx))
		wrong := func() error {
			hold, err := lock.Acquire(ctx)
			if err != nil {
				return err
			}
			s.held = hold.Context() // nothing refers to the hold after this function
			return nil
		}
		require.NoError(t, wrong()) // TestC17LeakedHoldInABubble tests what follows
		require.NoError(t, s.held.Err())
	})

	inTrap(t, "replication after the answer", func(t *testing.T, in *trap) {
		ctx, rdb := in.ctx, in.rdb
		right := func() (*primitives.Client, error) {
			client, err := primitives.New(rdb, primitives.WithReplicas(1, time.Second))
			return client, err
		}
		confirmed, err := right()
		require.NoError(t, err)
		require.ErrorIs(t, confirmed.Lock("orders:1").Do(ctx, work), primitives.ErrNotReplicated, "there is no replica")
		require.NoError(t, confirmed.Close(ctx))
	})
}

// errOf returns only the error of a call that returns two values.
func errOf[T any](_ T, err error) error { return err }
