//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package watch

import (
	"context"
	"errors"
	"os"
)

// terminal is not supported on this system: watch writes JSON lines.
type terminal struct{ resized, ended chan os.Signal }

func isTerminal(_, _ *os.File) bool { return false }

func openTerminal(_, _ *os.File) (*terminal, error) { return nil, errors.ErrUnsupported }

func endBy(os.Signal)                                 {}
func (*terminal) restore()                            {}
func (*terminal) size() (columns, rows int)           { return 80, 24 }
func (*terminal) keys(_ context.Context, _ func(key)) {}
