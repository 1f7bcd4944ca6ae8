//go:build !unix

package main

import "os"

func columns(*os.File) int { return 0 }

// isTerminal reports whether f is a terminal, as far as the standard library knows.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
