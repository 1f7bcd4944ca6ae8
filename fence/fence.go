package fence

import (
	"errors"
	"fmt"
)

// ErrStale is the error of a writer that came too late: a holder with a greater token has been
// there. Nothing was written. The writer must stop, because its lock is lost.
var ErrStale = errors.New("a later holder of the lock has written")

// stale returns the error of a stale writer.
func stale(resource string, token int64) error {
	return fmt.Errorf("fence: %q refuses token %d: %w", resource, token, ErrStale)
}

// check refuses a resource without a name, and a token that is not positive. Adopted holds, and
// holds of locks that are not fenced, have 0.
func check(resource string, token int64) error {
	switch {
	case resource == "":
		return errors.New("fence: a resource without a name")
	case token <= 0:
		return fmt.Errorf("fence: %q: %d is no fencing token: use the hold of a FencedLock", resource, token)
	}
	return nil
}
