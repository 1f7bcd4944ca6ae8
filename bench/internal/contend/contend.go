// Package contend has what is measured: this library, its peers, and the floors that the medium sets.
package contend

import (
	"context"
	"runtime/debug"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Contender can be measured. Open, Remote or Missing is set.
type Contender struct {
	Name   string // of the row: "redlatch", "floor token"
	Family string // what it belongs to: "redlatch", "floor", "bsm", ...
	Module string // whose version it has; none for a floor

	// Commands are those that its clients send themselves, beside those that only clients can send.
	Commands []string
	// Prepare makes the server ready for a workload, before the first client opens. May be nil.
	Prepare func(ctx context.Context, rdb *redis.Client, w Workload) error
	// Open opens a client.
	Open func(ctx context.Context, s Setting) (Client, error)

	Remote Remote

	Missing string // why it is not here
}

// Setting is where a client stands.
type Setting struct {
	Target   Target
	Workload Workload
	Number   int // of the client, from 0
}

// Client is one client of a contender, with a pool of connections of its own. It serves many workers.
type Client interface {
	// Locker returns what one worker acquires with; read is true for the read side of a read-write lock.
	Locker(ctx context.Context, name string, read bool) (Locker, error)
	Close() error
}

// Locker acquires, for one worker.
type Locker interface {
	// Acquire waits until the caller has it, or ctx ends.
	Acquire(ctx context.Context) (Held, error)
}

// Held is one acquisition. One that has a method Context() context.Context tells by its end that it was lost.
type Held interface {
	Release(ctx context.Context) error
}

// maxPool bounds the connections of a client: beyond it a careful user would wait for one rather than open more.
const maxPool = 128

// Options are those of a client of the target, alike for all: the defaults of go-redis, without maintenance notifications.
func (t Target) Options() *redis.Options {
	return &redis.Options{
		Network: t.Network, Addr: t.Addr,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Dial returns a go-redis client with a connection for each worker, and two to spare.
func (s Setting) Dial() *redis.Client {
	o := s.Target.Options()
	o.PoolSize = min(s.Workload.Goroutines, maxPool) + 2
	return redis.NewClient(o)
}

// Version is that of a module in this binary, "" for none.
func Version(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok || module == "" {
		return ""
	}
	for _, dep := range info.Deps {
		switch {
		case dep.Path != module:
		case dep.Replace != nil:
			return "of this tree"
		default:
			return dep.Version
		}
	}
	return ""
}
