package redistest

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
)

// NamedPrimary is a primary and its replica, behind a name that leads to the primary, such as that
// of a managed service. See ReplicatedName.
type NamedPrimary struct {
	*ReplicaServers

	primary atomic.Pointer[Server]
}

// ReplicatedName starts a primary and a replica for t only, and a name that leads to the primary.
func ReplicatedName(t testing.TB) *NamedPrimary {
	t.Helper()
	n := &NamedPrimary{ReplicaServers: Replicated(t, 1)}
	n.primary.Store(n.Master)
	return n
}

// Former is the server that was the primary at the start.
func (n *NamedPrimary) Former() *Server { return n.Master }

// Current is the server that is the primary after Move.
func (n *NamedPrimary) Current() *Server { return n.Replicas[0] }

// Client returns a client that dials the name. It is closed when t ends.
func (n *NamedPrimary) Client(t testing.TB, tweaks ...func(*redis.Options)) *redis.Client {
	o := options("primary.example:6379")
	o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, n.primary.Load().Addr())
	}
	return newClient(t, o, tweaks)
}

// Move makes the replica the primary, and moves the name there. The former primary becomes a
// read-only replica, and keeps its connections: a replica of the new primary, or one without a link
// that keeps its old data.
func (n *NamedPrimary) Move(t testing.TB, linked bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	run := func(s *Server, args ...string) {
		t.Helper()
		if _, err := s.do(ctx, args...); err != nil {
			t.Fatal(err)
		}
	}
	run(n.Master, "wait", "1", "1000")
	run(n.Current(), "replicaof", "no", "one")
	of := "127.0.0.1:1" // nobody listens there
	if linked {
		of = n.Current().Addr()
	}
	host, port, _ := net.SplitHostPort(of)
	run(n.Master, "replicaof", host, port)
	n.primary.Store(n.Current())
}
