//go:build !race

package protocol

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/scripts"
)

// The model's server does what the scripts of the semaphore do, from every state of the server.
func TestPermitScriptsDoWhatTheModelSays(t *testing.T) {
	const id, epoch, memoryKey, permitsKey, epochKey = 0, 7, "memory:0", "permits", "epoch"
	var (
		rdb     = redistest.Miniredis(t).Client(t)
		run     = runner(t, rdb)
		acquire = scripts.Load("semaphore/acquire")
		release = scripts.Load("semaphore/release")
		values  = map[memory]string{hasPermit: fmt.Sprint("1 ", epoch), gaveBack: "2", mustNotAgain: "3"}
	)
	do := func(s *scripts.Script, args ...any) any {
		reply, err := run.Do(t.Context(), s, []any{permitsKey, "channel", memoryKey, epochKey}, args...)
		require.NoError(t, err)
		return reply.Value
	}
	// check runs a command on the model and on Redis, from the same state.
	check := func(s permitState, what string, model func(*permitState) answer, script func() answer) {
		t.Helper()
		ctx := t.Context()
		require.NoError(t, rdb.FlushDB(ctx).Err())
		require.NoError(t, rdb.Set(ctx, permitsKey, s.left, 0).Err())
		require.NoError(t, rdb.Set(ctx, epochKey, epoch, 0).Err())
		if s.memory[id] != unknown {
			require.NoError(t, rdb.Set(ctx, memoryKey, values[s.memory[id]], 0).Err())
		}
		want := s
		require.Equal(t, model(&want), script(), "%s in %+v", what, s)
		left, err := rdb.Get(ctx, permitsKey).Int()
		require.NoError(t, err)
		require.EqualValues(t, want.left, left, "%s in %+v", what, s)
		require.Equal(t, values[want.memory[id]], rdb.Get(ctx, memoryKey).Val(), "%s in %+v", what, s)
	}
	for left := range int8(3) {
		for m := unknown; m <= mustNotAgain; m++ {
			s := permitState{left: left}
			s.memory[id] = m
			check(s, "acquire",
				func(s *permitState) answer { return s.acquire(id, &permitDefects{}) },
				func() answer {
					switch reply := do(acquire, "publish", memoryMS, 1).(type) {
					case string:
						return over
					case []any:
						if reply[0] == int64(1) {
							return granted
						}
					}
					return refused
				})
			for _, side := range []permitSide{{}, {doubt: true}, {forgotten: true}} {
				s.side[id] = side
				check(s, "release",
					func(s *permitState) answer { return s.release(id, &permitDefects{}) },
					func() answer {
						reply := do(release, "publish", memoryMS, 1, flag(!side.forgotten), epoch, flag(side.remembers()))
						if reply.(int64) <= 0 {
							return nothing
						}
						return freed
					})
			}
		}
	}
}

// flag is a condition as an argument.
func flag(on bool) int {
	if on {
		return 1
	}
	return 0
}
