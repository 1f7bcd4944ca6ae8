package redistest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
)

const (
	envFull = "REDLATCH_FULL" // not empty: bars run at full size
	envSkew = "REDLATCH_SKEW" // how far the clock of a miniredis is ahead of the clients', such as 1h or -1h
)

// Full reports whether the tests of the bars in doc/faults.md run at full size, because $REDLATCH_FULL is set.
func Full() bool { return os.Getenv(envFull) != "" }

// Sized returns n, or full if the bars run at full size and s is a real server. Miniredis runs scripts about a
// hundred times slower.
func Sized(s *Server, n, full int) int {
	if Full() && s.Mini() == nil {
		return full
	}
	return n
}

// Bar says that t measures a bar of doc/faults.md. If bars run at full size on s, a line is printed when t ends,
// with the time since this call and what the result of Bar was given: the size, and what was measured.
func Bar(t testing.TB, s *Server, number int) (measured func(format string, args ...any)) {
	began, what := time.Now(), ""
	if Full() && s.Mini() == nil {
		t.Cleanup(func() {
			result := "ok"
			if t.Failed() {
				result = "FAILED"
			}
			took := time.Since(began).Round(100 * time.Millisecond)
			fmt.Printf("bar %d  %-6s  %7v  %s: %s\n", number, result, took, t.Name(), what)
		})
	}
	return func(format string, args ...any) {
		what = fmt.Sprintf(format, args...)
		t.Log(what)
	}
}

// skew puts the clock of m ahead by $REDLATCH_SKEW for as long as t lasts. TTLs pass as ever.
func skew(t testing.TB, m *miniredis.Miniredis) {
	text := os.Getenv(envSkew)
	if text == "" {
		return
	}
	ahead, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	m.SetTime(time.Now().Add(ahead))
	ticks, stop := time.NewTicker(time.Millisecond), make(chan struct{})
	go func() {
		defer ticks.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticks.C:
				m.SetTime(time.Now().Add(ahead))
			}
		}
	}()
	t.Cleanup(func() { close(stop) })
}
