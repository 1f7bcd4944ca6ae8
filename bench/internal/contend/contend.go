// Package contend defines the contenders of the benchmark: redlatch, its peers and go-redis alone,
// which the code calls a floor. A floor does a job by commands or small scripts, without renewal,
// loss detection or retries. Libraries that spend less on each command than go-redis pass it.
package contend

import (
	"context"
	"runtime/debug"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Contender is an implementation to measure. Exactly one of Open, Remote and Missing is set.
type Contender struct {
	Name   string // of its row: "redlatch", "go-redis alone, queue"
	Family string // group of related contenders: "redlatch", "go-redis", "bsm", ...
	Module string // Go module that supplies the version; empty for a floor

	// Commands lists the commands that the clients send and that none of the contender's scripts
	// calls. Commands that no script can call count in any case. See measure.Calls.ByClients.
	Commands []string
	// Prepare sets up the server for a workload, before the first client opens. It may be nil.
	Prepare func(ctx context.Context, rdb redis.UniversalClient, w Workload) error
	// Open opens a client.
	Open func(ctx context.Context, c ClientConfig) (Client, error)

	Remote Remote // runs whole workloads in another process

	Missing string // why the contender cannot run on this machine
}

// ClientConfig describes a client to open.
type ClientConfig struct {
	Target   Target
	Workload Workload
	Number   int // index of the client, from 0
}

// Client is one client of a contender, with its own connection pool. Many workers share it.
type Client interface {
	// Locker returns the handle that one worker acquires with. For a read-write lock, read selects
	// the read side. Calls must not overlap.
	Locker(ctx context.Context, name string, read bool) (Locker, error)
	Close() error
}

// Locker acquires for one worker.
type Locker interface {
	// Acquire waits until it acquires the lock or ctx is done.
	Acquire(ctx context.Context) (Hold, error)
}

// Hold is one acquisition. If it has a method Context() context.Context, that context is done when
// the hold is lost.
type Hold interface {
	Release(ctx context.Context) error
}

// maxPool bounds the connections of a client. A careful user with more workers would let them share
// connections.
const maxPool = 128

// Options returns the go-redis options for a target that is one server. All clients use the
// defaults of go-redis, without maintenance notifications.
func (t Target) Options() *redis.Options {
	return &redis.Options{
		Network: t.Network, Addr: t.Addr,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Dial returns a go-redis client with a connection per worker, up to maxPool, and two spare ones.
// In a cluster it has as many for each node.
func (c ClientConfig) Dial() redis.UniversalClient {
	o := c.Target.Options()
	o.PoolSize = min(c.Workload.Goroutines, maxPool) + 2
	if c.Target.Network != Cluster {
		return redis.NewClient(o)
	}
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: strings.Split(o.Addr, ","), PoolSize: o.PoolSize, MaintNotificationsConfig: o.MaintNotificationsConfig,
	})
}

// Version returns the version of a module in this binary, or "" if it is unknown.
func Version(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok || module == "" {
		return ""
	}
	for _, dep := range info.Deps {
		switch {
		case dep.Path != module:
		case dep.Replace != nil:
			return "(this checkout)"
		default:
			return dep.Version
		}
	}
	return ""
}
