package topology

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// Over TLS, with a client certificate, a username and a password: acquire, renew, wake up a waiter,
// release.
func TestTLSWithClientCertificateAndUser(t *testing.T) {
	t.Parallel()
	s, overTLS := redistest.FreshTLS(t)
	s = fixture.LeastRights(t, s)
	require.Error(t, s.Client(t, overTLS, func(o *redis.Options) {
		o.TLSConfig.Certificates, o.MaxRetries, o.DialerRetries = nil, -1, 1
	}).Ping(t.Context()).Err(), "the server requires a certificate")

	one := fixture.NewClient(t, s.Client(t, overTLS))
	two := fixture.NewClient(t, s.Client(t, overTLS))
	requireHandOff(t, one, two)
	hold := fixture.Acquire(t, t.Context(), one.FairLock("orders:fair"), primitives.WithWatchdog(fixture.RenewedTTL))
	before := hold.ValidUntil()
	redistest.WaitFor(t, fixture.Soon, func() bool { return hold.ValidUntil().After(before) }, "the hold is renewed")
	fixture.Release(t, hold)
	fixture.RequireClean(t, s, "orders:")
}

// requireHandOff checks that a message, and not a poll, wakes up a waiter.
func requireHandOff(t *testing.T, one, two *primitives.Client) {
	t.Helper()
	redistest.WaitFor(t, fixture.Soon, func() bool {
		hold := fixture.Acquire(t, t.Context(), one.Lock("orders:handed off"))
		waiting := fixture.StartAcquire(t.Context(), two.Lock("orders:handed off"))
		time.Sleep(100 * time.Millisecond) // until the waiter has subscribed; it polls after a second
		released := time.Now()
		fixture.Release(t, hold)
		r := fixture.AwaitAcquired(t, waiting)
		fixture.Release(t, r.Hold)
		return r.At.Sub(released) < 500*time.Millisecond
	}, "a message hands off")
}

// The password of the user changes while a lock is held and waited for, and all connections are
// closed. The client goes on with the new one. If the client learns it late, holds survive for as
// long as their leases, and waiters end with the server's refusal.
func TestRotatedCredentials(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name         string
		clientsFirst bool
	}{{"both passwords are valid for a while", true}, {"clients learn the new password late", false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Fresh(t)
			admin := s.Client(t)
			do := func(args ...any) { require.NoError(t, admin.Do(t.Context(), args...).Err()) }
			fixture.LeastRights(t, s)
			var password atomic.Value
			password.Store(redistest.Password)
			provider := func(o *redis.Options) {
				o.CredentialsProvider = func() (string, string) { return "locks", password.Load().(string) }
			}
			var events fixture.Recorder
			one, two := fixture.NewClient(t, s.Client(t, provider), events.Option()), fixture.NewClient(t, s.Client(t, provider))
			hold := fixture.Acquire(t, t.Context(), one.Lock("orders:1"), primitives.WithWatchdog(10*time.Second))
			waiting := fixture.StartAcquire(t.Context(), two.Lock("orders:1"))
			fixture.AwaitWaiter(t, s, "orders:1")

			if tt.clientsFirst {
				do("acl", "setuser", "locks", ">new")
				password.Store("new")
				do("acl", "setuser", "locks", "<"+redistest.Password)
			} else {
				do("acl", "setuser", "locks", ">new", "<"+redistest.Password)
			}
			for _, kind := range []string{"normal", "pubsub"} {
				do("client", "kill", "type", kind, "user", "locks")
			}
			if !tt.clientsFirst {
				require.ErrorContains(t, fixture.Await(t, waiting).Err, "WRONGPASS")
				require.ErrorContains(t, events.Await(t, primitives.EventRenewFailed).Err, "WRONGPASS")
				fixture.RequireLive(t, hold.Context())
				password.Store("new")
				waiting = fixture.StartAcquire(t.Context(), two.Lock("orders:1"))
			}
			before := hold.ValidUntil()
			redistest.WaitFor(t, fixture.Soon, func() bool { return hold.ValidUntil().After(before) }, "the hold is renewed")
			fixture.AwaitWaiter(t, s, "orders:1")
			fixture.Release(t, hold)
			fixture.Release(t, fixture.AwaitHold(t, waiting))
			requireHandOff(t, one, two)
		})
	}
}

// A cluster that refuses the password has answered: it is not unavailable.
func TestWrongPasswordOnACluster(t *testing.T) {
	t.Parallel()
	c := fixture.NewClient(t, redistest.Cluster(t).ClusterClient(t, func(o *redis.ClusterOptions) {
		o.Username, o.Password = "nobody", "wrong"
	}))
	_, err := c.Lock(redistest.Name(t)).Acquire(t.Context(), primitives.WithWait(fixture.Soon))
	require.ErrorContains(t, err, "WRONGPASS")
	require.NotErrorIs(t, err, primitives.ErrUnavailable)
	require.NotErrorIs(t, err, primitives.ErrNotAcquired)
}
