//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// columns returns the width of a terminal; 0 if f is none, or does not know.
func columns(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// isClosed reports whether f was closed when this process started. Go's runtime has then opened the null device for
// reading and writing in its place; shells open the null device for writing only.
func isClosed(f *os.File) bool {
	var own, null unix.Stat_t
	if unix.Fstat(int(f.Fd()), &own) != nil || unix.Stat(os.DevNull, &null) != nil || own.Rdev != null.Rdev ||
		own.Mode&unix.S_IFMT != unix.S_IFCHR {
		return false
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_ACCMODE == unix.O_RDWR
}

// isTerminal reports whether f is a terminal. A character device such as /dev/null is none.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}
