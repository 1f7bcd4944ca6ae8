package locktest_test

import (
	"context"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// A test with the README's lines passes in real time and in a bubble, whatever the code under test
// does with its locks. The link is still cut when the test ends.
func TestLinesOfTheReadme(t *testing.T) {
	// The runtime cleans up after a dropped hold outside of the bubble, and must not meet the
	// bubble's channels.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for name, begin := range map[string]func(t *testing.T, l *primitives.Lock){
		"a hold is never released":  func(t *testing.T, l *primitives.Lock) { acquire(t, l) },
		"a release after the end":   func(t *testing.T, l *primitives.Lock) { releaseLater(t, acquire(t, l)) },
		"Do, again after each loss": doUntilTheEnd,
		"a waiter": func(t *testing.T, l *primitives.Lock) {
			acquire(t, l)
			doUntilTheEnd(t, l)
		},
	} {
		t.Run(name, func(t *testing.T) {
			realAndFakeTime(t, func(t *testing.T) {
				// The README's lines, from here
				s := locktest.NewServer(t)
				client, _ := primitives.New(s.Client(t))
				t.Cleanup(func() { _ = client.Close(t.Context()) }) // t.Context() has ended: waits for no hold
				// ... your code acquires ...
				begin(t, client.Lock("orders:42", primitives.WithWatchdog(300*time.Millisecond)))
				s.LoseName(t, "orders:42") // the lock is lost: does your code stop?
				s.Partition(true)          // Redis is unreachable: does your code stop in time?
				// to here
				time.Sleep(700 * time.Millisecond) // holds are lost, and dials get no answer
			})
		})
	}
}

// In a bubble the link may be cut for minutes before the test ends.
func TestEndOfABubbleAfterALongPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		c := client(t, s.Client(t))
		doUntilTheEnd(t, c.Lock("orders:42"))
		s.Partition(true)
		time.Sleep(2 * time.Minute)
	})
}

// doUntilTheEnd runs code under a lock until t ends. It begins again after each loss.
func doUntilTheEnd(t *testing.T, l *primitives.Lock) {
	begun := make(chan struct{}, 1)
	go func() {
		for t.Context().Err() == nil {
			_ = l.Do(t.Context(), func(ctx context.Context) error {
				select {
				case begun <- struct{}{}:
				default:
				}
				<-ctx.Done()
				return context.Cause(ctx)
			}, primitives.WithWait(time.Second))
			select {
			case <-time.After(time.Millisecond):
			case <-t.Context().Done():
			}
		}
	}()
	select {
	case <-begun:
	case <-time.After(100 * time.Millisecond): // it waits
	}
}

// releaseLater releases a hold when t has ended, before its client is closed.
func releaseLater(t *testing.T, hold *primitives.Hold) {
	t.Cleanup(func() { _ = hold.Release(t.Context()) })
}

func TestTheReadmeHasTheseLines(t *testing.T) {
	page, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	_, lines, found := strings.Cut(string(page), "```go\ns := locktest.NewServer(t)\n")
	require.True(t, found)
	lines, _, _ = strings.Cut("s := locktest.NewServer(t)\n"+lines, "```")
	source, err := os.ReadFile("readme_test.go")
	require.NoError(t, err)
	_, tested, _ := strings.Cut(string(source), "lines, from here\n")
	tested, _, _ = strings.Cut(strings.TrimSpace(tested), "\n\t\t\t\t// to here\n")
	var want []string
	for line := range strings.Lines(tested) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "begin(") {
			want = append(want, line)
		}
	}
	require.Equal(t, want, strings.Split(strings.TrimSpace(lines), "\n"))
}
