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

// do is the command of a duty. While the server is silent, no attempt is answered. Attempts that begin then are
// not answered later either.
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

// A duty that the server refuses is repeated at most a second apart, and delays no other.
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

// Duties that were never tried are dropped, too, when their time is over.
func TestDutiesEndWithTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient()
		var o outage
		o.silent.Store(true)
		for i := range 1000 {
			c.add(t, "x", time.Now().Add(time.Duration(20+i%2)*time.Second), o.do)
		}
		time.Sleep(20*time.Second + duty.SweepPause)
		assert.Zero(t, c.Len())
		assert.Zero(t, o.inFlight.Load())
	})
}

// Finish makes one more attempt at each duty. It waits for no server that is silent longer than for a command.
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
