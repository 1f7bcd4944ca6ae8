package torture

import (
	"context"
	"errors"
	"net"
	"slices"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/primitives"
)

// What an error says. A caller decides by errors.Is, and so do the checks.

// Classes of errors, beyond the names of the library's own.
const (
	isNotAcquired   = "not-acquired"
	isUnavailable   = "unavailable"
	isLost          = "lost"
	isNotHeld       = "not-held"
	isReleased      = "released"
	isUnknown       = "outcome-unknown"
	isForeign       = "foreign"
	isDeadlock      = "deadlock"
	isUnsupported   = "unsupported"
	isClosed        = "closed"
	isInvalid       = "invalid"
	isNotReplicated = "not-replicated"
	isEnded         = "context"   // the caller's context
	isTransport     = "transport" // no answer, or a broken connection
	isFull          = "oom"       // maxmemory is reached
	isOther         = "other"     // anything else, such as an error of a script
)

var classes = []struct {
	name string
	err  error
}{
	{isNotAcquired, primitives.ErrNotAcquired},
	{isUnavailable, primitives.ErrUnavailable},
	{isLost, primitives.ErrLost},
	{isNotHeld, primitives.ErrNotHeld},
	{isReleased, primitives.ErrReleased},
	{isUnknown, primitives.ErrOutcomeUnknown},
	{isForeign, primitives.ErrForeign},
	{isDeadlock, primitives.ErrDeadlock},
	{isUnsupported, primitives.ErrUnsupported},
	{isClosed, primitives.ErrClosed},
	{isInvalid, primitives.ErrInvalid},
	{isNotReplicated, primitives.ErrNotReplicated},
	{isEnded, context.Canceled},
	{isEnded, context.DeadlineExceeded},
	{isTransport, syscall.ECONNREFUSED},
	{isTransport, syscall.ECONNRESET},
	{isTransport, syscall.EPIPE},
	{isTransport, net.ErrClosed},
}

// classesOf returns what an error says; isOther if it says nothing that is known.
func classesOf(err error) (out []string) {
	if err == nil {
		return nil
	}
	for _, c := range classes {
		if errors.Is(err, c.err) {
			out = append(out, c.name)
		}
	}
	var network net.Error
	if errors.As(err, &network) && !slices.Contains(out, isEnded) { // the end of a context is a net.Error, too
		out = append(out, isTransport)
	}
	var reply redis.Error
	switch {
	case redis.IsOOMError(err):
		out = append(out, isFull)
	case redis.HasErrorPrefix(err, "BUSY"), redis.IsLoadingError(err), redis.IsReadOnlyError(err),
		redis.IsClusterDownError(err), redis.IsTryAgainError(err), redis.IsMasterDownError(err):
		out = append(out, isTransport) // no answer, says doc/contract.md, C7
	case len(out) == 0, errors.As(err, &reply) && !slices.Contains(out, isForeign):
		out = append(out, isOther)
	}
	return out
}

// failure returns what a record says about an error.
func failure(err error) (r record) {
	r.Outcome = outcomeOf(err)
	if err == nil {
		return r
	}
	r.Err, r.Is = err.Error(), classesOf(err)
	if loss, ok := errors.AsType[*primitives.LossError](err); ok {
		r.Reason, r.Silent = string(loss.Reason), loss.Silent
	}
	return r
}

func outcomeOf(err error) string {
	switch {
	case err == nil:
		return outcomeOK
	case errors.Is(err, primitives.ErrOutcomeUnknown):
		return outcomeUnknown
	case errors.Is(err, primitives.ErrLost):
		return outcomeLost
	case errors.Is(err, primitives.ErrNotAcquired):
		return outcomeBusy
	case errors.Is(err, primitives.ErrNotHeld):
		return outcomeAbsent
	}
	return outcomeFailed
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
