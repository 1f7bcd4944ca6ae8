package gocronlock_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/gocronlock"
	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

func client(t testing.TB, s *locktest.Server) *primitives.Client {
	t.Helper()
	c, err := primitives.New(s.Client(t))
	require.NoError(t, err)
	t.Cleanup(func() {
		done, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Close(done) // does not wait for holds
	})
	return c
}

// schedule starts a scheduler with one job, "report", which is due every minute from first on.
func schedule(t *testing.T, first time.Time, job func(), opts ...gocron.SchedulerOption) gocron.Scheduler {
	t.Helper()
	s, err := gocron.NewScheduler(opts...)
	require.NoError(t, err)
	_, err = s.NewJob(gocron.DurationJob(time.Minute), gocron.NewTask(job), gocron.WithName("report"),
		gocron.WithStartAt(gocron.WithStartDateTime(first)))
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { _ = s.Shutdown() })
	return s
}

// Three schedulers, whose clocks differ by up to 2 s, run a short job once a minute between them.
func TestJobRunsOnceDespiteClockSkew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		var runs atomic.Int64
		first := time.Now().Add(time.Minute)
		for i := range 3 {
			locker := gocronlock.NewLocker(client(t, s), 30*time.Second)
			schedule(t, first.Add(time.Duration(i)*time.Second), func() {
				runs.Add(1)
				time.Sleep(10 * time.Millisecond)
			}, gocron.WithDistributedLocker(locker))
		}
		time.Sleep(10*time.Minute + 30*time.Second)
		require.EqualValues(t, 10, runs.Load())
	})
}

// A job that takes longer than the TTL of its lock keeps it, and runs that come meanwhile are
// skipped.
func TestTheLockIsRenewedWhileAJobRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		var running, runs atomic.Int64
		var over atomic.Bool
		first := time.Now().Add(time.Minute)
		for range 2 {
			locker := gocronlock.NewLocker(client(t, s), 0, primitives.WithWatchdog(10*time.Second))
			schedule(t, first, func() {
				if over.Load() {
					return
				}
				if running.Add(1) > 1 {
					t.Error("two runs at once")
				}
				runs.Add(1)
				time.Sleep(150 * time.Second)
				running.Add(-1)
			}, gocron.WithDistributedLocker(locker))
		}
		time.Sleep(10 * time.Minute)
		over.Store(true)
		time.Sleep(5 * time.Minute) // gocron's Shutdown does not sleep while it waits for a job
		require.Positive(t, runs.Load())
		require.LessOrEqual(t, runs.Load(), int64(5))
	})
}

func TestLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		here, there := client(t, s), client(t, s)
		locker := gocronlock.NewLocker(here, time.Minute)
		lock, err := locker.Lock(t.Context(), "report")
		require.NoError(t, err)
		_, err = gocronlock.NewLocker(there, time.Minute).Lock(t.Context(), "report")
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		job := lock.(*gocronlock.Lock).Context()
		require.NoError(t, job.Err())

		require.NoError(t, lock.Unlock(t.Context()))
		require.ErrorIs(t, context.Cause(job), primitives.ErrReleased)
		time.Sleep(59 * time.Second)
		_, err = gocronlock.NewLocker(there, 0).Lock(t.Context(), "report")
		require.ErrorIs(t, err, primitives.ErrNotAcquired, "the minimum hold is not over")
		time.Sleep(2 * time.Second)
		lock, err = gocronlock.NewLocker(there, 0).Lock(t.Context(), "report")
		require.NoError(t, err)

		s.LoseName(t, "report")
		<-lock.(*gocronlock.Lock).Context().Done()
		require.ErrorIs(t, context.Cause(lock.(*gocronlock.Lock).Context()), primitives.ErrLost)
		require.ErrorIs(t, lock.Unlock(t.Context()), primitives.ErrLost)

		_, err = gocronlock.NewLocker(there, -1).Lock(t.Context(), "report")
		require.ErrorIs(t, err, primitives.ErrInvalid)
	})
}

// One of two schedulers runs all jobs. When its leadership is lost or given back, the other one
// goes on.
func TestOneSchedulerLeads(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s *locktest.Server, leader *gocronlock.Elector){
		"given back": func(t *testing.T, _ *locktest.Server, leader *gocronlock.Elector) {
			require.NoError(t, leader.Close(t.Context()))
		},
		"lost": func(t *testing.T, s *locktest.Server, _ *gocronlock.Elector) { s.LoseName(t, "leader") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := locktest.NewServer(t)
				var runs [2]atomic.Int64
				var electors [2]*gocronlock.Elector
				first := time.Now().Add(time.Minute)
				for i := range runs {
					electors[i] = gocronlock.NewElector(client(t, s), "leader")
					// The second scheduler comes first in each minute after the first one.
					at := first.Add(time.Duration(i) * 30 * time.Second)
					schedule(t, at, func() { runs[i].Add(1) }, gocron.WithDistributedElector(electors[i]))
				}
				time.Sleep(5*time.Minute + 15*time.Second)
				require.EqualValues(t, 5, runs[0].Load())
				require.Zero(t, runs[1].Load())
				end(t, s, electors[0])
				time.Sleep(5 * time.Minute)
				require.EqualValues(t, 5, runs[0].Load())
				require.EqualValues(t, 5, runs[1].Load())
			})
		})
	}
}

