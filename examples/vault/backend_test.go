package vault_test

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/vault/sdk/physical"
	"github.com/hashicorp/vault/sdk/physical/inmem"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/examples/vault"
	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// server is a server of Vault with its own connections, as far as its storage is concerned.
func server(t *testing.T, s *locktest.Server) *vault.Backend {
	t.Helper()
	data, err := inmem.NewInmem(nil, hclog.NewNullLogger())
	require.NoError(t, err)
	rdb := redis.NewClient(s.Options())
	client, err := primitives.New(rdb)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, client.Close(ctx))
		require.NoError(t, rdb.Close())
	})
	return &vault.Backend{Backend: data, Locks: client, Redis: rdb, Prefix: "vault:"}
}

// Vault's own tests of a storage with high availability.
func TestVaultsOwnTests(t *testing.T) {
	s := locktest.NewServer(t)
	physical.ExerciseHABackend(t, server(t, s), server(t, s))
	physical.ExerciseBackend(t, server(t, s))
	physical.ExerciseBackend_ListPrefix(t, server(t, s))
}

// An active server that loses its lock is told, and its address is not taken for that of the next
// one.
func TestActiveServerThatLosesItsLock(t *testing.T) {
	s := locktest.NewServer(t)
	first, second := server(t, s), server(t, s)
	lock, err := first.LockWith("core/lock", "first")
	require.NoError(t, err)
	lost, err := lock.Lock(nil)
	require.NoError(t, err)
	_, err = second.Locks.FencedLock("vault:core/lock").ForceRelease(t.Context())
	require.NoError(t, err)
	select {
	case <-lost:
	case <-time.After(10 * time.Second):
		require.Fail(t, "the server was not told that it is not active any more")
	}
	require.NoError(t, lock.Unlock(), "there is nothing to unlock")

	hold, err := second.Locks.FencedLock("vault:core/lock").Acquire(t.Context())
	require.NoError(t, err)
	held, address, err := lock.Value()
	require.NoError(t, err)
	require.True(t, held)
	require.Empty(t, address, "the new server has not announced its address")
	require.NoError(t, hold.Release(t.Context()))
	held, address, err = lock.Value()
	require.NoError(t, err)
	require.False(t, held)
	require.Empty(t, address)
}
