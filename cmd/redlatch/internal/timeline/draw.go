package timeline

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"
)

// Timeline is what happened to some names.
type Timeline struct {
	Begin, End time.Time
	Processes  []string
	Names      []*Name // those with losses first, then those with many waits
	Notes      []string
	Dropped    int64 // events that are missing
}

// Name is one name of one kind.
type Name struct {
	Name, Kind                  string
	Rows                        []*Row // by process
	Holds, Waits, Refused, Lost int
	Tries                       int             // without a wait, and refused
	HandOvers                   []time.Duration // from a release to the acquisition of another process that waited
	LongestWait                 time.Duration
}

// Row is what one process did with a name.
type Row struct {
	Process string
	Spans   []*Span // by their begin
}

// What a process does in a span.
const (
	Hold = "hold"
	Wait = "wait"
	Try  = "try"  // an attempt without a wait, which was refused
	Stay = "stay" // nobody holds the lock any more, but it stays taken
)

// How spans end, beside the ends of holds, which are kinds of events.
const (
	got     = "acquired"
	unknown = "unknown" // the file ends before
)

// Span is a wait, a hold, a refused try, or the rest of a time for which the lock stays taken.
type Span struct {
	What     string
	ID       string
	From, To time.Time
	End      string // the kind of the event, or unknown; of a wait that failed: the outcome
	Why      string // the reason of a loss, or the error
}

// Failed reports whether a wait ended without the lock.
func (s *Span) Failed() bool { return s.What == Wait && s.End != got && s.End != unknown }

// exclusive are the kinds that have one holder at a time.
var exclusive = []string{"lock", "fair", "fenced", "writer"}

// Options choose what is drawn.
type Options struct {
	Pattern string                   // a glob of names; "": all
	Last    time.Duration            // only so much before the end; 0: all
	Shifts  map[string]time.Duration // what is added to the clocks of processes
}

type nameKey struct{ name, kind string }

type holdKey struct {
	nameKey
	process, id string
}

// builder makes the spans of events.
type builder struct {
	names   map[nameKey]*Name
	rows    map[nameKey]map[string]*Row
	holds   map[holdKey]*Span
	depth   map[holdKey]int
	done    map[holdKey]bool                   // the hold has ended. Nested ones, which have the same id, may follow
	waiting map[nameKey]map[string][]time.Time // by process: the waits that have begun
	killed  map[string]bool                    // processes
	last    map[string]time.Time               // the last event of each process
}

