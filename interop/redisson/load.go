package redisson

import (
	"context"
	"time"
)

// The shapes of a Load.
const (
	// Section: all threads enter and leave a critical section repeatedly.
	Section = "section"
	// Crowd: the last client holds a lock and the threads of all other clients wait for it. After
	// its release each thread enters once.
	Crowd = "crowd"
	// Holds: the threads of one client hold all keys, and the client renews them.
	Holds = "holds"
)

// Load is work for many Java threads, to be measured in Java.
type Load struct {
	Shape     string
	Primitive string        // a kind as in Client.Object, or "rw"
	Clients   []*Client     // of one driver
	Threads   int           // per client; per-thread results start with the threads of the first client
	Name      string        // the key, if Keys is at most 1
	Keys      int           // if more than 1: keys are Name:0, Name:1, ...; thread n uses key n mod Keys
	Permits   int           // of a semaphore, set up by Driver.Load
	Reads     int           // for rw: percentage of entries that read
	Inside    time.Duration // sleep in each section
	Turns     bool          // section: a thread that has left waits until another one has entered
	Queued    bool          // section, fair: counting starts when nearly all threads are in the queue
}

func (l Load) fields() map[string]any {
	clients := make([]string, len(l.Clients))
	for i, c := range l.Clients {
		clients[i] = c.name
	}
	return map[string]any{
		"shape": l.Shape, "primitive": l.Primitive, "clients": clients, "threads": l.Threads,
		"name": l.Name, "keys": max(1, l.Keys), "permits": l.Permits, "reads": l.Reads,
		"insideNanos": l.Inside, "turns": l.Turns, "queued": l.Queued,
	}
}

// Usage is the cost of waiting or holding in the Java process. It does not include the threads of
// the Load.
type Usage struct {
	Heap    int64 `json:"heapBytes"` // after a garbage collection
	Threads int64 `json:"threads"`
}

// Outcome is the result of a run.
//
// An operation is one entry and leave of a section. A hand-off is an operation whose predecessor on
// the same key was by another thread. Results include the operations that ended during the run. The
// fields AllOperations and AllHandOffs also include operations that ended after it.
type Outcome struct {
	// Took is the measured time. For a crowd it starts just before the release and ends when the
	// last thread has left.
	Took       time.Duration `json:"nanos"`
	Operations int64         `json:"operations"`
	HandOffs   int64         `json:"handOffs"`
	Reads      int64         `json:"reads"`
	PerThread  []int64       `json:"perThread"` // operations by thread
	// Waits are the times until each entry, and the times of abandoned waits. For a crowd they
	// start just before the release.
	Waits []time.Duration `json:"waits"`
	// Stuck is the number of waits abandoned at the end, after two seconds without any entry.
	Stuck         int64           `json:"stuck"`
	HandOffTimes  []time.Duration `json:"handOffTimes"` // from just before a leave to the next entry
	AllOperations int64           `json:"allOperations"`
	AllHandOffs   int64           `json:"allHandOffs"`
	Overlaps      int64           `json:"overlaps"` // entries that exceeded the capacity of the section
	// LostUpdates counts lost updates of a counter that each section reads first and writes last.
	LostUpdates int64         `json:"lostUpdates"`
	CPU         time.Duration `json:"cpuNanos"` // of the whole process
}

// Session is a Load that is ready to run.
type Session struct {
	driver *Driver
	thread string
	id     int64
	usage  Usage
}

// Load prepares a load. When it returns, the threads of a crowd wait, and the keys of holds are
// held.
func (d *Driver) Load(ctx context.Context, load Load) (*Session, error) {
	s := &Session{driver: d, thread: load.Clients[0].thread("load")}
	ready, err := result[struct {
		Session int64
		Usage   Usage
	}](d.Call(ctx, Command{Op: "load", Thread: s.thread, Load: load.fields()}))
	s.id, s.usage = ready.Session, ready.Usage
	return s, err
}

// Usage returns the cost of the waiting crowd, or of the holds. It was measured by Driver.Load.
func (s *Session) Usage() Usage { return s.usage }

// Run runs the load for the given time. Threads of a section finish the operations that they have
// started. A crowd waits for that time, then the lock is released and each thread enters; a crowd
// runs only once. Holds stay held.
func (s *Session) Run(ctx context.Context, length time.Duration) (Outcome, error) {
	return result[Outcome](s.driver.Call(ctx, Command{Op: "run", Thread: s.thread, Args: []any{s.id, length}}))
}

// Close releases all holds. It returns an error if holds were lost. The clients stay open.
func (s *Session) Close(ctx context.Context) error {
	_, err := s.driver.Call(ctx, Command{Op: "unload", Thread: s.thread, Args: []any{s.id}})
	return err
}
