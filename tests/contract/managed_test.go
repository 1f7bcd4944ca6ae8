package contract

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// refusable lists commands that proxies and managed services refuse. The library works without any
// of them.
var refusable = []string{"hello", "client", "info", "config", "wait", "acl", "script", "psetex", "pubsub", "ping"}

// TestLocksWorkWithoutRefusedCommands uses locks and semaphores on servers that refuse commands, by
// an ACL and as if the commands did not exist, and with the old protocol.
func TestLocksWorkWithoutRefusedCommands(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	admin := s.Client(t)
	without := func(commands ...string) func(*redis.Options) {
		user := strings.Join(commands, "-")
		args := []any{"acl", "setuser", user, "on", ">pw", "~*", "&*", "+@all"}
		for _, command := range commands {
			args = append(args, "-"+command)
		}
		require.NoError(t, admin.Do(t.Context(), args...).Err())
		return func(o *redis.Options) { o.Username, o.Password = user, "pw" }
	}
	oldProtocol := func(o *redis.Options) { o.Protocol = 2 }
	type user struct {
		name string
		s    *redistest.Server
		rdb  *redis.Client
	}
	users := []user{
		{"ACL without all of them", s, s.Client(t, without(refusable...))},
		{"RESP2", s, s.Client(t, oldProtocol)},
	}
	for _, command := range refusable {
		users = append(users, user{"ACL without " + command, s, s.Client(t, without(command))})
	}
	var renamed []string // not CLIENT and INFO, which redistest itself needs
	for _, command := range []string{"hello", "config", "wait", "acl", "script", "psetex"} {
		renamed = append(renamed, "--rename-command", command, "")
	}
	bare := redistest.Fresh(t, renamed...)
	node := redistest.FreshCluster(t, 1).Nodes()[0]
	users = append(users,
		user{"unknown commands, RESP3", bare, bare.Client(t)},
		user{"unknown commands, RESP2", bare, bare.Client(t, oldProtocol)},
		user{"a plain client of a cluster", node, node.Client(t, oldProtocol)},
	)
	// All users wait for renewals at the same time.
	renewed := make([][]*primitives.Hold, len(users))
	handOff := make([]func(t *testing.T), len(users))
	for i, u := range users {
		t.Log(u.name, "acquires")
		renewed[i], handOff[i] = useLocks(t, u.s, u.rdb)
	}
	redistest.Together(t, func(run redistest.Run) {
		for i, u := range users {
			run(u.name, func(t *testing.T) {
				fixture.AwaitRenewal(t, 1, renewed[i]...)
				handOff[i](t)
			})
		}
	})
}

// useLocks acquires each kind, and lets a second client wait for it. It returns the holds that are
// renewed, and a function that hands all of them off.
func useLocks(t *testing.T, s *redistest.Server, rdb *redis.Client) (
	renewed []*primitives.Hold, handOff func(t *testing.T),
) {
	t.Helper()
	watchdog := primitives.WithDefaults(primitives.WithWatchdog(fixture.RenewedTTL))
	first, second := fixture.NewClient(t, rdb, watchdog), fixture.NewClient(t, rdb, watchdog)
	name := redistest.Name(t)
	var each []func(t *testing.T)
	for _, k := range kinds.Mutexes() {
		hold := fixture.Acquire(t, t.Context(), k.One(t, first, name+k.Name))
		if k.Leased {
			renewed = append(renewed, hold)
		}
		waiting := fixture.StartAcquire(t.Context(), k.Open(second, name+k.Name))
		fixture.AwaitWaiter(t, s, name+k.Name)
		each = append(each, func(t *testing.T) {
			fixture.Release(t, hold)
			fixture.Release(t, fixture.AwaitHold(t, waiting))
		})
	}
	return renewed, func(t *testing.T) {
		for _, f := range each {
			f(t)
		}
	}
}

// TestErrorNamesTheCommandThatIsMissing refuses commands that the library needs.
func TestErrorNamesTheCommandThatIsMissing(t *testing.T) {
	t.Parallel()
	master := redistest.Replicated(t, 1).Master
	admin := master.Client(t)
	for _, tt := range []struct {
		command string
		opts    []primitives.ClientOption
	}{
		{"evalsha", nil},
		{"publish", nil},
		{"wait", []primitives.ClientOption{primitives.WithReplicas(1, time.Second)}},
	} {
		t.Run(tt.command, func(t *testing.T) {
			user := "no-" + tt.command
			require.NoError(t, admin.Do(t.Context(),
				"acl", "setuser", user, "on", ">pw", "~*", "&*", "+@all", "-"+tt.command).Err())
			c := fixture.NewClient(t, master.Client(t, func(o *redis.Options) {
				o.Username, o.Password = user, "pw"
			}), tt.opts...)
			name := redistest.Name(t)
			began := time.Now()
			_, err := c.Lock(name).Acquire(t.Context())
			require.ErrorContains(t, err, tt.command)
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
			require.Less(t, time.Since(began), fixture.SlowPoll, "the refusal is not retried")
			redistest.WaitFor(t, fixture.Soon, func() bool {
				n, err := admin.Exists(context.Background(), name).Result()
				return err == nil && n == 0
			}, "nothing is held")
		})
	}
}
