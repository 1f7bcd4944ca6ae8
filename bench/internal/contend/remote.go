package contend

import (
	"context"
	"time"
)

// Kind is the shape of a workload. See Session for the phases Open, Run and Close.
type Kind string

// The kinds of workload.
const (
	// Section: each of Clients*Goroutines workers enters and leaves a critical section in a loop.
	//
	// Open connects the clients. Run is called twice: with a short Duration to warm up, then to
	// measure. When Duration is over, each worker finishes its section and stops; Run returns when
	// all have stopped.
	Section Kind = "section"

	// Crowd: an extra client holds the lock, and Clients*Goroutines workers wait for it.
	//
	// Open connects the clients. Each client first acquires and releases other keys, so that it
	// opens all its connections. Then Open acquires the lock, starts the workers and returns one
	// second later, when all of them wait. Run sleeps for Duration, then releases the lock. Each
	// worker acquires and releases it once. Run returns when all workers have done so.
	Crowd Kind = "crowd"

	// Holds: one client holds Keys locks, which it renews. Open acquires them, Run waits for
	// Duration, Close releases them.
	Holds Kind = "holds"
)

// Primitive is the coordination primitive that a workload uses.
type Primitive string

// The primitives, with the Redisson method that returns each.
const (
	Lock      Primitive = "lock"      // getLock
	Fair      Primitive = "fair"      // getFairLock
	RW        Primitive = "rw"        // getReadWriteLock
	Semaphore Primitive = "semaphore" // getSemaphore
	Permits   Primitive = "permits"   // getPermitExpirableSemaphore
	Cohort    Primitive = "cohort"    // none: a lock with WithCohort
	Linger    Primitive = "linger"    // none: a lock with WithLinger
	Three     Primitive = "three"     // getMultiLock: three locks at once
)

// Workload describes what the workers do. It is sent to other processes as JSON, with durations in
// nanoseconds.
type Workload struct {
	ID        string    `json:"id"` // "W4"
	Kind      Kind      `json:"kind"`
	Primitive Primitive `json:"primitive"`

	// Name is unique for each measurement. If Keys is 1, it is the key that all workers share. If
	// Keys is greater, key i is Name + ":" + i: worker w uses key w, and a Holds workload holds all
	// keys. All other keys in use start with Name + ":".
	Name string `json:"name"`
	Keys int    `json:"keys"`

	Clients    int `json:"clients"`    // connected clients, each with its own connection pool
	Goroutines int `json:"goroutines"` // workers, or threads, per client

	Permits int           `json:"permits,omitempty"` // of a semaphore; the session initializes them
	Reads   int           `json:"reads,omitempty"`   // RW: percentage of read sections
	Inside  time.Duration `json:"inside,omitempty"`  // sleep in each section
	TTL     time.Duration `json:"ttl,omitempty"`     // watchdog TTL; 0: the contender's default

	// Turns makes a worker wait after its release until another worker has acquired the lock. The
	// result then contains HandOffTimes.
	Turns bool `json:"turns,omitempty"`

	// NewHandle makes a worker use a new handle for each acquisition. Only redlatch supports it.
	NewHandle bool `json:"newHandle,omitempty"`

	// Queued delays the measurement until nearly all workers wait in Redisson's queue,
	// redisson_lock_queue:{Name}.
	Queued bool `json:"queued,omitempty"`

	Duration time.Duration `json:"duration"`
}

// Workers returns the number of workers of all clients.
func (w Workload) Workers() int { return w.Clients * w.Goroutines }

// Result is the outcome of one Run. It is received from other processes as JSON, with durations in
// nanoseconds. Fields that do not apply or are unknown are zero.
//
// A hand-off is an acquisition by a different worker than the previous one.
type Result struct {
	Elapsed time.Duration `json:"elapsed"` // the measured duration

	// Counted within Duration.
	Ops       int64   `json:"ops"`      // completed sections
	HandOffs  int64   `json:"handOffs"` // sections that began with a hand-off
	Reads     int64   `json:"reads,omitempty"`
	PerWorker []int64 `json:"perWorker,omitempty"` // Ops of each worker, client by client

	// Waits has the time to acquire, in ns and in no particular order. A Crowd's waits start just
	// before the release.
	Waits []int64 `json:"waits,omitempty"`

	// Counted until Run returns: these include each worker's last section, which may end after
	// Duration. Commands are counted over the same time.
	AllOps      int64 `json:"allOps"`
	AllHandOffs int64 `json:"allHandOffs"`

	// Unseen counts commands that a client sent and that scripts call too, such as DEL. INFO
	// commandstats does not distinguish the two, so the contender counts them.
	Unseen int64 `json:"unseen,omitempty"`
	// Stuck is the number of waits cancelled at the end of Run because no wake-up would have ended
	// them.
	Stuck int64 `json:"stuck,omitempty"`

	// HandOffTimes is set if Workload.Turns is: ns from just before the release until another
	// worker's Acquire has returned.
	HandOffTimes []int64 `json:"handOffTimes,omitempty"`

	// Violations found by the guard. Overlaps counts sections that were entered while too many
	// workers were inside. Lost counts lost updates of a counter, which each exclusive section
	// reads at its start and writes at its end.
	Overlaps int64 `json:"overlaps"`
	Lost     int64 `json:"lost"`

	Drain     time.Duration `json:"drain,omitempty"`     // Crowd: from before the release until all workers have released
	LostHolds int           `json:"lostHolds,omitempty"` // Holds: as reported by the contender

	CPU    time.Duration `json:"cpu"`              // processor time of the process during Run
	Allocs int64         `json:"allocs,omitempty"` // heap allocations of the process during Run

	// Crowd and Holds: the resources of all waiters or holds together, without the connected
	// clients, measured at the end of Open.
	Heap       int64 `json:"heap,omitempty"`       // bytes, after a garbage collection
	Stack      int64 `json:"stack,omitempty"`      // bytes
	Goroutines int64 `json:"goroutines,omitempty"` // or threads; without the workers themselves
}

// Cluster is the network of a target that is a cluster.
const Cluster = "cluster"

// Target is the address of the server, or of the nodes of a cluster.
type Target struct {
	Network string `json:"network"` // "unix", "tcp" or Cluster
	Addr    string `json:"addr"`    // a path, or host:port; for a cluster, those of its nodes, separated by commas
}

// Session is a contender that is ready to run one workload. Kind describes what it does. Calls must
// not overlap.
type Session interface {
	// Run runs w once. w differs from the Workload of Open in its Duration only.
	Run(ctx context.Context, w Workload) (Result, error)
	// Close releases all holds and disconnects the clients.
	Close() error
}

// Remote is a contender that runs whole workloads in another process, such as Java. It connects to
// Redis by TCP.
type Remote interface {
	// Open connects the clients and prepares the workload, as described for its Kind.
	Open(ctx context.Context, target Target, w Workload) (Session, error)
	// Commands lists commands that the clients send, in lower case as in INFO commandstats. It
	// leaves out commands that scripts cannot call (eval, evalsha, subscribe, ping, ...), because
	// they always count. It also leaves out commands that the contender's own scripts call; see
	// Result.Unseen.
	Commands() []string
	// Version returns the version of the library.
	Version() string
	// Close releases the resources that all sessions share, such as the process.
	Close() error
}
