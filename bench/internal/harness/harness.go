package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/redlatch/redlatch/bench/internal/contend"
	"github.com/redlatch/redlatch/bench/internal/report"
	"github.com/redlatch/redlatch/bench/internal/server"
	"github.com/redlatch/redlatch/bench/internal/workload"
)

// The networks that a run can use.
const (
	Unix = "unix"
	TCP  = "tcp"

	// The networks of single workloads; see Spec.Networks.
	Cluster        = contend.Cluster     // three masters, by TCP
	RoundTrip500us = "0.5 ms round trip" // a unix socket, delayed by 0.25 ms in each direction
	RoundTrip2ms   = "2 ms round trip"   // a unix socket, delayed by 1 ms in each direction
)

// Config selects what to measure, and how.
type Config struct {
	Specs      []Spec
	Contenders map[string]contend.Contender
	Who        []string      // families or rows to run, and implicitly their bases; empty: all
	Networks   []string      // of the Go contenders, where a spec has none; remote contenders and their bases use TCP
	Rounds     int           // rounds of each workload; slow workloads run half as many
	Duration   time.Duration // of each measurement; 0: the workload's own
	Fork       bool          // run a process per client in the workloads that support it
	Profile    string        // directory for CPU profiles; "": none
	// Progress is called before each measurement. It may be nil.
	Progress func(text string)
}

// warmUpDuration is how long a section runs before it is measured: a fifth of a short measurement.
const warmUpDuration = 100 * time.Millisecond

// Run measures all workloads of c on s. A failure of one row is recorded in the row, and the run
// continues. Run returns an error only if the run itself cannot continue.
func Run(ctx context.Context, s *server.Server, c Config) (*report.Report, error) {
	started := time.Now()
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
	r.Setup.Took = time.Since(started)
	return r, nil
}

// entry is a row of a workload on one network, while it is measured.
type entry struct {
	row       Row
	contender contend.Contender
	network   string
	base      string // name of the row to compare with
	forked    bool
	stuck     int64 // stuck waits of all rounds

	result report.Row
}

// measure runs all selected entries of a workload, once per round. Each round starts with another
// entry, so that none always runs first.
func (c Config) measure(ctx context.Context, s *server.Server, spec Spec) (w report.Workload, err error) {
	entries, missing := c.selectEntries(spec)
	at := newPlaces(s) // of this workload only: an idle cluster takes processor time
	defer func() { err = errors.Join(err, at.close()) }()
	w = report.Workload{
		ID: spec.ID, Title: spec.Title, Shape: spec.workload(c, Row{}), Metrics: spec.Metrics,
		Rounds: c.Rounds, Forked: c.Fork && spec.Forks,
	}
	if spec.Slow {
		w.Rounds = max(c.Rounds/2, 1)
	}
	for round := range w.Rounds {
		for i := range entries {
			e := entries[(i+round)%len(entries)]
			if err := context.Cause(ctx); err != nil {
				return w, fmt.Errorf("harness: %w", err)
			}
			if c.Progress != nil {
				c.Progress(fmt.Sprintf("%s, round %d of %d: %s (%s)",
					spec.ID, round+1, w.Rounds, e.result.Name, e.network))
			}
			e.record(c.measureOnce(ctx, at, spec, e, round))
		}
	}
	for _, e := range entries {
		e.result.Summarize(baseRounds(entries, e))
		w.Rows = append(w.Rows, e.result)
	}
	for _, e := range missing {
		e.result.Skipped = e.contender.Missing
		w.Rows = append(w.Rows, e.result)
	}
	return w, nil
}

// selectEntries returns the entries that c asks for, and their bases. Entries whose contender is
// missing on this machine are returned apart.
func (c Config) selectEntries(spec Spec) (entries, missing []*entry) {
	all := c.allEntries(spec)
	var wanted []*entry
	for _, e := range all {
		switch {
		case !c.asksFor(spec, e):
		case e.contender.Missing != "":
			missing = append(missing, e)
		default:
			wanted = append(wanted, e)
		}
	}
	for _, e := range all {
		isBase := slices.ContainsFunc(wanted, func(w *entry) bool {
			return w.base == e.result.Name && w.network == e.network
		})
		if isBase || slices.Contains(wanted, e) {
			entries = append(entries, e)
		}
	}
	return entries, missing
}

