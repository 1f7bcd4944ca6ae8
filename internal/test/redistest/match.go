package redistest

import (
	"slices"
	"strings"
)

// Match reports whether a fault applies to a command. args[0] is the command's
// name. A proxy does not call its Matches concurrently. A Match must not call
// the proxy.
type Match = func(args []string) bool

// Named matches commands by name, ignoring case.
func Named(names ...string) Match {
	return func(args []string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, args[0]) })
	}
}

// Mentions matches commands that have arg as an argument, such as a key or the
// SHA-1 of a script.
func Mentions(arg string) Match {
	return func(args []string) bool { return slices.Contains(args[1:], arg) }
}
