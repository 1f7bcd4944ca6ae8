package contract

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// nameReads counts the reads of names that came through a proxy since Record.
func nameReads(p *redistest.Proxy) (n int) {
	for _, c := range p.Commands() {
		if strings.EqualFold(c.Args[0], "get") && strings.HasPrefix(c.Args[1], "redlatch_client:") {
			n++
		}
	}
	return n
}

// C25, C7: the error of an acquisition that gives up has the name of the client that holds the lock. However many wait,
// the name is read once.
func TestC25ErrorsNameTheHoldersClient(t *testing.T) {
	t.Parallel()
	for _, k := range kinds.Select(func(k kinds.Kind) bool { return !k.Pool }) { // a pool has many holders
		RunEmbedded(t, k.Name, func(t *testing.T, s *redistest.Server) {
			p := s.Proxy(t)
			holding := NewClient(t, s.Client(t), primitives.WithClientName("worker 7"))
			waiting := NewClient(t, p.Client(t), primitives.WithClientName("worker 8"))
			hold := Acquire(t, t.Context(), k.Rival(holding, "x"))
			handle := k.Open(waiting, "x")
			_, err := handle.TryAcquire(t.Context())
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			require.NotContains(t, err.Error(), "worker 7", "it is unknown at first")
			require.Contains(t, err.Error(), hold.ID())
			time.Sleep(time.Second)

			p.Record()
			Concurrently(20, func(int) {
				_, err := handle.Acquire(t.Context(), primitives.WithWait(5*time.Second))
				assert.ErrorIs(t, err, primitives.ErrNotAcquired)
				assert.ErrorContains(t, err, hold.ID())
				assert.ErrorContains(t, err, "worker 7")
				assert.NotContains(t, err.Error(), "worker 8")
			})
			assert.Equal(t, 1, nameReads(p), "once for all waiters")
			_ = hold.Release(t.Context())
		})
	}
}

// What is not named: the own client, a client that shows no name, and a holder that a wait of less than 100 ms has met.
func TestC25ErrorsWithoutAName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name            string
		holder, waiter  string
		wait            time.Duration
		own             bool
		most            int // reads
		says, saysNever string
	}{
		{name: "the own client", waiter: "w", own: true, wait: time.Second, says: "held by this client", saysNever: " of w"},
		{name: "no name", waiter: "w", wait: 20 * time.Second, most: 2, saysNever: " of "},
		{name: "an unnamed waiter", holder: "h", wait: 5 * time.Second, saysNever: " of h"},
		{name: "a short wait", holder: "h", waiter: "w", wait: 80 * time.Millisecond, saysNever: " of h"},
	} {
		RunEmbedded(t, tt.name, func(t *testing.T, s *redistest.Server) {
			p := s.Proxy(t)
			waiting := NewClient(t, p.Client(t), primitives.WithClientName(tt.waiter))
			holding := waiting
			if !tt.own {
				holding = NewClient(t, s.Client(t), primitives.WithClientName(tt.holder))
			}
			hold := Acquire(t, t.Context(), holding.Lock("x"))
			time.Sleep(time.Second)
			p.Record()
			_, err := waiting.Lock("x").Acquire(t.Context(), primitives.WithWait(tt.wait))
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			assert.ErrorContains(t, err, tt.says)
			assert.NotContains(t, err.Error(), tt.saysNever)
			assert.LessOrEqual(t, nameReads(p), tt.most)
			Release(t, hold)
		})
	}
}
