package interop_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/interop/redisson"
	"github.com/redlatch/redlatch/primitives"
)

// electionInGo is a candidate of this library beside Redisson.
type electionInGo struct {
	*primitives.Election

	terms chan primitives.Term
	// resign makes lead return this error.
	resign chan error
	ended  chan error // the result of Run
}

// stand begins to stand for the election of w's name.
func (w *wire) stand() *electionInGo {
	w.t.Helper()
	client, err := primitives.New(w.rdb, primitives.WithClientName("host-1"))
	require.NoError(w.t, err)
	e := &electionInGo{
		client.Election(w.name), make(chan primitives.Term, 10), make(chan error), make(chan error, 1),
	}
	ctx, stop := context.WithCancel(w.ctx)
	go func() {
		e.ended <- e.Run(ctx, func(ctx context.Context, term primitives.Term) error {
			e.terms <- term
			select {
			case err := <-e.resign:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	w.t.Cleanup(func() {
		stop()
		require.NoError(w.t, client.Close(context.Background()))
	})
	return e
}

// term waits for the next term of e.
func (w *wire) term(e *electionInGo) primitives.Term {
	w.t.Helper()
	select {
	case term := <-e.terms:
		return term
	case err := <-e.ended:
		require.FailNow(w.t, "Run has returned", "%v", err)
	case <-w.ctx.Done():
		require.FailNow(w.t, "nobody was elected")
	}
	return primitives.Term{}
}

// errEnough is the error of a lead that ends its candidacy.
var errEnough = errors.New("enough")

// While Go leads, Java sees the fenced lock of that name held, cannot acquire it, and gets it as
// soon as the leader has ended. A plain lock of Redisson is on the same key.
func TestJavaBesideALeaderInGo(t *testing.T) {
	eachRedisson(t, func(t *testing.T, driver *redisson.Driver) {
		for kind, open := range map[string]func(w *wire) redisson.Lock{
			"fenced": func(w *wire) redisson.Lock { return w.client.FencedLock(w.name) },
			"lock":   func(w *wire) redisson.Lock { return w.client.Lock(w.name) },
		} {
			t.Run(kind, func(t *testing.T) {
				w := newWire(t, driver)
				e := w.stand()
				term := w.term(e)
				java := open(w)
				require.NoError(t, is(true)(java.On("A").IsLocked(w.ctx)))
				require.NoError(t, is(false)(java.On("A").IsHeld(w.ctx)))
				require.NoError(t, is(false)(java.On("A").TryLock(w.ctx)))
				require.NoError(t, is(false)(java.On("A").TryLockFor(w.ctx, shortWait, lease)))
				require.ErrorContains(t, java.On("A").Unlock(w.ctx), "IllegalMonitorStateException")
				ttl, err := java.On("A").TTL(w.ctx)
				require.NoError(t, err)
				require.Positive(t, ttl, "milliseconds")

				waiting := java.On("B").Go("lock")
				w.awaitSubscriber("redisson_lock__channel:{" + w.name + "}")
				e.resign <- errEnough
				resigned := time.Now()
				answer, err := waiting.Wait(w.ctx)
				require.NoError(t, err)
				require.Less(t, answer.End.Sub(resigned), soon)
				require.ErrorIs(t, <-e.ended, errEnough)
				if kind == "fenced" {
					token, err := java.On("B").Token(w.ctx)
					require.NoError(t, err)
					require.Greater(t, token, term.Token)
				}
				require.NoError(t, java.On("B").Unlock(w.ctx))
			})
		}
	})
}

// While a thread of Java holds the fenced lock, it is the leader for Go. Candidates in Go wait for
// it, lead soon after it has unlocked, and a greater token shows it.
func TestALeaderInJavaBesideGo(t *testing.T) {
	eachRedisson(t, func(t *testing.T, driver *redisson.Driver) {
		for name, end := range map[string]func(w *wire, java redisson.Lock) error{
			"unlock": func(w *wire, java redisson.Lock) error { return java.Unlock(w.ctx) },
			"forceUnlock": func(w *wire, java redisson.Lock) error {
				return is(true)(java.ForceUnlock(w.ctx))
			},
		} {
			t.Run(name, func(t *testing.T) {
				w := newWire(t, driver)
				java := w.client.FencedLock(w.name).On("A")
				token, err := java.LockAndGetToken(w.ctx)
				require.NoError(t, err)
				e := w.stand()
				leader, err := e.Leader(w.ctx)
				require.NoError(t, err)
				require.Equal(t, []any{w.id("A"), token, ""}, []any{leader.ID, leader.Token, leader.Client})
				w.awaitSubscriber("redisson_lock__channel:{" + w.name + "}")
				require.Empty(t, e.terms)

				watching, stop := context.WithCancel(w.ctx)
				defer stop()
				seen := make(chan primitives.Leader, 100)
				go func() {
					defer close(seen)
					for leader, err := range e.Watch(watching) {
						if err != nil {
							t.Error(err)
						}
						seen <- leader
					}
				}()
				require.Equal(t, w.id("A"), (<-seen).ID)
				require.NoError(t, end(w, java))
				unlocked := time.Now()
				term := w.term(e)
				require.Less(t, time.Since(unlocked), soon)
				require.Greater(t, term.Token, token)
				for leader := range seen {
					if leader.ID == term.Hold.ID() {
						break
					}
				}
				stop()

				// The candidate in Go stands again and again, but it leaves Java its turn.
				waiting, ended := java.Go("lock"), make(chan error, 1)
				go func() { ended <- w.await(waiting) }()
				for leads := false; !leads; {
					select {
					case e.resign <- nil:
					case <-e.terms:
					case err := <-ended:
						require.NoError(t, err)
						leads = true
					}
				}
				token, err = java.Token(w.ctx)
				require.NoError(t, err)
				require.NoError(t, java.Unlock(w.ctx))
				for again := w.term(e); again.Token < token; again = w.term(e) { // earlier ones
				}
				e.resign <- errEnough
				require.ErrorIs(t, <-e.ended, errEnough)
			})
		}
	})
}
