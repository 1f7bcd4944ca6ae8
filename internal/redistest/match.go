package redistest

import (
	"slices"
	"strings"
)

// Match chooses commands by their arguments, the name of the command first. A
// proxy calls its Matches one at a time; a Match must not call the proxy.
type Match = func(args []string) bool

// Any matches every command, those of the handshake included.
func Any([]string) bool { return true }

// Named matches commands by name, in whatever case.
func Named(names ...string) Match {
	return func(args []string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, args[0]) })
	}
}

// Mentions matches commands that have arg among their arguments: a key, or the
// SHA-1 of a script.
func Mentions(arg string) Match {
	return func(args []string) bool { return slices.Contains(args[1:], arg) }
}
