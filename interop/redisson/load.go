package redisson

import (
	"context"
	"time"
)

// The shapes of a Load.
const (
	Section = "section" // all threads enter and leave again and again
	Crowd   = "crowd"   // all threads wait for what the last of the clients, whose own they are not, holds; then each enters once
	Holds   = "holds"   // the threads of one client hold all keys, which the client renews
)

// Load is work for many threads, all within Java, for measuring.
type Load struct {
	Shape     string
	Primitive string        // a kind, as Client.Object knows it, or "rw"
	Clients   []*Client     // of one driver
	Threads   int           // of each client; those of the first come first in all counts
	Name      string        // the key, if there is one
	Keys      int           // with more than one they are Name:0, Name:1 ..., and thread n uses the n-th
	Permits   int           // of a semaphore, set up by Driver.Load
	Reads     int           // rw: percentage of entries that read
	Inside    time.Duration // slept in each section
	Turns     bool          // section: who has left waits until another has entered
	Queued    bool          // section, fair: counting begins once nearly all threads stand in the queue
}

func (l Load) fields() map[string]any {
	clients := make([]string, len(l.Clients))
	for i, c := range l.Clients {
		clients[i] = c.name
	}
	return map[string]any{
		"shape": l.Shape, "primitive": l.Primitive, "clients": clients, "threads": l.Threads, "name": l.Name, "keys": max(1, l.Keys),
		"permits": l.Permits, "reads": l.Reads, "insideNanos": l.Inside, "turns": l.Turns, "queued": l.Queued,
	}
}

// Usage is what waiting or holding takes in the Java process, beyond what was there before, and without the threads of the Load.
type Usage struct {
	Heap    int64 `json:"heapBytes"` // after a garbage collection
	Threads int64 `json:"threads"`
}

// Outcome is what became of a run. An operation is an entry that has been left; a hand-over is one by another thread than the entry
// before it on the same key. What ended within the time of the run counts; All includes what ended after it.
type Outcome struct {
	Took          time.Duration   `json:"nanos"` // in which operations counted; of a crowd, from just before the release to the last thread's leave
	Operations    int64           `json:"operations"`
	HandOvers     int64           `json:"handOvers"`
	Reads         int64           `json:"reads"`
	PerThread     []int64         `json:"perThread"`     // operations
	Waits         []time.Duration `json:"waits"`         // for each entry, and for those given up; of a crowd, from just before the release
	Stuck         int64           `json:"stuck"`         // waits given up at the end, after two seconds in which nobody came through
	HandOverTimes []time.Duration `json:"handOverTimes"` // from just before a thread leaves to the entry of the other
	AllOperations int64           `json:"allOperations"`
	AllHandOvers  int64           `json:"allHandOvers"`
	Overlaps      int64           `json:"overlaps"`    // entries that found too many inside
	LostUpdates   int64           `json:"lostUpdates"` // of a counter that each entry reads at first and writes at last
	CPU           time.Duration   `json:"cpuNanos"`    // of the whole process
}

// Session is a Load that is ready to run.
type Session struct {
	driver *Driver
	thread string
	id     int64
	usage  Usage
}

// Load prepares a load: a crowd waits, the holds are held, when it returns.
func (d *Driver) Load(ctx context.Context, load Load) (*Session, error) {
	s := &Session{driver: d, thread: load.Clients[0].thread("load")}
	ready, err := result[struct {
		Session int64
		Usage   Usage
	}](d.Call(ctx, Command{Op: "load", Thread: s.thread, Load: load.fields()}))
	s.id, s.usage = ready.Session, ready.Usage
	return s, err
}

// Usage is what the crowd or the holds took when they were there.
func (s *Session) Usage() Usage { return s.usage }

// Run does the work for that long: sections for that long, and to the end of those begun by then; a crowd waits on, and then comes
// through; holds are held on. A crowd runs once.
func (s *Session) Run(ctx context.Context, length time.Duration) (Outcome, error) {
	return result[Outcome](s.driver.Call(ctx, Command{Op: "run", Thread: s.thread, Args: []any{s.id, length}}))
}

// Close gives back what is held. Its error tells if holds had been lost. The clients stay open.
func (s *Session) Close(ctx context.Context) error {
	_, err := s.driver.Call(ctx, Command{Op: "unload", Thread: s.thread, Args: []any{s.id}})
	return err
}
