package torture

import (
	"encoding/json"
	"io"
	"sync"
	"time"
)

// protocol is the number of what a client process reads and writes. Raise it with every change that
// makes builds from before and after it misunderstand each other: of a workload, of a setup, or of
// what a record says. A field that may be missing is no such change.
const protocol = 1

// Kinds of records.
const (
	kindReady  = "ready"  // the process has started
	kindCall   = "call"   // an operation begins
	kindWait   = "wait"   // an acquisition was refused at its first attempt
	kindReturn = "return" // an operation ended
	kindValid  = "valid"  // the hold's ValidUntil has moved
	kindStay   = "stay"   // a moment of a hold that lasts
	kindEnd    = "end"    // the hold's context has ended without a release
	kindStall  = "stall"  // the process did not run for a while
	kindLate   = "late"   // an operation has not returned in time; Stacks are the stacks of all goroutines
	kindRenew  = "renew"  // a renewal of the id was answered, or failed
	kindSeen   = "seen"   // Watch has yielded a leader
	kindListen = "listen" // the holder begins to listen to Wanted
	kindWanted = "wanted" // the hold was told that somebody waits for it
	kindDeaf   = "deaf"   // the holder listens no more
	kindDone   = "done"   // all sessions have ended; Count is the number of goroutines left by the library
)

// Operations.
const (
	opAcquire   = "acquire"
	opRelease   = "release"
	opCheck     = "check"
	opExtend    = "extend"
	opInit      = "init"
	opCountDown = "count-down"
	opCount     = "count"
	opAwait     = "await"
	opDetach    = "detach"
	opAdopt     = "adopt"
	opReleaseID = "release-id"
	opForce     = "force"
	opAdd       = "add"
	opDrain     = "drain"
	opResize    = "resize"
	opInfo      = "info"
	opWatch     = "watch" // an election
	opLeader    = "leader"
)

// Outcomes of operations.
const (
	outcomeOK      = "ok"
	outcomeBusy    = "busy"    // ErrNotAcquired: held by others
	outcomeLost    = "lost"    // ErrLost
	outcomeAbsent  = "absent"  // ErrNotHeld
	outcomeUnknown = "unknown" // may or may not have been executed
	outcomeFailed  = "failed"  // any other error: not executed
)

// record is one line that a client process writes. Times are nanoseconds of the machine's monotonic
// clock.
type record struct {
	Kind string `json:"k"`
	At   int64  `json:"at"`
	Op   int64  `json:"op,omitempty"` // number of the operation, unique in its process

	// Of a call.
	Do        string        `json:"do,omitempty"`
	Session   int           `json:"s,omitempty"`
	Primitive string        `json:"p,omitempty"`
	Names     []string      `json:"n,omitempty"`
	Read      bool          `json:"r,omitempty"`
	Permits   int           `json:"permits,omitempty"` // of pools, also added or resized to; the count of a latch's Init
	Limit     int           `json:"limit,omitempty"`   // the size of the pool
	Root      int64         `json:"root,omitempty"`    // the acquisition of the outermost hold; of a release, its own
	Owner     string        `json:"owner,omitempty"`   // of WithOwner
	Target    string        `json:"target,omitempty"`  // the id that is adopted or released
	Try       bool          `json:"try,omitempty"`     // it does not wait, and its owner has the lock
	Once      bool          `json:"once,omitempty"`    // it does not wait
	Endless   bool          `json:"endless,omitempty"` // the context of the acquisition does not end
	TTL       time.Duration `json:"ttl,omitempty"`
	Fixed     bool          `json:"fixed,omitempty"`     // a lease that is not renewed
	MaxHold   time.Duration `json:"max,omitempty"`       // of WithMaxHold
	MinHold   time.Duration `json:"min,omitempty"`       // of WithMinHold
	Passes    bool          `json:"passes,omitempty"`    // it may be passed on within its client without a command
	Lingers   bool          `json:"lingers,omitempty"`   // with WithLinger
	Bound     int64         `json:"bound,omitempty"`     // when the call must have returned
	Forgotten bool          `json:"forgotten,omitempty"` // of a detachment: the hold was dropped without one

	// Of a return, a new validity or an end.
	Outcome string `json:"o,omitempty"`
	Err     string `json:"err,omitempty"`
	// Is are the errors of the library that Err matches, by errors.Is.
	Is     []string      `json:"is,omitempty"`
	Reason string        `json:"reason,omitempty"` // of a loss
	Silent time.Duration `json:"silent,omitempty"` // of a loss
	Events int           `json:"events,omitempty"` // of an acquisition: how many told its outcome
	ID     string        `json:"id,omitempty"`
	Token  int64         `json:"token,omitempty"`
	Until  int64         `json:"until,omitempty"` // the hold's ValidUntil
	// Protocol is that of a process that has started; 0: it was built before protocols had numbers.
	Protocol int `json:"protocol,omitempty"`
	// Library is what a process that has started uses in place of redlatch.
	Library string `json:"library,omitempty"`
	// Count is that of a latch, or the permits that Drain or Info has found; 1 if Init has created
	// something, or ForceRelease has found a holder; the length of a stall, in ns.
	Count int64 `json:"count,omitempty"`
	// Stacks say what the process does while an operation is late.
	Stacks string `json:"stacks,omitempty"`
}

