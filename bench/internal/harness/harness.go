package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/bench/internal/contend"
	"github.com/redlatch/redlatch/bench/internal/report"
	"github.com/redlatch/redlatch/bench/internal/server"
	"github.com/redlatch/redlatch/bench/internal/workload"
)

// Networks that a run can use.
const (
	Unix = "unix"
	TCP  = "tcp"
)

// Config says what to measure.
type Config struct {
	Specs      []Spec
	Contenders map[string]contend.Contender
	Who        []string      // families or rows; none: all. What they are compared with comes along
	Networks   []string      // of the contenders in Go; remote ones use TCP, and bring what they are compared with
	Rounds     int           // of each workload; the slow ones take half as many
	Duration   time.Duration // of each measurement; 0: the workload's own
	Fork       bool          // a process for each client, where that makes sense
	Profile    string        // a folder for processor profiles; "": none
	// Progress tells what is being measured. May be nil.
	Progress func(text string)
}

// warmUp is how long a section runs before it is measured.
const warmUp = 100 * time.Millisecond

// Run measures everything. Whatever goes wrong with one row is noted there, and the run goes on. The error is that of the run itself.
func Run(ctx context.Context, s *server.Server, c Config) (*report.Report, error) {
	began := time.Now()
	r := &report.Report{Setup: setup(s, c)}
	for _, spec := range c.Specs {
		w, err := c.measure(ctx, s, spec)
		if err != nil {
			return r, err
		}
		if len(w.Rows) > 0 {
			r.Workloads = append(r.Workloads, w)
		}
	}
	r.Setup.Took = time.Since(began)
	return r, nil
}

// entry is one row of a workload on one network, as it is measured.
type entry struct {
	row       Row
	contender contend.Contender
	network   string
	base      string
	forked    bool
	stuck     int64

	result report.Row
}

// measure runs all entries of a workload in each round, each time beginning with another.
func (c Config) measure(ctx context.Context, s *server.Server, spec Spec) (report.Workload, error) {
	entries, missing := c.entries(spec)
	w := report.Workload{ID: spec.ID, Title: spec.Title, Shape: spec.shape(c, Row{}), Rounds: c.rounds(spec), Forked: c.Fork && spec.Forks, Metrics: spec.Metrics}
	for round := range w.Rounds {
		for i := range entries {
			e := entries[(i+round)%len(entries)]
			if err := context.Cause(ctx); err != nil {
				return w, fmt.Errorf("harness: %w", err)
			}
			c.tell("%s, round %d of %d: %s (%s)", spec.ID, round+1, w.Rounds, e.result.Name, e.network)
			e.add(c.once(ctx, s, spec, e, round))
		}
	}
	for _, e := range entries {
		e.result.Summary(baseOf(entries, e))
		w.Rows = append(w.Rows, e.result)
	}
	for _, e := range missing {
		e.result.Skipped = e.contender.Missing
		w.Rows = append(w.Rows, e.result)
	}
	return w, nil
}

func (c Config) rounds(spec Spec) int {
	if spec.Slow {
		return max(c.Rounds/2, 1)
	}
	return c.Rounds
}

func (c Config) tell(format string, args ...any) {
	if c.Progress != nil {
		c.Progress(fmt.Sprintf(format, args...))
	}
}

// entries are the rows asked for on the networks asked for, and those that they are compared with. Those whose contender is not here are apart.
func (c Config) entries(spec Spec) (entries, missing []*entry) {
	var wanted []*entry
	for _, e := range c.all(spec) {
		switch {
		case !c.asksFor(e):
		case e.contender.Missing != "":
			missing = append(missing, e)
		default:
			wanted = append(wanted, e)
		}
	}
	for _, e := range c.all(spec) {
		isBase := slices.ContainsFunc(wanted, func(w *entry) bool { return w.base == e.result.Name && w.network == e.network })
		if isBase || slices.ContainsFunc(wanted, e.same) {
			entries = append(entries, e)
		}
	}
	return entries, missing
}

func (e *entry) same(other *entry) bool {
	return e.result.Name == other.result.Name && e.network == other.network
}

// all are the rows whose contender is here, on both networks.
func (c Config) all(spec Spec) []*entry {
	var all []*entry
	for _, network := range []string{Unix, TCP} {
		for _, row := range spec.Rows {
			contender, ok := c.Contenders[row.Contender]
			if !ok || remote(contender) && network != TCP {
				continue
			}
			e := &entry{row: row, contender: contender, network: network, base: spec.base(row), forked: c.Fork && spec.Forks && !remote(contender)}
			e.result = report.Row{Name: row.name(), Family: contender.Family, Network: network, Base: e.base}
			all = append(all, e)
		}
	}
	return all
}

// Wants tells whether any row of the family is asked for.
func (c Config) Wants(family string) bool {
	for _, spec := range c.Specs {
		if slices.ContainsFunc(c.all(spec), func(e *entry) bool { return e.contender.Family == family && c.asksFor(e) }) {
			return true
		}
	}
	return false
}

// remote contenders are reached by TCP, whatever is asked for.
func remote(c contend.Contender) bool { return c.Open == nil }

func (c Config) asksFor(e *entry) bool {
	if !remote(e.contender) && !slices.Contains(c.Networks, e.network) {
		return false
	}
	return len(c.Who) == 0 || slices.Contains(c.Who, e.contender.Family) || slices.Contains(c.Who, e.result.Name)
}

func (r Row) name() string {
	if r.Name != "" {
		return r.Name
	}
	return r.Contender
}

func (s Spec) base(row Row) string {
	if row.Base != "" {
		return row.Base
	}
	return s.Rows[0].name()
}

