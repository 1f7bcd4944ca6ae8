package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	. "github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// Each case is the reply to an attempt, and how soon another attempt is worth making without a
// message.
func TestVerdict(t *testing.T) {
	const lease, unknown = 3 * time.Second, time.Duration(-1)
	for _, tt := range []struct {
		name       string
		res        Result
		err        error
		want       Verdict
		retryAfter time.Duration
	}{
		{name: "it is granted", res: Result{Granted: true}, want: Acquired, retryAfter: unknown},
		{name: "somebody holds it", res: Result{RetryAfter: lease}, want: Refused, retryAfter: lease},
		{name: "somebody holds it for ever", res: Result{RetryAfter: Endless}, want: Refused, retryAfter: Endless},
		{
			name: "Redis refuses for the moment", res: Result{RetryAfter: lease}, err: ErrBusy, want: RefusedForNow,
			retryAfter: 100 * time.Millisecond,
		},
		{name: "Redis is not reached", err: ErrDown, want: Unanswered, retryAfter: unknown},
		{name: "no answer comes", res: Result{Granted: true}, err: ErrNoAnswer, want: Unanswered, retryAfter: unknown},
		{name: "the key holds something else", err: ErrFatal, want: Failed, retryAfter: unknown},
		{name: "the redis client is closed", err: ErrStopped, want: Failed, retryAfter: unknown},
		{name: "the request has given up", err: ErrNotAcquired, want: Failed, retryAfter: unknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			verdict := Judge(tt.res, tt.err)
			assert.Equal(t, tt.want, verdict)
			assert.Equal(t, tt.retryAfter, RetryAfter(verdict, tt.res))
		})
	}
}
