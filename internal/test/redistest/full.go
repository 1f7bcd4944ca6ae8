package redistest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// Tests come in three sizes. By default they are small, for the minutes before a pull request. CI
// sets $REDLATCH_FULL, and runs all of them. $REDLATCH_NIGHTLY adds what takes an hour.
const (
	envFull    = "REDLATCH_FULL"    // not empty: all tests, as in CI
	envNightly = "REDLATCH_NIGHTLY" // not empty: the bars at full size, and tests that wait for minutes
	envSkew    = "REDLATCH_SKEW"    // how far the clock of a miniredis is ahead of the clients', such as 1h or -1h
)

// Full reports whether all tests run, because $REDLATCH_FULL or $REDLATCH_NIGHTLY is set. With
// -short it is false.
func Full() bool {
	return !testing.Short() && (os.Getenv(envFull) != "" || Nightly())
}

// Nightly reports whether the tests of the bars in tests/bars.md run at full size, because
// $REDLATCH_NIGHTLY is set.
func Nightly() bool { return os.Getenv(envNightly) != "" }

// NeedFull skips t unless all tests run. why says what t needs the time for.
func NeedFull(t testing.TB, why string) {
	t.Helper()
	if !Full() {
		t.Skipf("%s: set %s=1", why, envFull)
	}
}

// Alone reports whether t runs while no other test of its package does, so that it can count the
// goroutines of the process, and has the processors to itself. It does if all tests run. Otherwise
// Alone makes t parallel.
func Alone(t *testing.T) bool {
	if !Full() {
		t.Parallel()
	}
	return Full()
}

// NeedNightly skips t unless the bars run at full size. why says what t needs the time for.
func NeedNightly(t testing.TB, why string) {
	t.Helper()
	if !Nightly() {
		t.Skipf("%s: set %s=1", why, envNightly)
	}
}

// Scaled returns n if all tests run, and an eighth of it otherwise. On miniredis, which runs
// scripts about a hundred times slower than Redis, it is a twentieth of that.
func Scaled(s *Server, n int) int {
	if !Full() {
		n /= 8
	}
	if s.Mini() != nil {
		n /= 20
	}
	return max(n, 3)
}

// Sized returns n, or bar if the bars run at full size and s is a real server.
func Sized(s *Server, n, bar int) int {
	if Nightly() && s.Mini() == nil {
		return bar
	}
	return n
}

// Bar says that t measures a bar of tests/bars.md. If bars run at full size on s, a line is printed
// when t ends, with the time since this call and what the result of Bar was given: the size, and
// what was measured.
func Bar(t testing.TB, s *Server, number int) (measured func(format string, args ...any)) {
	began, what := time.Now(), ""
	if Nightly() && s.Mini() == nil {
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
