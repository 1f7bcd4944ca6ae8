package engine

import (
	"time"

	"github.com/redlatch/redlatch/internal/failure"
)

// Verdict is what the reply to an attempt means for a request that may wait. It is judged here and
// nowhere else. What follows from it differs:
//
//	                obtain, for the first attempt      waitOn, for a later one
//	Acquired        the acquisition has succeeded      the same
//	Refused         waits, or gives up if it may not   waits for the queue's next reason to try
//	RefusedForNow   waits, if the wait has an end      waits, and tries again after notNowPause
//	Unanswered      fails: Redis may not be there      waits, and tries again as the queue decides
//	Failed          fails                              fails
//
// [Resource.Try] has decided before whether a grant may be used, and whether the request is in
// doubt.
type Verdict uint8

// The verdicts.
const (
	Acquired      Verdict = iota // the request has what it asks for
	Refused                      // somebody else has it
	RefusedForNow                // Redis refuses every command for a reason that will pass soon, such as LOADING
	Unanswered                   // there was no answer, or Redis was not reached
	Failed                       // every further attempt would fail, too
)

// notNowPause is the pause after RefusedForNow.
const notNowPause = 100 * time.Millisecond

// Judge returns the verdict on the reply to an attempt.
func Judge(res Result, err error) Verdict {
	f := failure.Of(err)
	switch {
	case err == nil && res.Granted:
		return Acquired
	case err == nil:
		return Refused
	case f.NotNow:
		return RefusedForNow
	case f.Retry():
		return Unanswered
	}
	return Failed
}

// retryAfter returns how soon another attempt is worth making if no message comes before: when the
// lease of the holder ends, or after notNowPause. It is negative if that is unknown.
func (v Verdict) retryAfter(res Result) time.Duration {
	switch v {
	case Refused:
		return res.RetryAfter
	case RefusedForNow:
		return notNowPause
	default:
		return -1
	}
}
