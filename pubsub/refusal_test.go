package pubsub

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// as makes a client log in as a user.
func as(user string) func(*redis.Options) {
	return func(o *redis.Options) { o.Username, o.Password = user, "pw" }
}

// A refused channel ends its own subscriptions and no others, on the same connection.
func TestRefusalEndsOnlyTheRefusedChannel(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	admin := s.Client(t)
	ctx := t.Context()
	for _, tt := range []struct {
		name, rules     string
		allowed, denied []string // prefixes
	}{
		{"some channels", "+@all &yes-*", []string{"yes-"}, []string{"no-"}},
		{"no channel", "+@all resetchannels", nil, []string{"no-"}},
		{"no SUBSCRIBE", "+@all &* -subscribe", nil, []string{"no-"}},
		{"no PING", "+@all &* -ping", []string{"yes-"}, nil},
		{
			"subscribing only", "-@all +hello +auth +subscribe +unsubscribe resetchannels &yes-*",
			[]string{"yes-"}, []string{"no-"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			user := redistest.Name(t)
			args := []any{"acl", "setuser", user, "on", ">pw", "allkeys"}
			for rule := range strings.FieldsSeq(tt.rules) {
				args = append(args, rule)
			}
			require.NoError(t, admin.Do(ctx, args...).Err())
			h := open(t, s.Client(t, as(user)), Config{limits: shortLimits})

			var good, bad []*recorder
			for i := range 20 {
				for _, prefix := range tt.allowed {
					good = append(good, listen(h, fmt.Sprint(prefix, i)))
				}
				if i%6 == 0 {
					for _, prefix := range tt.denied {
						bad = append(bad, listen(h, fmt.Sprint(prefix, i)), listen(h, fmt.Sprint(prefix, i)))
					}
				}
			}
			for _, e := range good {
				e.awaitConfirmed(t)
			}
			for _, e := range bad {
				require.ErrorContains(t, e.awaitReply(t).Err(), "NOPERM")
				require.Empty(t, e.signals)
			}
			for i, e := range good {
				publish(t, admin, fmt.Sprint(tt.allowed[0], i), "0")
				require.Equal(t, Signal{Payload: "0"}, e.next(t))
				require.Empty(t, e.signals, "no re-subscription")
				e.Close()
			}
			for _, e := range bad {
				e.Close()
			}
			redistest.WaitFor(t, soon, func() bool { return len(redistest.Channels(t, s)) == 0 }, "no channels")
		})
	}
}

// A channel that is refused on a new link signals its listeners a last time. Once it is allowed
// again, it can be subscribed again.
func TestRefusalOnReconnectSignalsOnce(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	admin := s.Client(t)
	ctx := t.Context()
	allow := func(channels ...any) {
		args := append([]any{"acl", "setuser", "bob", "on", ">pw", "allkeys", "+@all", "resetchannels"}, channels...)
		require.NoError(t, admin.Do(ctx, args...).Err())
	}
	allow("&a", "&b")
	h := open(t, s.Client(t, as("bob")), Config{})
	a, b := listen(h, "a").awaitConfirmed(t), listen(h, "b").awaitConfirmed(t)

	allow("&a") // the server closes connections with subscriptions that are no longer allowed
	for _, e := range []*recorder{a, b} {
		e.awaitResubscribed(t)
	}
	require.NoError(t, a.Err())
	redistest.WaitFor(t, soon, func() bool { return b.Err() != nil }, "b refused")
	require.ErrorContains(t, b.Err(), "NOPERM")

	allow("&a", "&b")
	listen(h, "b").awaitConfirmed(t)
	publish(t, admin, "b", "0")
	publish(t, admin, "a", "0")
	require.Equal(t, Signal{Payload: "0"}, a.next(t))
	require.Empty(t, b.signals, "a refused subscription stays refused")
}

// Where UNSUBSCRIBE is forbidden, waiters that come and go leave the link, and its other listeners,
// alone.
func TestForbiddenUnsubscribeKeepsTheLink(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	admin := s.Client(t)
	require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "bob", "on", ">pw", "allkeys", "+@all", "&*",
		"-unsubscribe").Err())
	log := &logged{}
	h := open(t, s.Client(t, as("bob")), Config{Logger: log.logger()})
	other := listen(h, "other").awaitConfirmed(t)
	h.mu.Lock()
	first := h.links[plainServer]
	h.mu.Unlock()
	for range 50 {
		e := listen(h, "c").awaitConfirmed(t)
		publish(t, admin, "c", "0")
		require.Equal(t, Signal{Payload: "0"}, e.next(t))
		e.Close()
		redistest.WaitFor(t, soon, func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.channels["c"] == nil
		}, "the channel has no listeners")
		publish(t, admin, "c", "nobody listens")
	}
	publish(t, admin, "other", "1")
	require.Equal(t, Signal{Payload: "1"}, other.next(t))
	h.mu.Lock()
	require.Same(t, first, h.links[plainServer])
	h.mu.Unlock()
	require.Equal(t, []string{"unsubscribe refused"}, log.all())
	other.Close()
	awaitIdle(t, h, s, 1) // the admin's; an idle link is closed, and leaves no subscription
	require.Empty(t, redistest.Channels(t, s))
}
