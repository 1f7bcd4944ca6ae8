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
