package primitives_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/fixture"
	"github.com/redlatch/redlatch/internal/kinds"
	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// No command carries a client's time. The server's clock stands still in another year, so what comes from it
// cannot be confused with a client's.
func TestC22CommandsCarryNoClientTime(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds.Leased() {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Miniredis(t)
			s.Mini().SetTime(time.Date(2001, time.February, 3, 4, 5, 6, 0, time.UTC))
			p := s.Proxy(t)
			c := NewClient(t, p.Client(t))
			p.Record()
			l := kind.One(t, c, "l")
			hold := Acquire(t, t.Context(), l)
			waiting := Start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
			if kind.Name == "fair" {
				redistest.WaitFor(t, Soon, func() bool {
					return slices.ContainsFunc(p.Commands(), func(c redistest.Command) bool {
						return len(c.Args) > 1 && c.Args[1] == scripts.Load("fairlock/refresh").SHA()
					})
				}, "a heartbeat is sent")
			}
			require.NoError(t, hold.Check(t.Context()))
			require.NoError(t, hold.Extend(t.Context(), time.Minute))
			Release(t, hold)
			Release(t, AwaitHold(t, waiting))
			today := strconv.FormatInt(time.Now().UnixMilli(), 10)[:5]
			for _, c := range p.Commands() {
				for _, arg := range c.Args {
					require.False(t, len(arg) >= 10 && len(arg) <= 20 && strings.HasPrefix(arg, today), "%q in %q", arg, c.Args)
				}
			}
		})
	}
}
