package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// Config says what to test, with what, and for how long. The zero values of its durations and
// numbers stand for the defaults.
type Config struct {
	Duration   time.Duration    // default: one round
	Round      time.Duration    // length of a round; default 1.2 s for each 4 primitives
	Seed       uint64           // of the first round; each further round adds 1
	Faults     []string         // default: all that can be injected
	Primitives []string         // default: all
	Topology   string           // of servers that are started; default Single. Ignored with an Endpoint
	Endpoint   *Endpoint        // servers of somebody else
	Prefix     string           // of all names
	Every      [2]time.Duration // between two faults
	Processes  int
	Sessions   int           // goroutines of each process
	TTL        time.Duration // of half of the names; the others have three times as much
	Timelines  string        // directory for the timelines of violations; default: the current one
	Pictures   bool          // keep what Result.Page draws
	FailFast   bool          // stop after the first round with a violation
	Progress   func(Progress)
	// Client returns the command that starts a client process, which calls Worker.
	Client func() *exec.Cmd
	// Other, if not nil, returns the same for another build of this program, or for a program that
	// calls LibraryWorker. Every second client process is one, and each of them is if Client is
	// nil.
	Other func() *exec.Cmd

	defect  string
	single  bool               // one lane
	copyAge time.Duration      // of copies that are sent between rounds
	rates   rates              // default: usualRates
	pace    pace               // of all rounds; default: as their themes say
	drain   time.Duration      // how long sessions may take to end
	long    int                // one hold in so many lasts
	until   []string           // stop after the first round in which one of these checks has failed
	enough  func(*Result) bool // stop after the first round after which it is true
}

// Progress is how far a run is.
type Progress struct {
	Elapsed     time.Duration
	Round       int
	Operations  int
	Faults      int
	Violations  int
	LongestWait time.Duration
}

// Result is what a run has found.
type Result struct {
	Topology    string         `json:"topology"`
	Seed        uint64         `json:"seed"`
	Rounds      int            `json:"rounds"`
	Elapsed     time.Duration  `json:"-"`
	ElapsedMS   int64          `json:"elapsed_ms"`
	Operations  map[string]int `json:"operations"`                 // by primitive
	Others      int            `json:"other_operations,omitempty"` // performed by the program that --other names
	Outcomes    map[string]int `json:"outcomes"`
	Unknown     int            `json:"unknown"`
	Faults      map[string]int `json:"faults"`
	Enabled     []string       `json:"enabled"`            // faults that could be injected
	Coverage    Coverage       `json:"coverage"`           // operations that met a fault, by fault, primitive and phase
	LeftOut     []string       `json:"left_out,omitempty"` // faults that cannot be injected here
	Lost        int            `json:"lost"`               // holds
	LongestWait time.Duration  `json:"-"`
	LongestMS   int64          `json:"longest_wait_ms"`
	Undecided   []string       `json:"undecided,omitempty"` // names whose history porcupine could not decide in time
	Violations  []Violation    `json:"violations"`
	Logs        []string       `json:"logs,omitempty"` // of the rounds with violations

	pictures []*pageRound
}

// Total is the number of operations of all primitives.
func (r *Result) Total() int {
	sum := 0
	for _, n := range r.Operations {
		sum += n
	}
	return sum
}

// NoFaults in place of faults injects none.
const NoFaults = "none"

// ErrConfig is an error of a Config.
var ErrConfig = errors.New("torture: bad configuration")

// ErrUnreachable means that a given Redis does not answer, or refuses.
var ErrUnreachable = errors.New("torture: cannot use Redis")

func (c Config) withDefaults() (Config, error) {
	set := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	set(&c.Duration, 20*time.Second)
	set(&c.TTL, 600*time.Millisecond)
	set(&c.drain, drainLimit)
	set(&c.copyAge, copyAge)
	set(&c.Every[0], 150*time.Millisecond)
	set(&c.Every[1], 450*time.Millisecond)
	if c.Processes == 0 {
		c.Processes = 4
	}
	if c.rates == (rates{}) {
		c.rates = usualRates
	}
	if c.rates.habits == (habits{}) {
		c.rates.habits = usualHabits
	}
	if c.long == 0 {
		c.long = 8
	}
	if c.Sessions == 0 {
		c.Sessions = 10
	}
	if c.Topology == "" {
		c.Topology = Single
	}
	if c.Timelines == "" {
		c.Timelines = "."
	}
	if c.Progress == nil {
		c.Progress = func(Progress) {}
	}
	if len(c.Primitives) == 0 {
		c.Primitives = Primitives
		if c.Other != nil { // which may be older than elections
			c.Primitives = slices.DeleteFunc(slices.Clone(Primitives), func(p string) bool { return p == electionPrimitive })
		}
	}
	groups := (len(c.Primitives) + slotPrimitives - 1) / slotPrimitives
	set(&c.Round, min(c.Duration, time.Duration(max(groups, 2))*slotLength))
	for _, p := range c.Primitives {
		if !slices.Contains(Primitives, p) {
			return c, fmt.Errorf("%w: no primitive %q; there are %s", ErrConfig, p, strings.Join(Primitives, ", "))
		}
	}
	known := []string{NoFaults}
	for _, f := range faults() {
		known = append(known, f.name)
	}
	for _, f := range c.Faults {
		if !slices.Contains(known, f) {
			return c, fmt.Errorf("%w: no fault %q; there are %s", ErrConfig, f, strings.Join(known, ", "))
		}
	}
	if !slices.Contains(Topologies, c.Topology) {
		return c, fmt.Errorf("%w: no topology %q; there are %s", ErrConfig, c.Topology, strings.Join(Topologies, ", "))
	}
	if c.Duration < 0 || c.Client == nil && c.Other == nil {
		return c, fmt.Errorf("%w: a negative duration, or no client", ErrConfig)
	}
	// Now, not when there is a violation to report.
	if err := os.MkdirAll(c.Timelines, 0o750); err != nil {
		return c, fmt.Errorf("%w: the directory for timelines: %w", ErrConfig, err)
	}
	return c, nil
}

