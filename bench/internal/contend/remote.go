package contend

import (
	"context"
	"time"
)

// Kind is the shape of a workload.
type Kind string

// The kinds of workload, and what a Session does with each.
const (
	// Section: each of Clients*Goroutines workers enters a section and leaves it, again and again. Open connects the clients. Run is called twice,
	// first with a short Duration to warm up, then to measure. When Duration is over no worker begins another round; each ends the one that
	// it is in, and Run returns when all have.
	Section Kind = "section"
	// Crowd: one client more than Clients holds the lock; Clients*Goroutines workers wait for it. Open connects the clients, has them acquire
	// and release other keys, until each has the connections that it will keep, takes the lock, starts the workers, and returns one second later, when all wait. Run leaves everything
	// as it is for Duration, then releases the lock; each worker acquires it once and releases it, and Run returns when all have.
	Crowd Kind = "crowd"
	// Holds: one client holds Keys locks, renewed by itself. Open acquires them. Run waits for Duration; Close releases them.
	Holds Kind = "holds"
)

// Primitive is what a workload works with.
type Primitive string

// The primitives, and Redisson's name for each.
const (
	Lock      Primitive = "lock"      // getLock
	Fair      Primitive = "fair"      // getFairLock
	RW        Primitive = "rw"        // getReadWriteLock
	Semaphore Primitive = "semaphore" // getSemaphore
	Permits   Primitive = "permits"   // getPermitExpirableSemaphore
)

// Workload says what to do. It goes to other processes as JSON; durations are in nanoseconds there.
type Workload struct {
	ID        string    `json:"id"` // "W4"
	Kind      Kind      `json:"kind"`
	Primitive Primitive `json:"primitive"`

	// Name is fresh for each measurement. With Keys 1 it is the key that all share. With more, key i is Name + ":" + i; worker w uses key w,
	// and a Holds workload holds all. Other keys that are used begin with Name + ":".
	Name string `json:"name"`
	Keys int    `json:"keys"`

	Clients    int `json:"clients"`    // connected clients, each with a pool of its own
	Goroutines int `json:"goroutines"` // workers, or threads, of each client

	Permits int           `json:"permits,omitempty"` // of a semaphore; the session sets them up
	Reads   int           `json:"reads,omitempty"`   // RW: percentage of sections that read
	Inside  time.Duration `json:"inside,omitempty"`  // slept in each section
	TTL     time.Duration `json:"ttl,omitempty"`     // of the watchdog; 0: the contender's default

	// Turns: who has released does not come again before another has had the lock. Result.HandOverTimes are then wanted.
	Turns bool `json:"turns,omitempty"`

	// Queued: a Run begins to count only when all workers but one wait, which can be seen in the length of Redisson's queue
	// (redisson_lock_queue:{Name}).
	Queued bool `json:"queued,omitempty"`

	Duration time.Duration `json:"duration"`
}

// Workers is how many there are in all.
func (w Workload) Workers() int { return w.Clients * w.Goroutines }

// Result is what became of a Workload. It comes from other processes as JSON; durations and times are in nanoseconds there. A field that
// does not apply, or that cannot be known, is left 0 or out.
type Result struct {
	Elapsed time.Duration `json:"elapsed"` // Duration, as it was kept

	// What happened within Duration.
	Ops       int64   `json:"ops"`       // sections left
	HandOvers int64   `json:"handOvers"` // of these, those entered by another worker than the one before
	Reads     int64   `json:"reads,omitempty"`
	PerWorker []int64 `json:"perWorker,omitempty"` // Ops of each, client by client
	Waits     []int64 `json:"waits,omitempty"`     // ns from asking for the section (Crowd: from just before the release) to being in it, in any order

	// What happened until Run returned, the last round of each worker after Duration included: commands are counted until then.
	AllOps       int64 `json:"allOps"`
	AllHandOvers int64 `json:"allHandOvers"`

	// Unseen: commands that the contender knows it has sent until Run returned, of names that its scripts call as well: they are added to those
	// that can be counted by name. Stuck: waits that it gave up at the end of Run, because nothing would have ended them.
	Unseen int64 `json:"unseen,omitempty"`
	Stuck  int64 `json:"stuck,omitempty"`

	// HandOverTimes, of a workload with Turns: ns from just before the call that releases, to another worker's return with the lock.
	HandOverTimes []int64 `json:"handOverTimes,omitempty"`

	// The guard. Overlaps: sections entered while there were more inside than the primitive allows. Lost: exclusive sections that are missing in a
	// counter which each reads at its start, and writes, one more, at its end.
	Overlaps int64 `json:"overlaps"`
	Lost     int64 `json:"lost"`

	Drain     time.Duration `json:"drain,omitempty"`     // Crowd: from just before the release until the last worker has released
	LostHolds int           `json:"lostHolds,omitempty"` // Holds: how many the contender itself reports as lost

	CPU    time.Duration `json:"cpu"`              // spent by the process that ran it, while Run lasted
	Allocs int64         `json:"allocs,omitempty"` // made by that process, while Run lasted

	// What waiting or holding takes, by the end of Open, beyond what was there before: Crowd and Holds, for all waiters or holds together.
	Heap       int64 `json:"heap,omitempty"`       // bytes, after a garbage collection
	Stack      int64 `json:"stack,omitempty"`      // bytes
	Goroutines int64 `json:"goroutines,omitempty"` // or threads, of the library: without the workers themselves
}

// Target says where the server is.
type Target struct {
	Network string `json:"network"` // "unix" or "tcp"
	Addr    string `json:"addr"`    // a path, or host:port
}

// Session is a contender at work on one workload, from Open on, as Kind says. Its methods are called one after another.
type Session interface {
	// Run runs w once: the Workload that the session was opened with, but for Duration.
	Run(ctx context.Context, w Workload) (Result, error)
	// Close releases what is held and disconnects the clients.
	Close() error
}

// Remote is a contender whose workloads run elsewhere as a whole, such as in a Java process. It is reached by TCP.
type Remote interface {
	// Open connects the clients and brings them to where measuring begins, as Kind says.
	Open(ctx context.Context, target Target, w Workload) (Session, error)
	// Commands are the lower-case names, as in INFO commandstats, of the commands that it sends itself, beside those that only a client can send
	// (eval, evalsha, subscribe, ping, ...). Names that its scripts call as well cannot be told apart and are left out.
	Commands() []string
	// Version is the version of the library.
	Version() string
	// Close ends what all sessions share, such as the process.
	Close() error
}
