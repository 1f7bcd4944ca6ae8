package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// Each case is the reply to an attempt, and how soon another attempt is worth making without a
// message.
func TestVerdict(t *testing.T) {
	const lease, unknown = 3 * time.Second, time.Duration(-1)
	for _, tt := range []struct {
		name       string
		res        engine.Result
		err        error
		want       engine.Verdict
		retryAfter time.Duration
	}{
		{name: "it is granted", res: engine.Result{Granted: true}, want: engine.Acquired, retryAfter: unknown},
		{name: "somebody holds it", res: engine.Result{RetryAfter: lease}, want: engine.Refused, retryAfter: lease},
		{name: "somebody holds it for ever", res: engine.Result{RetryAfter: engine.Endless}, want: engine.Refused,
			retryAfter: engine.Endless},
		{
			name: "Redis refuses for the moment", res: engine.Result{RetryAfter: lease}, err: ErrBusy,
			want:       engine.RefusedForNow,
			retryAfter: 100 * time.Millisecond,
		},
		{name: "Redis is not reached", err: ErrDown, want: engine.Unanswered, retryAfter: unknown},
		{name: "no answer comes", res: engine.Result{Granted: true}, err: ErrNoAnswer, want: engine.Unanswered,
			retryAfter: unknown},
		{name: "the key holds something else", err: ErrFatal, want: engine.Failed, retryAfter: unknown},
		{name: "the redis client is closed", err: ErrStopped, want: engine.Failed, retryAfter: unknown},
		{name: "the request has given up", err: engine.ErrNotAcquired, want: engine.Failed, retryAfter: unknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			verdict := engine.Judge(tt.res, tt.err)
			assert.Equal(t, tt.want, verdict)
			assert.Equal(t, tt.retryAfter, engine.RetryAfter(verdict, tt.res))
		})
	}
}
