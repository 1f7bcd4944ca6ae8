//go:build !unix

package measure

import "time"

// CPU returns 0: processor time is unknown on this system.
func CPU() time.Duration { return 0 }
