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

const (
	rwClaim  = "claim"
	rwCounts = "shared counts"
	rwTurns  = "turns"
)

var (
	rwReadAcquire  = scripts.Load("rwlock/read_acquire")
	rwReadRelease  = scripts.Load("rwlock/read_release")
	rwWriteAcquire = scripts.Load("rwlock/write_acquire")
	rwWriteRelease = scripts.Load("rwlock/write_release")
)

// redisRW is the server of the model on a Redis: keys of one read-write lock.
type redisRW struct {
	t   *testing.T
	rdb *redis.Client
	run *scripts.Runner
}

func rwHoldKey(id int8) string { return fmt.Sprintf("{%s}:%s:rwlock_timeout:1", lockKey, ownerOf(id)) }

// rwMemories is what the scripts write to remember a release.
var rwMemories = map[memory]string{gaveBack: "2", mustNotAgain: "3"}

// set makes Redis equal to a state of the model.
func (l *redisRW) set(s *rwServer) {
	ctx, pipe := l.t.Context(), l.rdb.Pipeline()
	pipe.FlushDB(ctx)
	if s.writer != nobody {
		pipe.HSet(ctx, lockKey, "mode", "write", ownerOf(s.writer)+":write", 1)
	}
	for i := range s.field {
		id := int8(i)
		if s.field[i] {
			pipe.HSet(ctx, lockKey, "mode", "read", ownerOf(id), 1)
		}
		if s.alive[i] {
			pipe.Set(ctx, rwHoldKey(id), "1", leaseMS*time.Millisecond)
		}
		if m := s.memory[i]; m != unknown {
			pipe.Set(ctx, memoryKeyOf(id), rwMemories[m], 0)
		}
	}
	pipe.PExpire(ctx, lockKey, leaseMS*time.Millisecond)
	if s.claim != nobody {
		pipe.Set(ctx, rwClaim, memoryKeyOf(s.claim), leaseMS*time.Millisecond)
	}
	_, err := pipe.Exec(ctx)
	require.NoError(l.t, err)
}

// state returns the state of the model that Redis equals.
func (l *redisRW) state() rwServer {
	ctx, s := l.t.Context(), rwServer{writer: nobody, claim: nobody}
	hash, err := l.rdb.HGetAll(ctx, lockKey).Result()
	require.NoError(l.t, err)
	claim := l.rdb.Get(ctx, rwClaim).Val()
	for i := range s.field {
		id := int8(i)
		if hash[ownerOf(id)+":write"] == "1" {
			require.Equal(l.t, int8(nobody), s.writer, "two writers")
			require.Equal(l.t, "write", hash["mode"])
			require.Len(l.t, hash, 2)
			s.writer = id
		}
		if s.field[i] = hash[ownerOf(id)] == "1"; s.field[i] {
			require.Equal(l.t, "read", hash["mode"])
		}
		s.alive[i] = l.rdb.Exists(ctx, rwHoldKey(id)).Val() == 1
		if claim == memoryKeyOf(id) {
			s.claim = id
		}
		for m, value := range rwMemories {
			if l.rdb.Get(ctx, memoryKeyOf(id)).Val() == value {
				s.memory[i] = m
			}
		}
	}
	return s
}

// do runs a script.
func (l *redisRW) do(script *scripts.Script, id, other int8, args ...any) any {
	keys := []any{lockKey, "channel", memoryKeyOf(id), rwClaim, rwCounts, rwTurns}
	if other != nobody {
		keys = append(keys, memoryKeyOf(other))
	}
	reply, err := l.run.Do(l.t.Context(), script, keys, append([]any{ownerOf(id)}, args...)...)
	require.NoError(l.t, err)
	return reply.Value
}

func (l *redisRW) read(id, companion int8) answer {
	args := []any{leaseMS, "publish", 0, 0, 0, "client", 0}
	if companion != nobody {
		args = append(args, ownerOf(companion), leaseMS)
	}
	switch reply := l.do(rwReadAcquire, id, companion, args...).(type) {
	case int64:
		return granted
	case string:
		return over
	case []any:
		if reply[0] == "in" && reply[1] == int64(1) {
			return bothGranted
		} else if reply[0] == "in" {
			return granted
		}
	}
	return refused
}

func (l *redisRW) write(id int8) answer {
	switch reply := l.do(rwWriteAcquire, id, nobody, leaseMS, "publish", 0, 0, leaseMS, 0, "client", 0).(type) {
	case int64:
		return granted
	case string:
		return over
	case []any:
		if len(reply) == 3 {
			return reserved
		}
	}
	return refused
}

func (l *redisRW) endRead(id int8) answer {
	if l.do(rwReadRelease, id, nobody, "publish", memoryMS, 0, 1, "") == int64(0) {
		return nothing
	}
	return freed
}

func (l *redisRW) endWrite(id, successor int8) answer {
	args := []any{"publish", memoryMS, 0, 0, leaseMS, ""}
	if successor != nobody {
		args = append(args, ownerOf(successor), leaseMS)
	}
	switch reply := l.do(rwWriteRelease, id, successor, args...).(type) {
	case []any:
		return handedOff
	case int64:
		if reply == 0 {
			return nothing
		}
	}
	return freed
}

// compareRW checks that the model's server does what the scripts do: each command, from each of
// these states.
func compareRW(t *testing.T, f *rwSetup, states []rwServer) {
	rdb := redistest.Miniredis(t).Client(t)
	l := &redisRW{t, rdb, runner(t, rdb)}
	for _, s := range states {
		for id := range int8(acquisitions) {
			l.compare(s, id, f.writes[id])
		}
	}
}

// compare runs each command of an acquisition on the model and on Redis, from the same state.
func (l *redisRW) compare(s rwServer, id int8, writes bool) {
	check := func(what string, model func(*rwServer) answer, script func() answer) {
		want := s
		wanted := model(&want)
		l.set(&s)
		what = fmt.Sprintf("%s of %d in %+v", what, id, s)
		require.Equal(l.t, wanted, script(), what)
		require.Equal(l.t, want, l.state(), what)
	}
	for _, other := range []int8{nobody, (id + 1) % acquisitions} {
		if writes {
			check(fmt.Sprint("write release to ", other),
				func(s *rwServer) answer { return s.endWrite(id, other, &rwDefects{}) },
				func() answer { return l.endWrite(id, other) })
			continue
		}
		check(fmt.Sprint("read acquire with ", other),
			func(s *rwServer) answer { return s.read(id, other, &rwDefects{}) },
			func() answer { return l.read(id, other) })
	}
	if writes {
		check("write acquire",
			func(s *rwServer) answer { return s.write(id, &rwDefects{}) },
			func() answer { return l.write(id) })
		return
	}
	check("read release",
		func(s *rwServer) answer { return s.endRead(id, &rwDefects{}) },
		func() answer { return l.endRead(id) })
}