// allEntries returns the entries of a workload on all its networks.
func (c Config) allEntries(spec Spec) []*entry {
	var all []*entry
	networks := spec.Networks
	if networks == nil {
		networks = []string{Unix, TCP}
	}
	for _, network := range networks {
		for _, row := range spec.Rows {
			contender, ok := c.Contenders[row.Contender]
			if !ok || isRemote(contender) && network != TCP {
				continue
			}
			e := &entry{
				row: row, contender: contender, network: network, base: spec.base(row),
				forked: c.Fork && spec.Forks && !isRemote(contender),
			}
			e.result = report.Row{Name: row.name(), Family: contender.Family, Network: network, Base: e.base}
			all = append(all, e)
		}
	}
	return all
}

// Wants reports whether c asks for any row of the family.
func (c Config) Wants(family string) bool {
	for _, spec := range c.Specs {
		if slices.ContainsFunc(c.allEntries(spec), func(e *entry) bool {
			return e.contender.Family == family && c.asksFor(spec, e)
		}) {
			return true
		}
	}
	return false
}

// isRemote reports whether c runs in another process. Such a contender always uses TCP.
func isRemote(c contend.Contender) bool { return c.Open == nil }

func (c Config) asksFor(spec Spec, e *entry) bool {
	if spec.Networks == nil && !isRemote(e.contender) && !slices.Contains(c.Networks, e.network) {
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

// workload returns the workload with the settings of row and c applied.
func (s Spec) workload(c Config, row Row) contend.Workload {
	w := s.Workload
	w.ID = s.ID
	if row.Primitive != "" {
		w.Primitive = row.Primitive
	}
	w.NewHandle = row.NewHandle
	if row.Waiters > 0 {
		w.Goroutines = row.Waiters
	}
	if c.Duration > 0 {
		w.Duration = c.Duration
	}
	return w
}

// baseRounds returns the rounds of e's base.
func baseRounds(entries []*entry, e *entry) []report.Figures {
	for _, base := range entries {
		if base.result.Name == e.base && base.network == e.network {
			return base.result.Rounds
		}
	}
	return nil
}

// record adds the result of a measurement. A failed round has nil figures, so that the rounds of
// all entries stay aligned.
func (e *entry) record(o observation, err error) {
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

// measureOnce makes one measurement on an empty server or cluster.
func (c Config) measureOnce(
	ctx context.Context, places *places, spec Spec, e *entry, round int,
) (o observation, err error) {
	at, err := places.open(ctx, e.network)
	if err != nil {
		return o, err
	}
	for _, admin := range at.admins {
		if err := admin.FlushAll(ctx).Err(); err != nil {
			return o, fmt.Errorf("harness: flushall: %w", err)
		}
	}
	o.w = spec.workload(c, e.row)
	o.w.Name = fmt.Sprintf("bench:%s:%d", spec.ID, time.Now().UnixNano())
	session, err := e.open(ctx, at.target, o.w)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	if o.w.Kind == contend.Section && !o.w.Queued {
		warmUp := o.w
		warmUp.Duration = min(warmUpDuration, o.w.Duration/5)
		if _, err := session.Run(ctx, warmUp); err != nil {
			return o, err
		}
	}
	stopProfile, err := c.startProfile(spec, e, round)
	if err != nil {
		return o, err
	}
	err = o.observe(ctx, at.admins, session, e.commands())
	return o, errors.Join(err, stopProfile())
}

func (e *entry) open(ctx context.Context, target contend.Target, w contend.Workload) (contend.Session, error) {
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

// startProfile starts a CPU profile of this process and returns a function that stops it. It does
// nothing if no profile is wanted, or if the clients run in other processes.
func (c Config) startProfile(spec Spec, e *entry, round int) (stop func() error, err error) {
	if c.Profile == "" || e.contender.Remote != nil || e.forked {
		return func() error { return nil }, nil
	}
	if err := os.MkdirAll(c.Profile, 0o750); err != nil {
		return nil, fmt.Errorf("harness: %w", err)
	}
	name := fmt.Sprintf("%s-%s-%s-%d.pprof", spec.ID, e.result.Name, e.network, round+1)
	name = strings.NewReplacer(" ", "-", ",", "", "/", "-").Replace(name)
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