// shape is the workload as the row has it.
func (s Spec) shape(c Config, row Row) contend.Workload {
	w := s.Workload
	w.ID = s.ID
	if row.Primitive != "" {
		w.Primitive = row.Primitive
	}
	if row.Waiters > 0 {
		w.Goroutines = row.Waiters
	}
	if c.Duration > 0 {
		w.Duration = c.Duration
	}
	return w
}

func baseOf(entries []*entry, of *entry) []report.Figures {
	for _, e := range entries {
		if e.result.Name == of.base && e.network == of.network {
			return e.result.Rounds
		}
	}
	return nil
}

// add notes a measurement. A round that failed has no figures.
func (e *entry) add(o observation, err error) {
	if err != nil {
		e.result.Error = strings.Join(strings.Fields(err.Error()), " ")
		e.result.Rounds = append(e.result.Rounds, nil)
		return
	}
	e.result.Rounds = append(e.result.Rounds, o.figures())
	if o.result.Stuck > 0 {
		e.stuck += o.result.Stuck
		e.result.Note = fmt.Sprintf("%d waits stuck", e.stuck)
	}
	if r := o.result; r.Overlaps > 0 || r.Lost > 0 || r.LostHolds > 0 {
		e.result.Broke = fmt.Sprintf("%d overlaps, %d lost updates, %d lost holds", r.Overlaps, r.Lost, r.LostHolds)
	}
}

// once makes one measurement, on an empty server.
func (c Config) once(ctx context.Context, s *server.Server, spec Spec, e *entry, round int) (o observation, err error) {
	if err := s.Admin.FlushAll(ctx).Err(); err != nil {
		return o, fmt.Errorf("harness: flush: %w", err)
	}
	o.w = spec.shape(c, e.row)
	o.w.Name = fmt.Sprintf("bench:%s:%d", spec.ID, time.Now().UnixNano())
	session, err := e.open(ctx, s, o.w)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	if o.w.Kind == contend.Section && !o.w.Queued {
		warm := o.w
		warm.Duration = min(warmUp, o.w.Duration)
		if _, err := session.Run(ctx, warm); err != nil {
			return o, err
		}
	}
	stop, err := c.profile(spec, e, round)
	if err != nil {
		return o, err
	}
	err = o.observe(ctx, s.Admin, session, e.commands())
	return o, errors.Join(err, stop())
}

func (e *entry) open(ctx context.Context, s *server.Server, w contend.Workload) (contend.Session, error) {
	target := s.Unix
	if e.network == TCP {
		target = s.TCP
	}
	switch {
	case e.contender.Remote != nil:
		return e.contender.Remote.Open(ctx, target, w)
	case e.forked:
		return workload.Fork(ctx, e.contender.Name, target, w)
	default:
		return workload.Open(ctx, e.contender, target, w)
	}
}

func (e *entry) commands() []string {
	if e.contender.Remote != nil {
		return e.contender.Remote.Commands()
	}
	return e.contender.Commands
}

// ahead is how long before the end of a crowd's wait it is looked at.
const ahead = 250 * time.Millisecond

// observe runs the session, with samples around.
func (o *observation) observe(ctx context.Context, admin *redis.Client, session contend.Session, commands []string) error {
	runtime.GC()
	before, err := take(ctx, admin)
	if err != nil {
		return err
	}
	idle := make(chan error, 1)
	if o.w.Kind == contend.Crowd { // which waits for Duration, and a sample before its end sees it wait
		go func() {
			time.Sleep(o.w.Duration - ahead)
			sample, err := take(ctx, admin)
			o.idle, o.end = between(before, sample, commands), sample
			idle <- err
		}()
	}
	o.result, err = session.Run(ctx, o.w)
	if o.w.Kind == contend.Crowd {
		err = errors.Join(err, <-idle)
	}
	if err != nil {
		return err
	}
	after, err := take(ctx, admin)
	if err != nil {
		return err
	}
	o.run = between(before, after, commands)
	o.run.commands += o.result.Unseen
	switch o.w.Kind {
	case contend.Section:
		o.end = after
	case contend.Holds:
		return o.missing(ctx, admin)
	case contend.Crowd: // whose end is before the release
	}
	return nil
}

// missing adds the holds whose keys are gone.
func (o *observation) missing(ctx context.Context, admin *redis.Client) error {
	var present int64
	for first := 0; first < o.w.Keys; first += 1000 {
		var names []string
		for i := first; i < min(first+1000, o.w.Keys); i++ {
			names = append(names, workload.KeyOf(o.w, i))
		}
		n, err := admin.Exists(ctx, names...).Result()
		if err != nil {
			return fmt.Errorf("harness: exists: %w", err)
		}
		present += n
	}
	o.result.LostHolds = max(o.result.LostHolds, o.w.Keys-int(present))
	return nil
}

// profile begins a processor profile of what this process does; its end is the function returned.
func (c Config) profile(spec Spec, e *entry, round int) (func() error, error) {
	if c.Profile == "" || e.contender.Remote != nil || e.forked {
		return func() error { return nil }, nil
	}
	if err := os.MkdirAll(c.Profile, 0o750); err != nil {
		return nil, fmt.Errorf("harness: %w", err)
	}
	name := strings.NewReplacer(" ", "-", ",", "", "/", "-").Replace(fmt.Sprintf("%s-%s-%s-%d.pprof", spec.ID, e.result.Name, e.network, round+1))
	f, err := os.Create(filepath.Join(c.Profile, name))
	if err != nil {
		return nil, fmt.Errorf("harness: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("harness: %w", err)
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}