func TestElector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		here, there := gocronlock.NewElector(client(t, s), "leader"), gocronlock.NewElector(client(t, s), "leader")
		first, cancel := context.WithCancel(t.Context())
		require.NoError(t, here.IsLeader(first))
		cancel() // the leadership outlasts the call
		time.Sleep(time.Hour)
		require.NoError(t, here.IsLeader(t.Context()))
		require.ErrorIs(t, there.IsLeader(t.Context()), primitives.ErrNotAcquired)
		ended, end := context.WithCancelCause(t.Context())
		reason := errors.New("shutting down")
		end(reason)
		require.ErrorIs(t, there.IsLeader(ended), reason)

		s.Partition(true)
		time.Sleep(30 * time.Second)
		require.Error(t, here.IsLeader(t.Context()), "nobody can be sure to be the leader")
		s.Partition(false)
		if there.IsLeader(t.Context()) != nil { // either may lead after an outage
			here, there = there, here
		}
		require.NoError(t, there.IsLeader(t.Context()))
		require.ErrorIs(t, here.IsLeader(t.Context()), primitives.ErrNotAcquired)

		require.NoError(t, there.Close(t.Context()))
		require.NoError(t, there.Close(t.Context()))
		require.ErrorIs(t, there.IsLeader(t.Context()), primitives.ErrClosed)
		require.NoError(t, here.IsLeader(t.Context()), "at once")
		require.NoError(t, here.Close(t.Context()))
		time.Sleep(time.Minute) // go-redis ends the dials of the outage
	})
}

// While a scheduler leads, the others stand for election: the next one leads without a call of
// IsLeader. Their calls do not block.
func TestTheOthersStandForElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		c := client(t, s)
		electors := []*gocronlock.Elector{
			gocronlock.NewElector(client(t, s), "leader"),
			gocronlock.NewElector(c, "leader"),
			gocronlock.NewElector(c, "leader"), // of one client
		}
		require.NoError(t, electors[0].IsLeader(t.Context()))
		for _, e := range electors[1:] {
			began := time.Now()
			require.ErrorIs(t, e.IsLeader(t.Context()), primitives.ErrNotAcquired)
			require.LessOrEqual(t, time.Since(began), 50*time.Millisecond)
		}
		time.Sleep(time.Minute)
		require.NoError(t, electors[0].Close(t.Context()))
		time.Sleep(100 * time.Millisecond)
		leader, err := c.Election("leader").Leader(t.Context())
		require.NoError(t, err)
		require.Contains(t, leader.ID, c.ID())
		var leads []int
		for i, e := range electors[1:] {
			began := time.Now()
			err := e.IsLeader(t.Context())
			require.LessOrEqual(t, time.Since(began), 3*time.Second)
			if err == nil {
				leads = append(leads, i)
			} else {
				require.ErrorIs(t, err, primitives.ErrNotAcquired)
			}
		}
		require.Len(t, leads, 1)
		for _, e := range electors {
			require.NoError(t, e.Close(t.Context()))
		}
	})
}

// A candidacy that has ended with a permanent error fails the calls that wait for it. The next call
// stands again.
func TestAPermanentErrorIsNotRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		e := gocronlock.NewElector(client(t, s), "leader")
		require.NoError(t, s.Client(t).Set(t.Context(), "leader", "somebody's", 0).Err())
		for range 2 {
			require.ErrorIs(t, e.IsLeader(t.Context()), primitives.ErrForeign)
			synctest.Wait()
		}
		require.NoError(t, s.Client(t).Del(t.Context(), "leader").Err())
		require.NoError(t, e.IsLeader(t.Context()))
		require.NoError(t, e.Close(t.Context()))

		refused := gocronlock.NewElector(client(t, s), "leader", primitives.WithLease(-1))
		require.ErrorIs(t, refused.IsLeader(t.Context()), primitives.ErrInvalid)
		require.NoError(t, refused.Close(t.Context()))
	})
}

// A leader that Redis does not answer is closed within 5 s, and the error is told.
func TestALeaderIsClosedInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		e := gocronlock.NewElector(client(t, s), "leader")
		require.NoError(t, e.IsLeader(t.Context()))
		s.Partition(true)
		began := time.Now()
		require.ErrorIs(t, e.Close(t.Context()), primitives.ErrUnavailable)
		require.LessOrEqual(t, time.Since(began), 5*time.Second+100*time.Millisecond)
		s.Partition(false)
		time.Sleep(time.Minute) // go-redis ends the dials of the outage
	})
}

