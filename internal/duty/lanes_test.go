package duty_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/redlatch/redlatch/internal/duty"
)

const (
	ms           = time.Millisecond
	attemptLimit = 5 * time.Second
	finishLimit  = 5 * time.Second
)

// client has the lanes of a test, and waits for its goroutines.
type client struct {
	*duty.Lanes
	running sync.WaitGroup
}

func newClient() *client {
	c := &client{}
	c.Lanes = duty.NewLanes(c.running.Go, attemptLimit)
	return c
}

// add adds a duty for a server that lasts until over.
func (c *client) add(
	t *testing.T, server string, over time.Time, do func(context.Context) duty.Answer,
) (first <-chan struct{}) {
	return c.Add(t.Context(), &duty.Duty{Do: do, Server: func() any { return server }, Due: time.Now(), Over: over})
}

// outage is a server that duties are sent to, in a test.
type outage struct {
	silent           atomic.Bool
	inFlight, most   atomic.Int64
	attempted, ended atomic.Int64
}

// do is the command of a duty. While the server is silent, no attempt is answered. Attempts that
// begin then are not answered later either.
func (o *outage) do(ctx context.Context) duty.Answer {
	o.attempted.Add(1)
	o.most.Store(max(o.most.Load(), o.inFlight.Add(1)))
	defer o.inFlight.Add(-1)
	if o.silent.Load() {
		<-ctx.Done()
		return duty.Silent
	}
	time.Sleep(ms)
	o.ended.Add(1)
	return duty.Done
}

func TestOutageCollectsDutiesAndNoAttempts(t *testing.T) {
	for _, length := range []time.Duration{2 * time.Second, time.Minute} {
		t.Run(length.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient()
				var dead, live outage
				dead.silent.Store(true)
				over := time.Now().Add(time.Hour)
				const rate = 200
				duties := int(length.Seconds()) * rate
				for range duties {
					c.add(t, "dead", over, dead.do)
					time.Sleep(time.Second / rate)
				}
				assert.LessOrEqual(t, dead.most.Load(), int64(duty.FirstAttempts+attemptLimit/duty.ProbePause+1))
				assert.Less(t, dead.attempted.Load(), 3*int64(length/time.Second)+duty.FirstAttempts)

				began := time.Now()
				<-c.add(t, "live", over, live.do)
				assert.Equal(t, int64(1), live.ended.Load())
				assert.Equal(t, ms, time.Since(began), "the other server's duties do not delay it")

				dead.silent.Store(false)
				time.Sleep(time.Second + ms*time.Duration(duties)/duty.MaxAttempts)
				assert.Equal(t, int64(duties), dead.ended.Load())
				assert.LessOrEqual(t, dead.most.Load(), int64(duty.MaxAttempts+attemptLimit/duty.ProbePause))
				assert.Zero(t, c.Len())
			})
		})
	}
}

// A duty that the server refuses is repeated at least once a second, and delays no other.
func TestDutyThatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient()
		began := time.Now()
		var refused, others atomic.Int64
		over := began.Add(10 * time.Second)
		for range 2 * duty.MaxAttempts {
			c.add(t, "x", over, func(context.Context) duty.Answer {
				refused.Add(1)
				return duty.Failed
			})
		}
		<-c.add(t, "y", over, func(context.Context) duty.Answer {
			others.Add(1)
			return duty.Done
		})
		assert.Zero(t, time.Since(began))
		assert.Equal(t, int64(1), others.Load())
		time.Sleep(10*time.Second + duty.LongestRetry)
		assert.Greater(t, refused.Load(), int64(2*duty.MaxAttempts*10))
		assert.Zero(t, c.Len(), "their time is over")
	})
}

func TestFinalAnswerEndsADuty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient()
		var attempts atomic.Int64
		<-c.add(t, "x", time.Now().Add(time.Hour), func(context.Context) duty.Answer {
			attempts.Add(1)
			return duty.Final
		})
		time.Sleep(time.Minute)
		assert.Equal(t, int64(1), attempts.Load())
		assert.Zero(t, c.Len())
	})
}

// The pauses between attempts double from FirstRetry to LongestRetry.
func TestPausesDouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient()
		began := time.Now()
		var at []time.Duration
		c.add(t, "x", began.Add(3*time.Second), func(context.Context) duty.Answer {
			at = append(at, time.Since(began))
			return duty.Failed
		})
		time.Sleep(5 * time.Second)
		c.running.Wait()
		assert.Zero(t, c.Len(), "its time is over")
		assert.Equal(t, []time.Duration{0, 20 * ms, 60 * ms, 140 * ms, 300 * ms, 620 * ms, 1260 * ms, 2260 * ms}, at)
	})
}

