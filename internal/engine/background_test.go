package engine

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// outage is a server that duties are sent to, in a test.
type outage struct {
	silent           atomic.Bool
	inFlight, most   atomic.Int64
	attempted, ended atomic.Int64
}

// do is the command of a duty. While the server is silent, no attempt is answered. Attempts that begin then are
// not answered later either.
func (o *outage) do(ctx context.Context) error {
	o.attempted.Add(1)
	o.most.Store(max(o.most.Load(), o.inFlight.Add(1)))
	defer o.inFlight.Add(-1)
	if o.silent.Load() {
		<-ctx.Done()
		return unanswered(ctx.Err())
	}
	time.Sleep(ms)
	o.ended.Add(1)
	return nil
}

// byFirstLetter makes the first letter of a name its server.
func byFirstLetter(config *Config) { config.Server = func(r *Resource) any { return r.Name[0] } }

func TestOutageCollectsDutiesAndNoAttempts(t *testing.T) {
	for _, length := range []time.Duration{2 * time.Second, time.Minute} {
		t.Run(length.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a", byFirstLetter)
				var dead, live outage
				dead.silent.Store(true)
				over := time.Now().Add(time.Hour)
				const rate = 200
				duties := int(length.Seconds()) * rate
				for i := range duties {
					c.lock(fmt.Sprint("dead", i)).inBackground(t.Context(), over, 0, dead.do)
					sleep(time.Second / rate)
				}
				assert.LessOrEqual(t, dead.most.Load(), int64(firstAttempts+releaseTimeout/probePause+1))
				assert.Less(t, dead.attempted.Load(), 3*int64(length/time.Second)+firstAttempts)

				began := s.now()
				c.lock("live").inBackground(t.Context(), over, time.Second, live.do)
				assert.Equal(t, int64(1), live.ended.Load())
				assert.Equal(t, ms, s.now()-began, "the other server's duties do not delay it")

				dead.silent.Store(false)
				sleep(time.Second + ms*time.Duration(duties)/maxAttempts)
				assert.Equal(t, int64(duties), dead.ended.Load())
				assert.LessOrEqual(t, dead.most.Load(), int64(maxAttempts+releaseTimeout/probePause))
				assert.Empty(t, c.duties.lanes)
			})
		})
	}
}

// A duty that Redis refuses is repeated at most a second apart, and delays no other.
func TestDutyThatIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		var refused, others atomic.Int64
		over := time.Now().Add(10 * time.Second)
		for range 2 * maxAttempts {
			c.lock("x").inBackground(t.Context(), over, 0, func(context.Context) error {
				refused.Add(1)
				return errFatal
			})
		}
		c.lock("y").inBackground(t.Context(), over, time.Second, func(context.Context) error {
			others.Add(1)
			return nil
		})
		assert.Zero(t, s.now())
		assert.Equal(t, int64(1), others.Load())
		sleep(10*time.Second + longestRetry)
		assert.Greater(t, refused.Load(), int64(2*maxAttempts*10))
		assert.Empty(t, c.duties.lanes, "their time is over")
	})
}

// Duties that were never tried are dropped, too, when their time is over.
func TestDutiesEndWithTheirTime(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		var o outage
		o.silent.Store(true)
		for i := range 1000 {
			c.lock("x").inBackground(t.Context(), time.Now().Add(time.Duration(20+i%2)*time.Second), 0, o.do)
		}
		sleep(20*time.Second + sweepPause)
		require.Empty(t, c.duties.lanes)
		assert.Zero(t, o.inFlight.Load())
	})
}

// Close makes one more attempt at each duty. It waits for no server that is silent longer than for a command.
func TestCloseFinishesDuties(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a", byFirstLetter)
		var dead, live outage
		dead.silent.Store(true)
		for i := range 1000 {
			c.lock(fmt.Sprint("dead", i)).inBackground(t.Context(), time.Now().Add(time.Hour), 0, dead.do)
			c.lock(fmt.Sprint("live", i)).inBackground(t.Context(), time.Now().Add(time.Hour), 0, live.do)
		}
		require.NoError(t, c.close(t.Context()))
		assert.Equal(t, int64(1000), live.ended.Load())
		assert.LessOrEqual(t, s.now(), testTimeout)
		assert.Zero(t, dead.inFlight.Load())
		c.lock("late").inBackground(t.Context(), time.Now().Add(time.Hour), time.Hour, live.do)
		assert.Equal(t, int64(1000), live.ended.Load(), "too late")
	})
}