// inAnOutage runs f in fake time with an elector whose Redis does not answer.
func inAnOutage(t *testing.T, f func(t *testing.T, e *gocronlock.Elector)) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		e := gocronlock.NewElector(client(t, s), "leader")
		s.Partition(true)
		f(t, e)
		s.Partition(false)
		time.Sleep(time.Minute) // go-redis ends the dials of the outage
	})
}

// While Redis does not answer, the runs of many jobs wait for the same attempts, and Close for no
// more of them.
func TestManyJobsWaitTogether(t *testing.T) {
	inAnOutage(t, func(t *testing.T, e *gocronlock.Elector) {
		began := time.Now()
		var jobs sync.WaitGroup
		for range 20 {
			jobs.Go(func() {
				if err := e.IsLeader(t.Context()); !errors.Is(err, primitives.ErrUnavailable) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		require.NoError(t, e.Close(t.Context()))
		jobs.Wait()
		require.LessOrEqual(t, time.Since(began), 11*time.Second, "two attempts of 5 s each")
	})
}

// The end of one run's context fails no other run.
func TestOneEndedRunFailsNoOther(t *testing.T) {
	inAnOutage(t, func(t *testing.T, e *gocronlock.Elector) {
		ended := errors.New("this run has ended")
		var jobs sync.WaitGroup
		for _, limit := range []time.Duration{time.Second, 2 * time.Second, time.Minute} { // in this order
			ctx, cancel := context.WithTimeoutCause(t.Context(), limit, ended)
			defer cancel()
			jobs.Go(func() {
				if err := e.IsLeader(ctx); errors.Is(err, ended) != (limit < time.Minute) {
					t.Errorf("a run of %v: %v", limit, err)
				}
			})
			synctest.Wait()
		}
		jobs.Wait()
		require.NoError(t, e.Close(t.Context()))
	})
}

// Other schedulers only try, so neither the leadership nor the lock of a job lingers, although
// other locks of the client do.
func TestNothingLingers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, linger := locktest.NewServer(t), primitives.WithLinger(time.Minute)
		here, err := primitives.New(s.Client(t), primitives.WithDefaults(linger))
		require.NoError(t, err)
		defer func() { require.NoError(t, here.Close(t.Context())) }()
		there := client(t, s)
		for _, opts := range [][]primitives.Option{nil, {linger}} {
			leader, next := gocronlock.NewElector(here, "leader", opts...), gocronlock.NewElector(there, "leader")
			require.NoError(t, leader.IsLeader(t.Context()))
			require.NoError(t, leader.Close(t.Context()))
			require.NoError(t, next.IsLeader(t.Context()))
			require.NoError(t, next.Close(t.Context()))

			for _, c := range []*primitives.Client{here, there} {
				lock, err := gocronlock.NewLocker(c, 0, opts...).Lock(t.Context(), "report")
				require.NoError(t, err)
				require.NoError(t, lock.Unlock(t.Context()))
				opts = nil
			}
		}
	})
}

// Close gives the leadership back at once, although the locks of jobs have a minimum hold.
func TestALeadershipHasNoMinimumHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, hour := locktest.NewServer(t), primitives.WithMinHold(time.Hour)
		here, err := primitives.New(s.Client(t), primitives.WithDefaults(hour))
		require.NoError(t, err)
		defer func() { require.NoError(t, here.Close(t.Context())) }()
		for _, opts := range [][]primitives.Option{nil, {hour}} {
			leader, next := gocronlock.NewElector(here, "leader", opts...), gocronlock.NewElector(client(t, s), "leader")
			require.NoError(t, leader.IsLeader(t.Context()))
			require.NoError(t, leader.Close(t.Context()))
			require.NoError(t, next.IsLeader(t.Context()))
			require.NoError(t, next.Close(t.Context()))
		}
	})
}

// A process stands still until its lease is over. At the moment it goes on, the context of the
// leadership may not have ended yet. Nobody is told to lead then: another scheduler may lead by
// now.
func TestNobodyLeadsAfterTheLease(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			s := locktest.NewServer(t)
			c, err := primitives.New(s.Client(t), primitives.WithSafetyMargin(time.Second))
			require.NoError(t, err)
			elector := gocronlock.NewElector(c, "leader", primitives.WithWatchdog(3*time.Second))
			require.NoError(t, elector.IsLeader(t.Context()))
			s.Partition(true)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // when the lease is over, by this client's clock
			defer cancel()
			<-ctx.Done()
			require.Error(t, elector.IsLeader(context.Background()))
			s.Partition(false)
			require.NoError(t, elector.Close(t.Context()))
			require.NoError(t, c.Close(t.Context()))
			time.Sleep(time.Minute) // go-redis ends the dials of the outage
		})
	}
}
