package faults

import (
	"fmt"
	"slices"
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

// C7: an administrator has renamed commands. Whatever a kind needs, it either works and can be released, or the first
// call fails at once, with the name of the command, and leaves nothing.
func TestServerWithoutACommand(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		gone  []string
		fails []string // kinds; "all" is all of them
		named string   // in the error; "": the first of gone
	}{
		{[]string{"EVALSHA"}, []string{"all"}, ""},
		{[]string{"EVAL"}, nil, ""},
		{[]string{"EVAL", "EVALSHA"}, []string{"all"}, "EVALSHA"},
		{[]string{"EVAL", "SCRIPT"}, []string{"all"}, "EVAL"},
		{[]string{"SCRIPT", "WAIT", "TIME"}, []string{"permits"}, "TIME"},
		{[]string{"PUBLISH"}, []string{"all"}, ""},
		{[]string{"SUBSCRIBE"}, nil, ""},
		{[]string{"HSET"}, []string{"lock", "fair", "fenced", "reader", "writer", "multi", "red"}, ""},
		{[]string{"PEXPIRE"}, []string{"lock", "fair", "fenced", "reader", "writer", "multi", "red"}, ""},
		{[]string{"PTTL"}, []string{"permits"}, ""},
		{[]string{"EXISTS"}, []string{"lock", "fair", "fenced", "reader", "writer", "multi", "red", "permits"}, ""},
		{[]string{"DECRBY"}, []string{"semaphore", "permits"}, ""},
		{[]string{"ZADD"}, []string{"permits"}, ""},
		{[]string{"INCRBY"}, nil, ""},
		{[]string{"SET"}, nil, ""},
	} {
		t.Run(strings.Join(tt.gone, "+"), func(t *testing.T) {
			t.Parallel()
			var args []string
			for _, command := range tt.gone {
				args = append(args, "--rename-command", command, "")
			}
			s := redistest.Fresh(t, args...)
			admin := s.Client(t)
			c := NewClient(t, s.Client(t), primitives.WithClientName(""))
			for _, k := range kinds.All() {
				name := "name-" + k.Name
				began := time.Now()
				err := useOnce(t, k, c, name)
				what := fmt.Sprintf("%s without %s: %v", k.Name, tt.gone, err)
				if err == nil {
					assert.False(t, slices.Contains(tt.fails, "all") || slices.Contains(tt.fails, k.Name), what)
					continue
				}
				command := tt.named
				if command == "" {
					command = tt.gone[0]
				}
				require.ErrorIs(t, err, primitives.ErrUnsupported, what)
				require.NotErrorIs(t, err, primitives.ErrNotAcquired, what)
				assert.ErrorContains(t, err, "this server has no ", what)
				assert.ErrorContains(t, err, command, what)
				assert.Less(t, time.Since(began), 3*time.Second, what)
				assert.Empty(t, admin.Keys(t.Context(), name+"*").Val(), what)
			}
		})
	}
}

// useOnce makes a kind's number, acquires it, and releases it.
func useOnce(t *testing.T, k kinds.Kind, c *primitives.Client, name string) error {
	h := k.Open(c, name)
	if pool, ok := h.(kinds.Pool); ok {
		if _, err := pool.Init(t.Context(), 1); err != nil {
			return err
		}
		defer func() { _, _ = pool.Delete(t.Context()) }()
	}
	hold, err := h.Acquire(t.Context())
	if err != nil {
		return err
	}
	return hold.Release(t.Context())
}
