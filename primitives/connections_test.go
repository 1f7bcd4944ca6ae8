package primitives_test

import (
	"context"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// dials counts the connections of a client that are open at a time, for each address.
type dials struct {
	delay time.Duration // of each dial

	mu         sync.Mutex
	open, most map[string]int
}

func (d *dials) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	time.Sleep(d.delay) // whether or not the caller still waits
	d.add(addr, 1)
	return &countedConn{conn, sync.OnceFunc(func() { d.add(addr, -1) })}, nil
}

func (d *dials) add(addr string, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open == nil {
		d.open, d.most = map[string]int{}, map[string]int{}
	}
	d.open[addr] += n
	d.most[addr] = max(d.most[addr], d.open[addr])
}

// requireFew requires that at most limit connections to each address were open at a time.
func (d *dials) requireFew(t *testing.T, limit int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	t.Log("most connections at a time:", d.most)
	require.NotEmpty(t, d.most)
	for _, most := range d.most {
		require.LessOrEqual(t, most, limit)
	}
}

// countedConn is a connection that reports its end.
type countedConn struct {
	net.Conn

	closed func()
}

func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// bursts are loads of many goroutines that begin at once, each with locks of that name.
var bursts = []struct {
	name       string
	goroutines int
	times      int // that each goroutine acquires and releases
	lock       func(c *primitives.Client, name string, i int) *primitives.Lock
}{
	{"64 free locks", 64, 20, freeLock},
	{"1,000 free locks", 1000, 1, freeLock},
	{"one lock", 1000, 1, func(c *primitives.Client, name string, _ int) *primitives.Lock { return c.Lock(name) }},
	{"one fair lock", 1000, 1, func(c *primitives.Client, name string, _ int) *primitives.Lock {
		return c.FairLock(name)
	}},
}

func freeLock(c *primitives.Client, name string, i int) *primitives.Lock {
	return c.Lock(name + strconv.Itoa(i))
}

// runBursts runs f for each burst, with a func that runs it.
func runBursts(t *testing.T, f func(t *testing.T, run func(*primitives.Client))) {
	for _, b := range bursts {
		t.Run(b.name, func(t *testing.T) {
			name := redistest.Name(t)
			f(t, func(c *primitives.Client) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				Concurrently(b.goroutines, func(i int) {
					for range b.times {
						hold, err := b.lock(c, name, i).Acquire(ctx)
						if assert.NoError(t, err) {
							assert.NoError(t, hold.Release(ctx))
						}
					}
				})
			})
		})
	}
}

// A client opens few connections, however many goroutines call it at once: while its first connections are
// being dialed, and while the server stalls.
func TestCountsConnectionsOfABurst(t *testing.T) {
	s := redistest.Fresh(t)
	const slow = 50 * time.Millisecond
	for _, tt := range []struct {
		name  string
		delay time.Duration
		warm  bool // the client was used by one goroutine before
		stall bool
		pool  int // the size of both pools of go-redis; 0: the defaults
		limit int
		more  bool // the other rows have each of its conditions
	}{
		{"cold", 0, false, false, 0, 16, false},
		{"slow dials", slow, false, false, 0, 16, true},
		{"slow dials later", slow, true, false, 0, 16, true},
		{"stall", 0, true, true, 0, 16, true},
		// These dials outlast the pause after attempts of callers: see scripts/here.go.
		{"stall and slow dials", 5 * slow, true, true, 0, 16, false},
		// With a subscription, and a dial that asks why Redis is silent.
		{"stall and small pools", 0, true, true, 1, 4, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.more {
				redistest.NeedFull(t, "thousands of goroutines")
			}
			runBursts(t, func(t *testing.T, run func(*primitives.Client)) {
				d := dials{delay: tt.delay}
				c := NewClient(t, s.Client(t, func(o *redis.Options) {
					o.Dialer, o.PoolSize, o.PipelinePoolSize = d.dial, tt.pool, tt.pool
				}))
				if tt.warm { // with so many quick answers that callers send by themselves
					for range 50 {
						Release(t, Acquire(t, t.Context(), c.Lock(redistest.Name(t)+"warm")))
					}
				}
				if tt.stall {
					paused := make(chan error, 1)
					time.AfterFunc(5*time.Millisecond, func() { paused <- s.Pause() })
					defer func() { require.NoError(t, <-paused) }()
					time.AfterFunc(205*time.Millisecond, func() { _ = s.Resume() })
				}
				run(c)
				d.requireFew(t, tt.limit)
			})
		})
	}
}

// On a cluster that holds for each node.
func TestCountsConnectionsOfABurstOnACluster(t *testing.T) {
	redistest.NeedFull(t, "a cluster")
	cluster := redistest.Cluster(t)
	runBursts(t, func(t *testing.T, run func(*primitives.Client)) {
		d := dials{delay: 50 * time.Millisecond}
		c := NewClient(t, cluster.ClusterClient(t, func(o *redis.ClusterOptions) { o.Dialer = d.dial }))
		run(c)
		d.requireFew(t, 12)
	})
}
