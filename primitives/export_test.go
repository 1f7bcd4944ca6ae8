package primitives

import "time"

// SharedReleaseRepeats is how long a release of a shared id is repeated.
func SharedReleaseRepeats(l *Lock) time.Duration { return l.c.run.Repeatable() }
