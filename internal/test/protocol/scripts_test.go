//go:build !race

package protocol

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/scripts"
)

// redisLock is the server of the model on a Redis: keys of one lock.
type redisLock struct {
	t   *testing.T
	rdb *redis.Client
	run *scripts.Runner
}

const (
	lockKey  = "lock"
	leaseMS  = 60_000
	memoryMS = 60_000
)

var (
	lockAcquire = scripts.Load("lock/acquire")
	lockRelease = scripts.Load("lock/release")
)

// runner returns a runner that executes each script only once. With a plain [redis.Client], a
// caller sends by itself, and repeats the command if there is no answer within 30 ms. The copy
// would publish the script's message again.
func runner(t *testing.T, rdb *redis.Client) *scripts.Runner {
	r := scripts.NewRunner(struct{ *redis.Client }{rdb}, 0)
	t.Cleanup(r.Close)
	return r
}

func ownerOf(id int8) string     { return fmt.Sprint("owner:", id) }
func memoryKeyOf(id int8) string { return fmt.Sprint("memory:", id) }

// set makes Redis equal to a state of the model.
func (l *redisLock) set(s lockServer) {
	ctx := l.t.Context()
	require.NoError(l.t, l.rdb.FlushDB(ctx).Err())
	if s.holder != nobody {
		require.NoError(l.t, l.rdb.HSet(ctx, lockKey, ownerOf(s.holder), 1).Err())
		require.NoError(l.t, l.rdb.PExpire(ctx, lockKey, leaseMS*time.Millisecond).Err())
	}
	for id, over := range s.over {
		if over {
			require.NoError(l.t, l.rdb.Set(ctx, memoryKeyOf(int8(id)), 1, 0).Err())
		}
	}
}

// state returns the state of the model that Redis equals.
func (l *redisLock) state() lockServer {
	s := lockServer{holder: nobody}
	fields, err := l.rdb.HKeys(l.t.Context(), lockKey).Result()
	require.NoError(l.t, err)
	require.LessOrEqual(l.t, len(fields), 1)
	for id := range s.over {
		if len(fields) == 1 && fields[0] == ownerOf(int8(id)) {
			s.holder = int8(id)
		}
		s.over[id] = l.rdb.Exists(l.t.Context(), memoryKeyOf(int8(id))).Val() == 1
	}
	return s
}

func (l *redisLock) acquire(id int8) answer {
	reply, err := l.run.Do(l.t.Context(), lockAcquire, []any{lockKey, "channel", memoryKeyOf(id), "line"},
		ownerOf(id), leaseMS, "publish")
	require.NoError(l.t, err)
	switch reply.Value.(type) {
	case int64:
		return granted
	case string:
		return over
	}
	return refused
}

func (l *redisLock) release(id, successor int8, remember bool) answer {
	keys := []any{lockKey, "channel", memoryKeyOf(id), "shared counts", "line"}
	args := []any{ownerOf(id), "publish", 0, ""}
	if remember {
		args[2] = memoryMS
	}
	if successor != nobody {
		keys, args = append(keys, memoryKeyOf(successor)), append(args, ownerOf(successor), leaseMS)
	}
	reply, err := l.run.Do(l.t.Context(), lockRelease, keys, args...)
	require.NoError(l.t, err)
	switch value := reply.Value.(type) {
	case []any:
		return handedOff
	case int64:
		if value == 0 {
			return nothing
		}
	}
	return freed
}

// The model's server does what the scripts do, from every state of the server.
func TestScriptsDoWhatTheModelSays(t *testing.T) {
	rdb := redistest.Miniredis(t).Client(t)
	l := &redisLock{t, rdb, runner(t, rdb)}
	// check runs a command on the model and on Redis, from the same state.
	check := func(s lockServer, what string, model func(*lockServer) answer, script func() answer) {
		want := s
		wantAnswer := model(&want)
		l.set(s)
		require.Equal(t, wantAnswer, script(), "%s in %+v", what, s)
		require.Equal(t, want, l.state(), "%s in %+v", what, s)
	}
	const id, successor = 0, 1
	for holder := int8(nobody); holder < acquisitions; holder++ {
		for bits := range 1 << acquisitions {
			s := lockServer{holder: holder}
			for i := range s.over {
				s.over[i] = bits>>i&1 == 1
			}
			check(s, "acquire",
				func(s *lockServer) answer { return s.acquire(id) },
				func() answer { return l.acquire(id) })
			for _, remember := range []bool{false, true} {
				for _, next := range []int8{nobody, successor} {
					check(s, fmt.Sprintf("release, successor %d, remember %v", next, remember),
						func(s *lockServer) answer { return s.release(id, next, remember, &lockDefects{}) },
						func() answer { return l.release(id, next, remember) })
				}
			}
		}
	}
}
