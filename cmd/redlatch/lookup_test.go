package main

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// A client leaves a Sentinel that hangs after it has told the master, so that it finds the next one.
func TestClientsLeaveAHungSentinel(t *testing.T) {
	t.Parallel()
	redistest.NeedFull(t, "timeouts of hung Sentinels")
	servers := redistest.Sentinel(t)
	o := servers.Options()
	o.DialTimeout, o.ReadTimeout = soon, soon
	o.Dialer = hurrySentinels(nil, o.SentinelAddrs, soon, time.Second, func(string) {})
	var clients []func() error
	for range 6 { // each has chosen one of the three Sentinels
		rdb := servers.FailoverClient(t, func(own *redis.FailoverOptions) { *own = *o })
		clients = append(clients, func() error { return rdb.Ping(t.Context()).Err() })
	}
	for _, ping := range clients {
		require.NoError(t, ping())
	}
	require.NoError(t, servers.Sentinels[0].Pause())
	require.NoError(t, servers.Sentinels[1].Pause())
	require.NoError(t, servers.Master.Client(t).ClientKillByFilter(t.Context(), "TYPE", "normal").Err())
	for _, ping := range clients {
		redistest.WaitFor(t, soon, func() bool { return ping() == nil }, "an answer of the master")
	}
}
