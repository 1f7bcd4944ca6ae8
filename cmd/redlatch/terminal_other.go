//go:build !unix

package main

import "os"

// isTerminal reports whether f is a terminal, as far as the standard library knows.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// wasClosed: a closed file makes writes fail here.
func wasClosed(*os.File) bool { return false }
