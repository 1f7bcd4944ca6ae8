package redisutil_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redisutil"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

func TestLacksRights(t *testing.T) {
	s := redistest.Fresh(t)
	s.SetUser(t, "bob", "on", ">"+redistest.Password, "resetkeys", "~mine*", "resetchannels", "&mine*", "+@all", "-set")
	rdb := s.As("bob").Client(t)
	eval := func(script string, keys ...string) error { return rdb.Eval(t.Context(), script, keys).Err() }
	for _, tt := range []struct {
		name string
		err  error
		want bool
	}{
		{"a command", rdb.Set(t.Context(), "mine", 1, 0).Err(), true},
		{"a key", rdb.Get(t.Context(), "other").Err(), true},
		{"a command in a script", eval(`return redis.call('set', 'mine', 1)`), true},
		{"a key in a script", eval(`return redis.call('get', 'other')`), true},
		{"a key of a script", eval(`return 1`, "other"), true},
		{"a channel in a script", eval(`return redis.call('publish', 'other', 1)`), true},
		{"within an error of the caller", fmt.Errorf("acquire: %w", rdb.Get(t.Context(), "other").Err()), true},
		{"an error of the script", eval(`return redis.call('hget', 'mine')`), false},
		{"an error of the network", errors.New("NOPERM"), false},
		{"no key", redis.Nil, false},
		{"success", nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, redisutil.LacksRights(tt.err), tt.err)
		})
	}
}

// answer is an error that a server has answered.
type answer string

func (a answer) Error() string { return string(a) }
func (answer) RedisError()     {}

func TestRefusesLogin(t *testing.T) {
	s := redistest.Fresh(t)
	s.SetUser(t, "carol", "on", ">"+redistest.Password, "allkeys", "+@all")
	rdb := s.Client(t)
	login := func(args ...any) error { return rdb.Do(t.Context(), append([]any{"auth"}, args...)...).Err() }
	for _, tt := range []struct {
		name string
		err  error
		want bool
	}{
		{"a wrong password", login("carol", "wrong"), true},
		{"a password where none is needed", login("wrong"), true},
		{"a missing password", answer("NOAUTH Authentication required."), true},
		{"an old server", answer("ERR invalid password"), true},
		{"a proxy", answer("ERR unauthenticated"), true},
		{"a missing permission", answer("NOPERM this user has no permissions to run the 'set' command"), false},
		{"a full memory", answer("OOM command not allowed when used memory > 'maxmemory'."), false},
		{"an error of the network", errors.New("NOAUTH"), false},
		{"success", nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, redisutil.RefusesLogin(tt.err), tt.err)
		})
	}
}
