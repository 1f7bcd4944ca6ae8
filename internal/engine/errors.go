package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Errors: the ones that users see, the classes of a driver's failures, and the internal ones.

// The errors that callers act upon. Package primitives exports and documents them.
var (
	ErrNotAcquired       = errors.New("not acquired")
	ErrLost              = errors.New("lost")
	ErrNotHeld           = errors.New("not held")
	ErrReleased    error = releasedError{}
	ErrDeadlock          = errors.New("would deadlock")
	ErrUnsupported       = errors.New("unsupported")
	ErrClosed            = errors.New("client closed")
	ErrInvalid           = errors.New("invalid")
	ErrUnavailable       = errors.New("Redis unavailable") //nolint:staticcheck // a name
)

// releasedError matches ErrNotHeld too: a hold that was released is not held.
type releasedError struct{}

func (releasedError) Error() string        { return "already released" }
func (releasedError) Is(target error) bool { return target == ErrNotHeld }

// LossReason says why a hold was lost. Package primitives documents the reasons.
type LossReason string

// The reasons of losses.
const (
	LossExpired LossReason = "expired"
	LossPaused  LossReason = "paused"
	LossGone    LossReason = "gone"
	LossForced  LossReason = "forced"
	LossLimit   LossReason = "limit"
	LossMembers LossReason = "members"
)

// Loss is why a hold was lost. [Config.Lost] makes the error of it.
type Loss struct {
	Reason   LossReason
	Resource *Resource
	ID       string
	Silent   time.Duration // expired: how long the server has confirmed nothing; paused: how long the process stood
	Refusal  error         // expired: the server's last answer, if it refused the last renewal
	Members  []error       // members: why holds of members of a joint lock ended
}

// errNoLease is the answer to Check and Extend of a hold of a plain semaphore.
var errNoLease = fmt.Errorf("%w: its permits have no holder and no lease in Redis; "+
	"use a PermitExpirableSemaphore", ErrUnsupported)

// Failure is the class of an error: whether the failed command may have been executed, and whether
// another attempt makes sense. Several may be true.
type Failure struct {
	InDoubt bool // the command may have been executed, or may still be: roll it back
	Retry   bool // the server was not reached, or refuses for the moment: a waiter keeps waiting
	NotNow  bool // the server refuses for a reason that will pass soon
	Closed  bool // the transport is closed for good: repetition in the background ends
	// Answered: the server has executed the last attempt, and refused it for good.
	Answered bool
	// Final: the server has answered, and would give every repetition the same answer, until a person changes
	// something: the key holds data of another program, or the user lacks a permission.
	Final bool
	// Denied: the server has stopped the command halfway, because the user lacks a permission. What the command had
	// written stays.
	Denied bool
	// Ended: the context of the command ended it, and no attempt of it had failed before. Silent is how long
	// it had waited for the answer by then.
	Ended  bool
	Silent time.Duration
}

// silentAfter is how long an attempt waits for its answer until the server counts as silent.
const silentAfter = 100 * time.Millisecond

// isOutage reports whether the failure says that the server does not answer: an attempt failed, or waited
// for long. grace is how much longer than its caller's time the attempt was allowed to wait.
func (f Failure) isOutage(grace time.Duration) bool {
	return f.Retry && !f.Answered && (!f.Ended || f.Silent-grace >= silentAfter)
}

var (
	// errWaitOver is the cause of a context that ended with the wait, not with the caller's context.
	// Users see its text at most: see GaveUp.
	errWaitOver = errors.New("the wait is over")
	// errOuterEnded: the outer hold ended before the nested acquisition got its turn or its answer. The
	// caller then acquires as an outermost request.
	errOuterEnded = errors.New("outer hold ended")
)

// errSiblingStuck is a reason to stop waiting for a command, for [Config.Unanswered].
var errSiblingStuck = errors.New("no answer to a command of another hold of the same lock")

// errPanicked is the error of a command before it returns.
var errPanicked = errors.New("a hook of go-redis has panicked")

// mostLeft bounds how many holds the error of Close names.
const mostLeft = 3

// holdsLeft is the error of Close when it stopped waiting, because of why, before all holds were released. left are
// the holds that Close has ended; nil if there are none.
func holdsLeft(why error, left []*Hold) error {
	if len(left) == 0 {
		return nil
	}
	if outer := slices.DeleteFunc(slices.Clone(left), (*Hold).isSilent); len(outer) > 0 {
		left = outer // members are named by their joint hold
	}
	var named []string
	for _, h := range left[:min(len(left), mostLeft)] {
		name := fmt.Sprintf("%s %q (%s)", h.r.Kind, h.r.Name, h.ID())
		named = append(named, strings.TrimSuffix(name, " ()"))
	}
	if more := len(left) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("and %d more", more))
	}
	holds := "1 hold was"
	if len(left) > 1 {
		holds = fmt.Sprintf("%d holds were", len(left))
	}
	return fmt.Errorf("%s not released: %s: %w", holds, strings.Join(named, ", "), why)
}
