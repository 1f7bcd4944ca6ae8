package engine_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/enginetest"
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
		return Unanswered(ctx.Err())
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
			Bubble(t, func(t *testing.T, s *Server) {
				c := s.Client(t, "a", byFirstLetter)
				var dead, live outage
				dead.silent.Store(true)
				over := time.Now().Add(time.Hour)
				const rate = 200
				duties := int(length.Seconds()) * rate
				for i := range duties {
					c.Lock(fmt.Sprint("dead", i)).InBackground(t.Context(), over, 0, dead.do)
					Sleep(time.Second / rate)
				}
				assert.LessOrEqual(t, dead.most.Load(), int64(FirstAttempts+ReleaseTimeout/ProbePause+1))
				assert.Less(t, dead.attempted.Load(), 3*int64(length/time.Second)+FirstAttempts)

				began := s.Now()
				c.Lock("live").InBackground(t.Context(), over, time.Second, live.do)
				assert.Equal(t, int64(1), live.ended.Load())
				assert.Equal(t, ms, s.Now()-began, "the other server's duties do not delay it")

				dead.silent.Store(false)
				Sleep(time.Second + ms*time.Duration(duties)/MaxAttempts)
				assert.Equal(t, int64(duties), dead.ended.Load())
				assert.LessOrEqual(t, dead.most.Load(), int64(MaxAttempts+ReleaseTimeout/ProbePause))
				assert.Zero(t, c.Lanes())
			})
		})
	}
}

// A duty that Redis refuses is repeated at most a second apart, and delays no other.
func TestDutyThatIsRefused(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		var refused, others atomic.Int64
		over := time.Now().Add(10 * time.Second)
		for range 2 * MaxAttempts {
			c.Lock("x").InBackground(t.Context(), over, 0, func(context.Context) error {
				refused.Add(1)
				return ErrFatal
			})
		}
		c.Lock("y").InBackground(t.Context(), over, time.Second, func(context.Context) error {
			others.Add(1)
			return nil
		})
		assert.Zero(t, s.Now())
		assert.Equal(t, int64(1), others.Load())
		Sleep(10*time.Second + LongestRetry)
		assert.Greater(t, refused.Load(), int64(2*MaxAttempts*10))
		assert.Zero(t, c.Lanes(), "their time is over")
	})
}

// Duties that were never tried are dropped, too, when their time is over.
func TestDutiesEndWithTheirTime(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		var o outage
		o.silent.Store(true)
		for i := range 1000 {
			c.Lock("x").InBackground(t.Context(), time.Now().Add(time.Duration(20+i%2)*time.Second), 0, o.do)
		}
		Sleep(20*time.Second + SweepPause)
		require.Empty(t, c.Lanes())
		assert.Zero(t, o.inFlight.Load())
	})
}

// Close makes one more attempt at each duty. It waits for no server that is silent longer than for a command.
func TestCloseFinishesDuties(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a", byFirstLetter)
		var dead, live outage
		dead.silent.Store(true)
		for i := range 1000 {
			c.Lock(fmt.Sprint("dead", i)).InBackground(t.Context(), time.Now().Add(time.Hour), 0, dead.do)
			c.Lock(fmt.Sprint("live", i)).InBackground(t.Context(), time.Now().Add(time.Hour), 0, live.do)
		}
		require.NoError(t, c.Shut(t.Context()))
		assert.Equal(t, int64(1000), live.ended.Load())
		assert.LessOrEqual(t, s.Now(), CommandTimeout)
		assert.Zero(t, dead.inFlight.Load())
		c.Lock("late").InBackground(t.Context(), time.Now().Add(time.Hour), time.Hour, live.do)
		assert.Equal(t, int64(1000), live.ended.Load(), "too late")
	})
}