// runner is a run.
type runner struct {
	cfg     Config
	enabled []fault
	nonce   string // makes names of different runs differ
	began   time.Time

	checking sync.Mutex // held while a history is checked

	mu      sync.Mutex // guards the rest
	seed    uint64     // of the next round
	running map[*round]bool
	result  *Result
}

// lane makes one round after another, on servers of its own. A round mostly waits: for leases to
// end, for calls to return, for processes to start, so several lanes meet more in the same time.
type lane struct {
	*runner

	d      *deployment
	client *primitives.Client // of the operator
	kept   []keptCommand
}

// lanes is how many lanes a run has on servers of its own. Sets of replicas need more servers.
func (c *Config) lanes() int {
	switch {
	case c.Endpoint != nil || c.single:
		return 1
	case c.Topology == Sentinel || c.Topology == Cluster:
		return 2
	}
	return min(max(runtime.NumCPU(), 2), 3)
}

func newLane(r *runner) (*lane, error) {
	l := &lane{runner: r}
	var err error
	if r.cfg.Endpoint != nil {
		l.d, err = connect(*r.cfg.Endpoint)
	} else {
		l.d, err = start(r.cfg.Topology)
	}
	if err != nil {
		return nil, err
	}
	if l.client, err = operator(l.d.rdb); err != nil {
		l.d.close()
		return nil, err
	}
	return l, nil
}

func (l *lane) close() {
	ctx, cancel := soon()
	defer cancel()
	_ = l.client.Close(ctx)
	l.d.close()
}

// run makes rounds until the time is over, or until enough is found: then it stops the other lanes.
func (l *lane) run(ctx context.Context, stop func()) error {
	for {
		seed, ok := l.next()
		if !ok || ctx.Err() != nil {
			return nil
		}
		err := l.round(ctx, seed)
		if err == nil {
			err = l.sendCopies()
		}
		if err != nil || l.foundEnough() {
			stop()
			return err
		}
	}
}

// next returns the seed of the next round, unless the time is over.
func (r *runner) next() (seed uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seed = r.seed
	r.seed++
	return seed, seed == r.cfg.Seed || time.Since(r.began) < r.cfg.Duration
}

// foundEnough reports whether the run should end before its time.
func (r *runner) foundEnough() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cfg.enough != nil && r.cfg.enough(r.result) {
		return true
	}
	return slices.ContainsFunc(r.result.Violations, func(v Violation) bool {
		return r.cfg.FailFast || slices.Contains(r.cfg.until, v.Check)
	})
}

// Run tests the library. It returns what it has found, and an error if it could not go on. When ctx
// ends, the current round is dropped.
func Run(ctx context.Context, c Config) (*Result, error) {
	if !supported {
		return nil, fmt.Errorf("torture: %w on this system", errors.ErrUnsupported)
	}
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &runner{
		cfg: c, nonce: fmt.Sprintf("%x", time.Now().UnixMilli()), began: time.Now(), seed: c.Seed,
		running: map[*round]bool{},
	}
	r.result = &Result{
		Topology: c.Topology, Seed: c.Seed,
		Operations: map[string]int{}, Outcomes: map[string]int{}, Faults: map[string]int{},
		Coverage: Coverage{}, Enabled: []string{}, Violations: []Violation{},
	}
	var lanes []*lane
	for range c.lanes() {
		l, err := newLane(r)
		if err != nil {
			return nil, err
		}
		defer l.close()
		lanes = append(lanes, l)
	}
	r.choose(lanes[0].d)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var all errgroup
	for _, l := range lanes {
		all.Go(func() error { return l.run(ctx, stop) })
	}
	err = all.Wait()
	r.result.Elapsed = time.Since(r.began)
	r.result.ElapsedMS, r.result.LongestMS = r.result.Elapsed.Milliseconds(), r.result.LongestWait.Milliseconds()
	return r.result, err
}

// choose finds out which of the wanted faults can be injected.
func (r *runner) choose(d *deployment) {
	r.result.Topology = d.kind
	for _, f := range faults() {
		wanted := len(r.cfg.Faults) == 0 || slices.Contains(r.cfg.Faults, f.name)
		switch {
		case wanted && f.possible(d):
			r.enabled = append(r.enabled, f)
			r.result.Enabled = append(r.result.Enabled, f.name)
		case wanted:
			r.result.LeftOut = append(r.result.LeftOut, f.name)
		}
	}
}