// Duties that were never tried are dropped, too, when their time is over. No attempt lasts longer
// than that.
func TestDutiesEndWithTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient()
		began := time.Now()
		var o outage
		o.silent.Store(true)
		var firsts []<-chan struct{}
		for i := range 1000 {
			firsts = append(firsts, c.add(t, "x", began.Add(time.Duration(20+i%2)*time.Second), o.do))
		}
		assert.Equal(t, 1, c.Len())
		time.Sleep(21*time.Second + ms)
		assert.Zero(t, c.Len())
		awaitAll(firsts)
		assert.Zero(t, o.inFlight.Load())
		assert.Less(t, o.attempted.Load(), int64(100))
	})
}

// awaitAll waits until the first attempts at all duties are over.
func awaitAll(firsts []<-chan struct{}) {
	for _, first := range firsts {
		<-first
	}
}

// A duty whose time is over is dropped even if others, which last, are before it.
func TestDutiesEndWithTheirTimeBehindOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient()
		began := time.Now()
		var o outage
		o.silent.Store(true)
		for range 1000 {
			c.add(t, "x", began.Add(time.Hour), o.do)
		}
		var firsts []<-chan struct{}
		for range 1000 {
			firsts = append(firsts, c.add(t, "x", began.Add(20*time.Second), o.do))
		}
		awaitAll(firsts)
		assert.LessOrEqual(t, time.Since(began), 20*time.Second+duty.SweepPause)
		assert.Less(t, o.attempted.Load(), int64(1000))
		c.Finish(0)
	})
}

// Dropped duties do not change the order of the others.
func TestDutiesKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient()
		began := time.Now()
		at := map[string]time.Duration{}
		add := func(name string, due, over time.Duration) {
			c.Add(t.Context(), &duty.Duty{Server: func() any { return "x" }, Due: began.Add(due), Over: began.Add(over),
				Do: func(context.Context) duty.Answer {
					at[name] = time.Since(began)
					return duty.Done
				}})
		}
		add("over", 11*time.Second, 10*time.Second)
		add("second", 30*time.Second, time.Hour)
		add("first", 20*time.Second, time.Hour)
		time.Sleep(time.Minute)
		c.running.Wait()
		assert.Zero(t, c.Len())
		assert.Equal(t, map[string]time.Duration{"first": 20 * time.Second, "second": 30 * time.Second}, at)
	})
}

// An attempt ends with the time of its duty.
func TestAttemptEndsWithItsDuty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient()
		var o outage
		o.silent.Store(true)
		began := time.Now()
		<-c.add(t, "x", began.Add(time.Second), o.do)
		assert.Equal(t, time.Second, time.Since(began))
	})
}

// While attempts fail without an answer, there is one at a time.
func TestOneAttemptAtATimeWithoutAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient()
		var o outage
		for range 100 {
			c.add(t, "x", time.Now().Add(time.Hour), func(context.Context) duty.Answer {
				o.most.Store(max(o.most.Load(), o.inFlight.Add(1)))
				defer o.inFlight.Add(-1)
				time.Sleep(100 * ms)
				return duty.Silent
			})
		}
		time.Sleep(100 * ms)
		synctest.Wait()
		assert.Equal(t, int64(duty.FirstAttempts), o.most.Swap(0))
		time.Sleep(5 * time.Second)
		assert.Equal(t, int64(1), o.most.Load())
		c.Finish(finishLimit)
	})
}

// When a server answers again, attempts that were stuck are made again at once. Younger ones go on.
func TestStuckAttemptsBeginAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient()
		over := time.Now().Add(time.Hour)
		var attempts, young atomic.Int64
		c.add(t, "x", over, func(ctx context.Context) duty.Answer {
			if attempts.Add(1) > 1 {
				return duty.Done
			}
			<-ctx.Done()
			return duty.Silent
		})
		time.Sleep(duty.ProbePause - ms)
		first := c.add(t, "x", over, func(ctx context.Context) duty.Answer {
			young.Add(1)
			select {
			case <-ctx.Done():
				return duty.Silent
			case <-time.After(time.Second):
				return duty.Done
			}
		})
		time.Sleep(ms)
		var live outage
		for range duty.FirstAttempts - 2 {
			c.add(t, "x", over, live.do)
		}
		time.Sleep(ms)
		synctest.Wait()
		assert.Equal(t, int64(2), attempts.Load())
		<-first
		assert.Equal(t, int64(1), young.Load())
		assert.Zero(t, c.Len())
	})
}