// Draw makes the timeline.
func (l *Log) Draw(o Options) (*Timeline, error) {
	_, err := path.Match(o.Pattern, "")
	if err != nil {
		return nil, fmt.Errorf("the pattern %q: %w", o.Pattern, err)
	}
	l.sort(o.Shifts)
	t := &Timeline{}
	b := &builder{
		names: map[nameKey]*Name{}, rows: map[nameKey]map[string]*Row{}, holds: map[holdKey]*Span{},
		depth: map[holdKey]int{}, done: map[holdKey]bool{}, waiting: map[nameKey]map[string][]time.Time{},
		killed: map[string]bool{}, last: map[string]time.Time{},
	}
	for i := range l.Events {
		e := &l.Events[i]
		if b.killed[e.Process] {
			continue // the demo only simulates its death
		}
		b.last[e.Process] = e.At
		isWanted := true
		if o.Pattern != "" {
			isWanted, _ = path.Match(o.Pattern, e.Name)
		}
		switch {
		case e.Event == dropped:
			t.Dropped += e.Count
		case e.Event == Killed:
			b.kill(e)
		case e.Name != "" && isWanted:
			b.add(e)
		}
	}
	b.finish()
	t.Processes = slices.Sorted(maps.Keys(b.last))
	for process := range o.Shifts {
		if !slices.Contains(t.Processes, process) {
			return nil, fmt.Errorf("no event is of the process %q", process)
		}
	}
	t.Names = slices.Collect(maps.Values(b.names))
	t.frame(o.Last)
	for _, n := range t.Names {
		n.count()
	}
	slices.SortFunc(t.Names, func(a, b *Name) int {
		return cmp.Or(cmp.Compare(b.Lost, a.Lost), cmp.Compare(b.Waits, a.Waits), cmp.Compare(b.Holds, a.Holds),
			cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	t.compareClocks()
	return t, nil
}

// row returns the row of an event.
func (b *builder) row(key nameKey, process string) *Row {
	if b.names[key] == nil {
		b.names[key] = &Name{Name: key.name, Kind: key.kind}
		b.rows[key], b.waiting[key] = map[string]*Row{}, map[string][]time.Time{}
	}
	row := b.rows[key][process]
	if row == nil {
		row = &Row{Process: process}
		b.rows[key][process] = row
		b.names[key].Rows = append(b.names[key].Rows, row)
	}
	return row
}

func ms(f float64) time.Duration { return time.Duration(f * float64(time.Millisecond)) }

// add takes an event in.
func (b *builder) add(e *Event) {
	key := nameKey{e.Name, e.Kind}
	row, hold := b.row(key, e.Process), holdKey{key, e.Process, e.ID}
	switch {
	case e.Event == wait && e.Err == "":
		b.waiting[key][e.Process] = append(b.waiting[key][e.Process], e.At)
	case e.Event == acquired || e.Event == nested:
		b.endWait(row, key, e, got)
		b.depth[hold]++
		b.done[hold] = false
		if b.holds[hold] == nil {
			b.holds[hold] = &Span{What: Hold, ID: e.ID, From: e.At}
			row.Spans = append(row.Spans, b.holds[hold])
		}
	case e.Event == notAcquired:
		b.endWait(row, key, e, cmp.Or(e.Outcome, notAcquired))
	case e.Event == waited: // for a latch
		b.endWait(row, key, e, got)
	case slices.Contains(ends, e.Event):
		b.endHold(row, hold, e)
	case e.Event == Kept && e.Stays.After(e.At):
		row.Spans = append(row.Spans, &Span{What: Stay, From: e.At, To: e.Stays, End: Kept, Why: e.Err})
	}
}

// endWait adds the wait of an acquisition that is over, if it has waited.
func (b *builder) endWait(row *Row, key nameKey, e *Event, end string) {
	isRefusedTry := e.Waited <= 0 && e.Event == notAcquired
	if isRefusedTry {
		row.Spans = append(row.Spans, &Span{What: Try, ID: e.ID, From: e.At, To: e.At, End: end, Why: e.Err})
	}
	if e.Waited <= 0 {
		return
	}
	span := &Span{What: Wait, ID: e.ID, From: e.At.Add(-ms(e.Waited)), To: e.At, End: end, Why: e.Err}
	row.Spans = append(row.Spans, span)
	begun := b.waiting[key][e.Process]
	if len(begun) == 0 {
		return // before the file begins
	}
	nearest := 0 // its event stands a moment after its begin
	for i := range begun {
		if begun[i].Sub(span.From).Abs() < begun[nearest].Sub(span.From).Abs() {
			nearest = i
		}
	}
	b.waiting[key][e.Process] = slices.Delete(begun, nearest, nearest+1)
}

// endHold ends a hold, or one that is nested in it.
func (b *builder) endHold(row *Row, key holdKey, e *Event) {
	if b.done[key] {
		return
	}
	b.depth[key]--
	if b.depth[key] > 0 && e.Event == released {
		return
	}
	b.done[key] = true
	span := b.holds[key]
	if span == nil { // it was acquired before the file begins
		span = &Span{What: Hold, ID: e.ID, From: e.At.Add(-ms(e.Held))}
		row.Spans = append(row.Spans, span)
	}
	span.To, span.End, span.Why = e.At, e.Event, cmp.Or(e.Reason, e.Err)
	delete(b.holds, key)
	delete(b.depth, key)
}

// kill ends the holds of a process that has died. Each lock stays taken.
func (b *builder) kill(e *Event) {
	b.killed[e.Process] = true
	for key, span := range b.holds {
		if key.process != e.Process {
			continue
		}
		span.To, span.End, span.Why = e.At, Killed, e.Err
		if e.Stays.After(e.At) {
			row := b.rows[key.nameKey][key.process]
			row.Spans = append(row.Spans, &Span{What: Stay, ID: key.id, From: e.At, To: e.Stays, End: Killed, Why: e.Err})
		}
		delete(b.holds, key)
		delete(b.depth, key)
	}
}

// finish ends what had not ended when the events of a process did.
func (b *builder) finish() {
	for key, span := range b.holds {
		span.To, span.End = b.last[key.process], unknown
	}
	for key, of := range b.waiting {
		for process, begun := range of {
			for _, from := range begun {
				row := b.rows[key][process]
				row.Spans = append(row.Spans, &Span{What: Wait, From: from, To: b.last[process], End: unknown})
			}
		}
	}
	for _, n := range b.names {
		slices.SortFunc(n.Rows, func(a, b *Row) int { return cmp.Compare(a.Process, b.Process) })
		for _, r := range n.Rows {
			slices.SortStableFunc(r.Spans, func(a, b *Span) int { return a.From.Compare(b.From) })
		}
	}
}

// frame sets begin and end, and leaves out what ended before.
func (t *Timeline) frame(last time.Duration) {
	for _, n := range t.Names {
		for _, r := range n.Rows {
			for _, s := range r.Spans {
				if t.Begin.IsZero() || s.From.Before(t.Begin) {
					t.Begin = s.From
				}
				if s.To.After(t.End) {
					t.End = s.To
				}
			}
		}
	}
	if last <= 0 || t.End.Sub(t.Begin) <= last {
		last = t.End.Sub(t.Begin)
	}
	t.Begin = t.End.Add(-last)
	for _, n := range t.Names {
		for _, r := range n.Rows {
			r.Spans = slices.DeleteFunc(r.Spans, func(s *Span) bool { return s.To.Before(t.Begin) })
		}
		n.Rows = slices.DeleteFunc(n.Rows, func(r *Row) bool { return len(r.Spans) == 0 })
	}
	t.Names = slices.DeleteFunc(t.Names, func(n *Name) bool { return len(n.Rows) == 0 })
}

// count fills in the numbers of a name.
func (n *Name) count() {
	type end struct {
		at      time.Time
		process string
	}
	var releases []end
	for _, r := range n.Rows {
		for _, s := range r.Spans {
			switch {
			case s.What == Stay:
				// It is the rest of a hold, which counts.
			case s.What == Try:
				n.Tries++
			case s.What == Wait:
				n.Waits++
				n.LongestWait = max(n.LongestWait, s.To.Sub(s.From))
				if s.Failed() {
					n.Refused++
				}
			case s.End == lost:
				n.Holds++
				n.Lost++
			default:
				n.Holds++
				if s.End == released {
					releases = append(releases, end{s.To, r.Process})
				}
			}
		}
	}
	slices.SortFunc(releases, func(a, b end) int { return a.at.Compare(b.at) })
	for _, r := range n.Rows {
		for _, s := range r.Spans {
			if s.What != Wait || s.End != got {
				continue
			}
			// The latest release before, during the wait: an earlier one was not for this waiter.
			i, _ := slices.BinarySearchFunc(releases, s.To, func(e end, at time.Time) int { return e.at.Compare(at) })
			isHandOver := i > 0 && releases[i-1].process != r.Process && !releases[i-1].at.Before(s.From)
			// The waiter may tell that it has acquired before the call that released has returned.
			isEarly := i < len(releases) && releases[i].process != r.Process && releases[i].at.Sub(s.To) <= minSkew
			switch {
			case isHandOver:
				n.HandOvers = append(n.HandOvers, s.To.Sub(releases[i-1].at))
			case isEarly:
				n.HandOvers = append(n.HandOvers, 0)
			}
		}
	}
	slices.Sort(n.HandOvers)
}

// minSkew is the least difference of two clocks that is told. A release takes effect a moment
// before its call returns.
const minSkew = 50 * time.Millisecond

// compareClocks notes which clocks must differ, because two processes seem to have had an exclusive
// lock at once.
func (t *Timeline) compareClocks() {
	type pair struct{ late, early string } // by the clock of early, late had it for too long
	worst, where := map[pair]time.Duration{}, map[pair]string{}
	for _, n := range t.Names {
		if !slices.Contains(exclusive, n.Kind) {
			continue
		}
		type owned struct {
			*Span
			process string
		}
		var holds []owned
		for _, r := range n.Rows {
			for _, s := range r.Spans {
				if s.What == Hold {
					holds = append(holds, owned{s, r.Process})
				}
			}
		}
		slices.SortFunc(holds, func(a, b owned) int { return a.From.Compare(b.From) })
		for i := 1; i < len(holds); i++ {
			before, after := holds[i-1], holds[i]
			overlap := before.To.Sub(after.From)
			// Only a release says that the hold was valid until then.
			isOdd := before.process != after.process && before.End == released && overlap > minSkew
			p := pair{before.process, after.process}
			if isOdd && overlap > worst[p] {
				worst[p], where[p] = overlap, n.Name
			}
		}
	}
	pairs := slices.SortedFunc(maps.Keys(worst), func(a, b pair) int {
		return cmp.Or(cmp.Compare(a.late, b.late), cmp.Compare(a.early, b.early))
	})
	for _, p := range pairs {
		t.Notes = append(t.Notes, fmt.Sprintf("%s seems to have %q for %s before %s released it: their clocks differ. "+
			"Try --shift %s=%s", p.early, where[p], short(worst[p]), p.late, p.early, short(worst[p])))
	}
}

// short is a duration with three digits or so.
func short(d time.Duration) string {
	switch {
	case d >= 100*time.Second:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	default:
		return d.Round(10 * time.Microsecond).String()
	}
}

func sortByTime(all []Notable) {
	slices.SortStableFunc(all, func(a, b Notable) int { return a.At.Compare(b.At) })
}
