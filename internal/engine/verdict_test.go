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
		{"it is granted", Result{Granted: true}, nil, Acquired, unknown},
		{"somebody holds it", Result{RetryAfter: lease}, nil, Refused, lease},
		{"somebody holds it for ever", Result{RetryAfter: Endless}, nil, Refused, Endless},
		{"Redis refuses for the moment", Result{RetryAfter: lease}, ErrBusy, RefusedForNow, 100 * time.Millisecond},
		{"Redis is not reached", Result{}, ErrDown, Unanswered, unknown},
		{"no answer comes", Result{Granted: true}, ErrNoAnswer, Unanswered, unknown},
		{"the key holds something else", Result{}, ErrFatal, Failed, unknown},
		{"the redis client is closed", Result{}, ErrStopped, Failed, unknown},
		{"the request has given up", Result{}, ErrNotAcquired, Failed, unknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			verdict := Judge(tt.res, tt.err)
			assert.Equal(t, tt.want, verdict)
			assert.Equal(t, tt.retryAfter, RetryAfter(verdict, tt.res))
		})
	}
}