// recorder writes records, one JSON object a line, each with one write: the process may be killed
// at any time.
type recorder struct {
	clock clock
	mu    sync.Mutex
	out   io.Writer
	sink  func(record) // of a simulated process, in place of out
}

// write blocks while the harness does not read. That is a stall of this process: the library calls
// it, too.
func (r *recorder) write(rec record) {
	if r.sink != nil {
		r.sink(rec)
		return
	}
	line := rec.line()
	begin := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = r.out.Write(line) // fails only when the parent has gone, and then so does this process
	if d := time.Since(begin); d > stallAfter {
		_, _ = r.out.Write(record{Kind: kindStall, At: r.clock.now(), Count: int64(d)}.line())
	}
}

func (r record) line() []byte {
	line, err := json.Marshal(r)
	if err != nil {
		panic(err) // a record has only plain fields
	}
	return append(line, '\n')
}

// setup is the first line that a client process reads.
type setup struct {
	Process    int            `json:"process"`
	Seed       uint64         `json:"seed"`
	Tag        string         `json:"tag"` // begins all names of the round
	Primitives []string       `json:"primitives"`
	Sessions   int            `json:"sessions"`
	Long       int            `json:"long"`  // one hold in so many lasts
	Names      int            `json:"names"` // of each primitive
	Slots      slots          `json:"slots"`
	Pace       pace           `json:"pace,omitempty"`
	Replicas   int            `json:"replicas,omitempty"` // of WithReplicas
	TTL        time.Duration  `json:"ttl"`
	Rates      rates          `json:"rates"`
	Defect     string         `json:"defect,omitempty"`
	ClientID   string         `json:"client_id,omitempty"` // of WithClientID
	Endpoint   clientEndpoint `json:"endpoint"`
}

// rates say how rare an act is: one in so many.
type rates struct {
	TakeOver int `json:"take_over"` // of uses
	Detach   int `json:"detach"`    // of holds that are let go
	Leave    int `json:"leave"`     // of holds that were detached: they are left to their leases
	habits
}

// habits are the rates of the features that callers combine with a hold.
type habits struct {
	Inspect int `json:"inspect"`          // Check or Extend
	Nest    int `json:"nest"`             // of holds whose sections do not inspect
	Fixed   int `json:"fixed"`            // WithLease
	Limit   int `json:"limit"`            // WithMaxHold
	Minimum int `json:"minimum"`          // WithMinHold
	TryDo   int `json:"try_do,omitempty"` // of uses; 0: as usual

	// GiveUp is for further acquisitions that end early, Past for holds with limits that were
	// extended and last beyond that, and Middle for holds that end before their first renewal, and
	// yet last. 0: none.
	GiveUp int `json:"give_up,omitempty"`
	Past   int `json:"past,omitempty"`
	Middle int `json:"middle,omitempty"`
}

var (
	usualHabits   = habits{Inspect: 6, Nest: 4, Fixed: 8, Limit: 12, Minimum: 10}
	usualRates    = rates{TakeOver: 25, Detach: 12, Leave: 6, habits: usualHabits}
	rareTakeovers = rates{TakeOver: 500, Detach: 500, Leave: 6, habits: usualHabits}
)

// order is a further line that a client process reads.
type order struct {
	Do         string `json:"do"` // hang, drain, close, generation
	On         bool   `json:"on,omitempty"`
	Generation int64  `json:"generation,omitempty"`
}
