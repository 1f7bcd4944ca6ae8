// Package lines collects what the examples print, for their tests.
package lines

import (
	"strings"
	"sync"
)

// Lines is a writer that keeps what was written. It is safe for concurrent use.
type Lines struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write keeps p.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// All are the lines that were written.
func (l *Lines) All() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSuffix(l.text.String(), "\n"), "\n")
}