// Finish makes one more attempt at each duty. It waits for a silent server no longer than for a
// command.
func TestFinishMakesTheLastAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient()
		began := time.Now()
		var dead, live outage
		dead.silent.Store(true)
		for range 1000 {
			c.add(t, "dead", began.Add(time.Hour), dead.do)
			c.add(t, "live", began.Add(time.Hour), live.do)
		}
		c.Finish(finishLimit)
		c.running.Wait()
		assert.Equal(t, int64(1000), live.ended.Load())
		assert.LessOrEqual(t, time.Since(began), finishLimit)
		assert.Zero(t, dead.inFlight.Load())
		<-c.add(t, "late", began.Add(time.Hour), live.do)
		assert.Equal(t, int64(1000), live.ended.Load(), "too late")
	})
}

// Finish waits for nothing but the last attempts.
func TestFinishReturnsAtOnce(t *testing.T) {
	for _, tt := range []struct {
		name         string
		duties       int
		before       time.Duration // how long before Finish they were added
		answer, then duty.Answer   // before Finish, and later
		after        time.Duration // how long an attempt takes

		attempts int64 // that Finish makes
		takes    time.Duration
	}{
		{name: "no duties"},
		{
			name: "the server refuses", duties: 200, before: 10 * time.Second,
			answer: duty.Failed, then: duty.Failed, attempts: 200,
		},
		{name: "the server was silent", duties: 5, before: 10 * time.Second, answer: duty.Silent, then: duty.Silent},
		{
			name: "the server was silent, and duties were never tried", duties: 20, before: 500 * ms,
			answer: duty.Silent, then: duty.Done, after: 400 * ms, attempts: 20 - duty.FirstAttempts - 1, takes: 1500 * ms,
		},
		{
			name: "the server is silent now", duties: 100, then: duty.Silent, after: 400 * ms,
			attempts: duty.FirstAttempts, takes: 400 * ms,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient()
				var attempts atomic.Int64
				var finishing atomic.Bool
				for range tt.duties {
					c.add(t, "x", time.Now().Add(time.Hour), func(context.Context) duty.Answer {
						attempts.Add(1)
						time.Sleep(tt.after)
						if finishing.Load() {
							return tt.then
						}
						return tt.answer
					})
				}
				if tt.before > 0 {
					time.Sleep(tt.before)
					synctest.Wait()
					attempts.Store(0)
				}
				began := time.Now()
				finishing.Store(true)
				if tt.duties > 0 {
					c.add(t, "another server", time.Now().Add(time.Hour), (&outage{}).do)
				}
				c.Finish(time.Hour)
				assert.Equal(t, max(tt.takes, ms*time.Duration(min(tt.duties, 1))), time.Since(began))
				c.running.Wait()
				assert.Equal(t, tt.attempts, attempts.Load())
				assert.Zero(t, c.Len())
				<-c.add(t, "x", time.Now().Add(time.Hour), nil)
			})
		})
	}
}

// A stuck attempt was not the last one of its duty.
func TestFinishRepeatsStuckAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient()
		over := time.Now().Add(time.Hour)
		var attempts atomic.Int64
		c.add(t, "x", over, func(ctx context.Context) duty.Answer {
			if attempts.Add(1) > 1 {
				return duty.Done
			}
			<-ctx.Done()
			return duty.Silent
		})
		time.Sleep(duty.ProbePause)
		c.add(t, "x", over, (&outage{}).do)
		c.Finish(finishLimit)
		assert.Equal(t, int64(2), attempts.Load())
		assert.Zero(t, c.Len())
	})
}

// A stuck attempt that ends after Finish does not begin anew.
func TestStuckAttemptEndsAfterFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient()
		over := time.Now().Add(time.Hour)
		var attempts atomic.Int64
		c.add(t, "x", over, func(ctx context.Context) duty.Answer {
			attempts.Add(1)
			<-ctx.Done()
			time.Sleep(time.Second)
			return duty.Silent
		})
		time.Sleep(duty.ProbePause)
		<-c.add(t, "x", over, func(context.Context) duty.Answer { return duty.Done })
		c.Finish(ms)
		c.running.Wait()
		assert.Equal(t, int64(1), attempts.Load())
		assert.Zero(t, c.Len())
	})
}
