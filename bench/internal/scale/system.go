package scale

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/redlatch/redlatch/bench/internal/contend"
	"github.com/redlatch/redlatch/bench/internal/measure"
	"github.com/redlatch/redlatch/bench/internal/server"
)

// system is what a check runs on: one server, or a cluster.
type system struct {
	name   string // in the tables
	target contend.Target
	nodes  []*server.Server
	close  func()
	// settle is how long waiters get until all of them wait, and Redis to free its buffers: it does
	// so two seconds after their last use.
	settle time.Duration
	pace   time.Duration // of the machine at the start
}

const defaultSettle = 3 * time.Second

func startSingle(ctx context.Context) (*system, error) {
	s, err := server.Start(ctx)
	if err != nil {
		return nil, err
	}
	return &system{"one server", s.Unix, []*server.Server{s}, s.Close, defaultSettle, pace()}, nil
}

// startCluster starts a cluster of three masters.
func startCluster(ctx context.Context) (*system, error) {
	c, err := server.StartCluster(ctx, 3)
	if err != nil {
		return nil, err
	}
	return &system{"cluster of 3", c.Target, c.Nodes, c.Close, defaultSettle, pace()}, nil
}

// dial returns a client with up to pool connections to each node.
func (s *system) dial(pool int) redis.UniversalClient {
	off := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if s.target.Network == contend.Cluster {
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: strings.Split(s.target.Addr, ","), PoolSize: pool, MaintNotificationsConfig: off,
		})
	}
	o := s.target.Options()
	o.PoolSize = pool
	return redis.NewClient(o)
}

// sample is the state of the servers and of this process at one instant.
type sample struct {
	at     time.Time
	server time.Duration // processor time of all servers
	client time.Duration // of this process
	memory int64         // used by all servers, bytes
	calls  measure.Calls
}

func (s *system) sample(ctx context.Context) (sample, error) {
	now := sample{at: time.Now(), client: measure.CPU(), calls: measure.Calls{}}
	for _, node := range s.nodes {
		text, err := node.Admin.Info(ctx, "commandstats", "cpu", "memory").Result()
		if err != nil {
			return now, fmt.Errorf("scale: info: %w", err)
		}
		now.calls.Add(measure.ParseCalls(text))
		now.server += measure.ParseCPU(text)
		var used int64
		for line := range strings.Lines(text) {
			if value, found := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); found {
				if _, err := fmt.Sscan(value, &used); err != nil {
					return now, fmt.Errorf("scale: used_memory: %w", err)
				}
			}
		}
		now.memory += used
	}
	return now, nil
}

// usage is what happened between two samples.
type usage struct {
	took           time.Duration
	server, client time.Duration
	memory         int64
	scripts        int64 // that clients sent
	published      int64 // messages published, by scripts too
	commands       int64 // that clients sent, scripts included

	// slowness is the time that the machine took for a fixed computation, as a ratio to that at the
	// start. The processor times are divided by it.
	slowness float64
}

func (s sample) since(before sample) usage {
	calls := s.calls.Since(before.calls)
	return usage{
		took: s.at.Sub(before.at), server: s.server - before.server, client: s.client - before.client,
		memory: s.memory - before.memory, scripts: calls["evalsha"] + calls["eval"],
		published: calls["publish"] + calls["spublish"], commands: calls.ByClients(),
	}
}

// perSecond returns n in a second of the time that the usage took.
func (u usage) perSecond(n int64) float64 { return float64(n) / u.took.Seconds() }

// run samples the system around f.
func (s *system) run(ctx context.Context, f func() error) (usage, error) {
	first := pace()
	before, err := s.sample(ctx)
	if err != nil {
		return usage{}, err
	}
	if err := f(); err != nil {
		return usage{}, err
	}
	after, err := s.sample(ctx)
	u := after.since(before)
	u.slowness = float64(first+pace()) / float64(2*s.pace)
	u.server = time.Duration(float64(u.server) / u.slowness)
	u.client = time.Duration(float64(u.client) / u.slowness)
	return u, err
}

// pace returns how long this machine takes for a fixed computation: the median of some tries. The
// speed of a virtual machine changes from minute to minute.
func pace() time.Duration {
	block := make([]byte, 4<<20)
	tries := make([]time.Duration, 15)
	for i := range tries {
		began := time.Now()
		sha256.Sum256(block)
		tries[i] = time.Since(began)
	}
	slices.Sort(tries)
	return tries[len(tries)/2]
}

// micros returns d as microseconds per one of n.
func micros(d time.Duration, n int64) float64 {
	return measure.Quotient(float64(d)/float64(time.Microsecond), n)
}
