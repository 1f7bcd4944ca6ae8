package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Errors: the ones that users see, and the internal ones. Package failure says what the error of a
// command means.

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

// Loss is why a hold was lost. [Errors.Lost] makes the error of it.
type Loss struct {
	Reason   LossReason
	Resource *Resource
	ID       string
	Silent   time.Duration // how long the server confirmed nothing (expired), or the process stood still (paused)
	Refusal  error         // the server's last answer, if it refused the last renewal (expired)
	Members  []error       // why holds of members of a joint lock ended (members)
}

// errNoLease is the answer to Check and Extend of a hold of a plain semaphore.
var errNoLease = fmt.Errorf("%w: its permits have no holder and no lease in Redis; "+
	"use a PermitExpirableSemaphore", ErrUnsupported)

var (
	// errWaitOver is the cause of a context that ended with the wait, not with the caller's
	// context. Users see its text at most: see causeOf.
	errWaitOver = errors.New("the wait is over")
	// errOuterEnded: the outer hold ended before the nested acquisition got its turn or its answer.
	// The caller then acquires as an outermost request.
	errOuterEnded = errors.New("outer hold ended")
)

// errSiblingStuck says why a release is in doubt: a command of another hold has been under way for
// too long.
var errSiblingStuck = errors.New("no answer to a command of another hold of the same lock")

// errPanicked stands for the error of a command until it returns.
var errPanicked = errors.New("a hook of go-redis has panicked")

// mostLeft bounds how many holds the error of Close names.
const mostLeft = 3

// holdsLeft returns the error of Close if it stopped waiting, because of why, before all holds were
// released. left are the holds that Close has ended. If there are none, holdsLeft returns nil.
func holdsLeft(why error, left []*Hold) error {
	if len(left) == 0 {
		return nil
	}
	isMember := func(h *Hold) bool { return h.group != nil }
	if outer := slices.DeleteFunc(slices.Clone(left), isMember); len(outer) > 0 {
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
