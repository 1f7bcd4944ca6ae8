package pubsub

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// All first calls of a client share one question to the cluster.
func TestModeIsDetectedOnce(t *testing.T) {
	redistest.NeedFull(t, "a cluster of its own")
	t.Parallel()
	c := redistest.FreshCluster(t, 3)
	h := open(t, c.ClusterClient(t), Config{})
	var wg sync.WaitGroup
	for i := range 10_000 {
		wg.Go(func() {
			if i%10 == 0 {
				listen(h, fmt.Sprint(i%100)).Close()
			}
			on, err := h.Sharded(t.Context())
			if err != nil || !on {
				t.Error(on, err)
			}
		})
	}
	wg.Wait()
	asked := int64(0)
	for _, s := range c.Nodes() {
		asked += redistest.Commands(t, s)["pubsub|shardnumsub"]
	}
	require.LessOrEqual(t, asked, int64(maxAsked), "more than one only if the machine is slow")
}

// Calls at the same time share a question, and later ones its answer.
func TestDetectionIsShared(t *testing.T) {
	rdb := redistest.Embedded(t).Client(t)
	masters := slowLookup{rdb, &fewSlots{rare: rdb, often: rdb}, make(chan struct{})}
	h := open(t, masters, Config{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := h.Sharded(ended)
	require.ErrorIs(t, err, context.Canceled)
	shared := h.choosing
	require.NotNil(t, shared)
	_, err = h.Sharded(ended)
	require.ErrorIs(t, err, context.Canceled)
	require.Same(t, shared, h.choosing)
	close(masters.found)
	_, err = h.Sharded(t.Context())
	require.NoError(t, err)
	_, err = h.Sharded(ended)
	require.NoError(t, err, "nobody is asked again")
}

// A channel whose listeners leave before a server is known is forgotten.
func TestChannelsThatWereNeverPlaced(t *testing.T) {
	rdb := redistest.Embedded(t).Client(t)
	masters := slowLookup{rdb, &fewSlots{rare: rdb, often: rdb}, make(chan struct{})}
	h := open(t, masters, Config{})
	for i := range 100 {
		listen(h, fmt.Sprint(i)).Close()
	}
	h.mu.Lock()
	left := len(h.channels)
	h.mu.Unlock()
	close(masters.found)
	require.Zero(t, left)
	awaitStopped(t, h)
}

// slowLookup is a cluster that finds no master until found is closed.
type slowLookup struct {
	redis.UniversalClient
	*fewSlots
	found chan struct{}
}

func (s slowLookup) MasterForKey(ctx context.Context, key string) (*redis.Client, error) {
	<-s.found
	return s.fewSlots.MasterForKey(ctx, key)
}

// Nearly all slots belong to a node that hangs. The other one is asked second.
func TestDetectionAsksAnotherMaster(t *testing.T) {
	t.Parallel()
	hung := redis.NewClient(&redis.Options{Addr: "hung", ReadTimeout: 200 * time.Millisecond,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go io.Copy(io.Discard, there) //nolint:errcheck // ends when the client closes the connection
			return here, nil
		}})
	defer hung.Close()
	masters := fewSlots{rare: redistest.Embedded(t).Client(t), often: hung}
	stalls, began := redistest.WatchStalls(t), time.Now()
	var tasks sync.WaitGroup
	defer tasks.Wait()
	_, err := detectSharded(t.Context(), tasks.Go, &masters, nil)
	took := time.Since(began)
	require.NoError(t, err)
	require.Less(t, took, time.Second+stalls.Since(began))
}

// A server that refuses the question for now says nothing about the mode, which never changes once
// it is known. A client that took such an answer for "no" would not hear the others' messages.
func TestRefusalsDuringDetection(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]string{
		"*2\r\n$1\r\n0\r\n:0\r\n":                   "sharded",
		"-ERR unknown subcommand\r\n":               "plain",
		"-LOADING Redis is loading the dataset\r\n": "unknown",
		"-CLUSTERDOWN The cluster is down\r\n":      "unknown",
		"-WRONGPASS invalid password\r\n":           "unknown",
	} {
		rdb := redis.NewClient(&redis.Options{
			Protocol: 2, DisableIdentity: true, MaxRetries: -1,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				here, there := net.Pipe()
				go func() {
					for received := make([]byte, 1<<10); ; {
						if _, err := there.Read(received); err != nil {
							return
						}
						if _, err := there.Write([]byte(reply)); err != nil {
							return
						}
					}
				}()
				return here, nil
			},
		})
		var tasks sync.WaitGroup
		on, err := detectSharded(t.Context(), tasks.Go, &fewSlots{rare: rdb, often: rdb}, nil)
		tasks.Wait()
		require.NoError(t, rdb.Close())
		require.Equal(t, want == "unknown", err != nil, "%q: %v", reply, err)
		require.Equal(t, want == "sharded", on, reply)
	}
}

// Each question goes to a master that was not asked before, as long as there is one.
func TestMastersAreAskedInTurn(t *testing.T) {
	rare, often := redis.NewClient(&redis.Options{Addr: "rare"}), redis.NewClient(&redis.Options{Addr: "often"})
	defer rare.Close()
	defer often.Close()
	masters := &unasked{cluster: &fewSlots{rare: rare, often: often}, asked: map[string]bool{}}
	for _, want := range []*redis.Client{often, rare} {
		node, err := masters.next(t.Context())
		require.NoError(t, err)
		require.Same(t, want, node)
	}
}

// fewSlots is a cluster in which few keys belong to one of the masters.
type fewSlots struct {
	rare, often *redis.Client
	lookups     atomic.Int64
}

func (*fewSlots) Options() *redis.ClusterOptions { return &redis.ClusterOptions{} }
func (*fewSlots) ReloadState(context.Context)    {}
func (f *fewSlots) MasterForKey(context.Context, string) (*redis.Client, error) {
	if f.lookups.Add(1)%20 == 0 {
		return f.rare, nil
	}
	return f.often, nil
}

// One node hangs. A new client finds the mode, and the nodes of other channels, without it.
func TestHungNodeDoesNotDelayDetection(t *testing.T) {
	redistest.NeedFull(t, "a cluster of its own")
	t.Parallel()
	c := redistest.FreshCluster(t, 3)
	hung := c.Node(t, "a")
	require.NotSame(t, hung, c.Node(t, "b"))
	on := true
	for _, tt := range []struct {
		name    string
		sharded *bool
	}{{"auto", nil}, {"sharded", &on}} {
		t.Run(tt.name, func(t *testing.T) {
			stalls := redistest.WatchStalls(t)
			require.NoError(t, hung.Pause())
			defer func() { require.NoError(t, hung.Resume()) }() // before the hubs are closed
			// A client asks a random node first, so several clients make it likely that one asks
			// the hung one.
			for range 8 {
				rdb := c.ClusterClient(t, func(o *redis.ClusterOptions) { o.ReadTimeout = 5 * time.Second })
				h := open(t, rdb, Config{Sharded: tt.sharded})
				began := time.Now()
				sharded, err := h.Sharded(t.Context())
				require.NoError(t, err)
				require.True(t, sharded)
				listen(h, "b").awaitConfirmed(t)
				took := time.Since(began)
				require.Less(t, took, 2*time.Second+stalls.Since(began))
			}
		})
	}
}
