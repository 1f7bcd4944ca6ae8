package joint_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	. "github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/joint"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// world is several processes that share three servers. Whenever an acquisition succeeds, it checks that no other
// hold is valid that excludes the new one. Again and again it checks that the servers know each valid hold.
type world struct {
	start   time.Time
	servers []*Server
	clients [][]*Client // by process and server

	mu           sync.Mutex
	holds        []*modelHold
	acquisitions map[*Client]int
	tokens       map[string]int64 // the latest fencing token, by kind
	forgot       bool             // a server has lost its data
	violation    string
}

// place is a member: a name on a server.
type place struct {
	server int
	name   string
	side   string // of a read-write lock; "semaphore" for one; else ""
}

// shape is what a task acquires.
type shape struct {
	members []place
	red     bool
}

func (p place) on(c []*Client) *Resource {
	switch p.side {
	case "reader":
		return c[p.server].Reader(p.name)
	case "writer":
		return c[p.server].CohortWriter(p.name)
	case "semaphore":
		return c[p.server].Semaphore(p.name)
	}
	return c[p.server].Lock(p.name)
}

var (
	x0, y0, z1 = place{0, "x", ""}, place{0, "y", ""}, place{1, "z", ""}
	rd, wr     = place{2, "rw", "reader"}, place{2, "rw", "writer"}
)

const (
	processes    = 3
	modelPermits = 2 // of the semaphore
)

func onEach(name, side string) (all []place) {
	for i := range 3 {
		all = append(all, place{i, name, side})
	}
	return all
}

var shapes = map[string]shape{
	"x":       {members: []place{x0}},
	"y":       {members: []place{y0}},
	"z":       {members: []place{z1}},
	"reader":  {members: []place{rd}},
	"writer":  {members: []place{wr}},
	"same":    {members: []place{x0, y0}},
	"far":     {members: []place{x0, z1}},
	"back":    {members: []place{z1, x0}}, // as another program may order them
	"reading": {members: []place{rd, x0}},
	"writing": {members: []place{y0, wr}},
	"red":     {members: onEach("r", ""), red: true},
	"red rw":  {members: onEach("q", "writer"), red: true},
	"r0":      {members: []place{{0, "r", ""}}},
	"r2":      {members: []place{{2, "r", ""}}},

	"semaphore": {members: []place{{1, "s", "semaphore"}}},
}

func (w *world) resource(process int, kind string) *Resource {
	s, c := shapes[kind], w.clients[process]
	var members []*Resource
	for _, p := range s.members {
		members = append(members, p.on(c))
	}
	switch {
	case len(members) == 1:
		return members[0]
	case s.red:
		return c[0].Joint("red", joint.NewRed, members...)
	}
	return c[s.members[0].server].Joint("multi", joint.NewMulti, members...)
}

// modelHold is one hold. It excludes no hold that it is nested in, or that is nested in the same one.
type modelHold struct {
	*Hold
	kind     string
	outer    *modelHold
	released bool      // its release has begun; guarded by world.mu
	taken    time.Time // nobody else may acquire before; zero: no minimum hold, or it was lost
}

func (h *modelHold) outermost() *modelHold {
	for h.outer != nil {
		h = h.outer
	}
	return h
}

// valid reports whether the owner of h may rely on it.
func (h *modelHold) valid() bool {
	return !h.released && Carry(h.Hold).Err() == nil && (h.kind == "semaphore" || time.Now().Before(h.ValidUntil()))
}

// excludes reports whether holds of two kinds exclude each other.
func excludes(a, b string) bool {
	s, o := shapes[a], shapes[b]
	if s.red != o.red {
		return false // a red lock need not have any certain member
	}
	for _, p := range s.members {
		for _, q := range o.members {
			if p.server == q.server && p.name == q.name && (p.side != "reader" || q.side != "reader") {
				return true
			}
		}
	}
	return false
}

func (w *world) failf(format string, args ...any) {
	if w.violation == "" {
		w.violation = fmt.Sprintf("at %v: ", time.Since(w.start)) + fmt.Sprintf(format, args...)
	}
}

// check compares the servers with the valid holds.
func (w *world) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.holds {
		if w.forgot || !h.valid() || h.kind == "semaphore" { // whose permits have no ids
			continue
		}
		s, known := shapes[h.kind], 0
		for _, p := range s.members {
			if w.servers[p.server].Holder(p.name, h.ID()).Count > 0 {
				known++
			}
		}
		need := len(s.members)
		if s.red {
			need = need/2 + 1
		}
		if known < need {
			w.failf("%s %s is valid until %v, but known to %d servers", h.kind, h.ID(), h.ValidUntil().Sub(w.start), known)
		}
	}
}

// task is what one goroutine does.
type task struct {
	Process int
	Kind    string
	Start   time.Duration
	Limit   time.Duration
	Timeout time.Duration // of its context; 0: none
	TTL     time.Duration
	Fixed   bool
	MaxHold time.Duration
	MinHold time.Duration
	Cohort  time.Duration
	Linger  time.Duration
	Shared  bool
	Polling bool
	Hold    time.Duration
	Nested  []string // kinds that are acquired with the hold's context, at the same time
	Extend  bool
	Detach  bool
}

func (w *world) acquire(ctx context.Context, k *task, kind string, limit time.Duration, outer *modelHold) *modelHold {
	r := w.resource(k.Process, kind)
	tm := NewTerms(TTL(k.TTL), MaxHold(k.MaxHold))
	tm.Renew, tm.MinHold = !k.Fixed, k.MinHold
	if len(shapes[kind].members) == 1 {
		tm.Cohort, tm.Linger = k.Cohort, k.Linger
		if k.Polling {
			tm.PollMin, tm.PollMax = 7*ms, 100*ms
		}
	}
	if k.Shared {
		tm.Owner = fmt.Sprintf("shared%d", k.Process)
	}
	w.mu.Lock()
	for _, c := range w.clients[k.Process] {
		if c.Core == r.Core {
			w.acquisitions[c]++
		}
	}
	w.mu.Unlock()
	began := time.Now()
	hold, err := r.Acquire(ctx, tm, limit)
	took := time.Since(began)
	if limit > 0 && took > limit+50*ms {
		w.mu.Lock()
		w.failf("an acquisition of %s took %v, limit %v: %v", kind, took, limit, err)
		w.mu.Unlock()
	}
	if err != nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	h := &modelHold{Hold: hold, kind: kind, outer: outer}
	if !h.valid() && Carry(hold).Err() == nil {
		w.failf("%s %s is over: %v", kind, hold.ID(), hold.ValidUntil().Sub(w.start))
	}
	permits := 1
	for _, other := range w.holds {
		related := other.outermost() == h.outermost() ||
			other.ID() == h.ID() && strings.HasPrefix(h.ID(), "shared") // and no cohort
		switch {
		case kind == "semaphore" && other.kind == kind && other.valid():
			permits++
		case w.forgot || related || !excludes(kind, other.kind):
		case other.valid():
			w.failf("%s %s although %s %s is valid until %v", kind, hold.ID(), other.kind, other.ID(),
				other.ValidUntil().Sub(w.start))
		case time.Now().Before(other.taken):
			w.failf("%s %s although %s %s stays taken until %v", kind, hold.ID(), other.kind, other.ID(),
				other.taken.Sub(w.start))
		}
	}
	if permits > modelPermits && !w.forgot {
		w.failf("%d permits", permits)
	}
	if token := hold.Token(); token != 0 && outer == nil && !k.Shared && !w.forgot {
		if last := w.tokens[kind]; token <= last {
			w.failf("%s %s has token %d after %d", kind, hold.ID(), token, last)
		}
		w.tokens[kind] = token
	}
	if outer == nil && tm.MinHold > 0 && !k.Shared && kind != "semaphore" { // of a shared id the last count decides
		h.taken = time.Now().Add(tm.MinHold)
		if lease := began.Add(max(tm.FirstTTL(), tm.MinHold)); lease.Before(h.taken) {
			h.taken = lease // the lease on the server began before the hold, and a release never raises it
		}
	}
	w.holds = append(w.holds, h)
	return h
}

// releasing notes that the release of h begins. A hold that was lost may have been released already, as far as the
// servers know.
func (w *world) releasing(h *modelHold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !h.valid() {
		h.taken = time.Time{}
	}
	h.released = true
}

func (w *world) run(k *task) {
	time.Sleep(k.Start)
	ctx := context.Background()
	if k.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, k.Timeout)
		defer cancel()
	}
	h := w.acquire(ctx, k, k.Kind, k.Limit, nil)
	if h == nil {
		return
	}
	var nested sync.WaitGroup
	for i, kind := range k.Nested {
		nested.Go(func() {
			inner := *k
			inner.Shared = false
			if i == 1 {
				inner.TTL /= 3
			}
			if n := w.acquire(Carry(h.Hold), &inner, kind, time.Second, h); n != nil {
				time.Sleep(k.Hold / 2)
				w.releasing(n)
				_ = n.Release(context.Background())
			}
		})
	}
	time.Sleep(k.Hold)
	if k.Extend {
		_ = h.Extend(ctx, k.TTL, nil)
		_ = h.Check(ctx)
	}
	w.releasing(h)
	if k.Detach && k.Kind != "semaphore" { // its permit would be gone
		h.Detach()
	} else {
		_ = h.Release(ctx)
	}
	nested.Wait()
}

func duration(lo, hi time.Duration) *rapid.Generator[time.Duration] {
	return rapid.Map(rapid.Int64Range(int64(lo), int64(hi)), func(n int64) time.Duration { return time.Duration(n | 1) })
}

// nestable are the kinds that a task may acquire under a hold of another kind.
var nestable = map[string][]string{
	"x": {"x", "same", "far"}, "y": {"y", "same"}, "z": {"z", "far"}, "reader": {"reader", "reading"},
	"writer": {"writer", "reader", "writing", "reading"},
	"same":   {"same", "x", "y", "far"}, "far": {"far", "x", "z", "back", "same"}, "back": {"back", "far", "x"},
	"reading": {"reading", "x", "reader"}, "writing": {"writing", "writer", "y", "reader"},
	"red": {"red", "r0", "r2"}, "red rw": {"red rw"}, "r0": {"red", "r0"}, "r2": {"r2", "red"},
	"semaphore": {"semaphore"},
}

var kindNames = []string{
	"x", "x", "x", "y", "z", "reader", "reader", "writer", "semaphore", "semaphore", "same", "far", "far", "back",
	"reading", "writing", "red", "red", "red", "red rw", "r0", "r2",
}

func drawTask(rt *rapid.T) task {
	k := task{
		Process: rapid.IntRange(0, processes-1).Draw(rt, "process"),
		Kind:    rapid.SampledFrom(kindNames).Draw(rt, "kind"),
		Start:   duration(0, 2*time.Second).Draw(rt, "start"),
		Limit:   rapid.SampledFrom([]time.Duration{NoWait, Forever, Forever, 300 * ms, 3 * time.Second}).Draw(rt, "limit"),
		Timeout: rapid.SampledFrom([]time.Duration{0, 0, 0, 700 * ms, 4 * time.Second}).Draw(rt, "timeout"),
		TTL:     duration(500*ms, 5*time.Second).Draw(rt, "ttl"),
		Fixed:   rapid.IntRange(0, 3).Draw(rt, "fixed") == 3,
		Shared:  rapid.IntRange(0, 6).Draw(rt, "shared") == 6,
		Polling: rapid.IntRange(0, 6).Draw(rt, "polling") == 6,
		Hold:    duration(0, time.Second).Draw(rt, "hold"),
		Extend:  rapid.Bool().Draw(rt, "extend"),
		Detach:  rapid.IntRange(0, 9).Draw(rt, "detach") == 9,
	}
	for range max(rapid.IntRange(-2, 2).Draw(rt, "nested"), 0) {
		k.Nested = append(k.Nested, rapid.SampledFrom(nestable[k.Kind]).Draw(rt, "nested kind"))
	}
	for _, p := range shapes[k.Kind].members {
		k.Shared = k.Shared && p.side == "" // the server in memory does not tell the sides of one id apart
	}
	if rapid.IntRange(0, 4).Draw(rt, "limited") == 4 {
		k.MaxHold = duration(200*ms, 3*time.Second).Draw(rt, "max hold")
	}
	switch rapid.IntRange(0, 5).Draw(rt, "kept") {
	case 3:
		k.MinHold = duration(ms, 4*time.Second).Draw(rt, "min hold")
	case 4:
		k.Cohort = time.Second // all the same: holds with different cohorts are not passed on to each other
	case 5:
		k.Cohort, k.Linger = time.Second, 500*ms
	}
	return k
}

// oneByOne returns a func that gives each command the next fault, whichever server gets it, until none is left.
func oneByOne(faults []Fault) func(Command) Fault {
	var mu sync.Mutex
	return func(Command) (f Fault) {
		mu.Lock()
		defer mu.Unlock()
		if len(faults) > 0 {
			f, faults = faults[0], faults[1:]
		}
		return f
	}
}

func drawFault(rt *rapid.T) Fault {
	late := duration(ms, 8*time.Second)
	switch rapid.IntRange(0, 16).Draw(rt, "fault") {
	case 8:
		return Fault{Delay: late.Draw(rt, "delay")}
	case 9:
		return Fault{Reply: late.Draw(rt, "reply")}
	case 10:
		return Fault{Mute: true}
	case 11:
		return Fault{Lost: true}
	case 12:
		return Fault{Lost: true, Copy: late.Draw(rt, "copy")}
	case 13:
		return Fault{Copy: late.Draw(rt, "copy")}
	case 14:
		return Fault{Err: ErrDown}
	case 15:
		return Fault{Err: ErrBusy}
	case 16:
		return Fault{Err: ErrFatal}
	}
	return Fault{Delay: duration(0, 3*ms).Draw(rt, "delay"), Reply: duration(0, 3*ms).Draw(rt, "reply")}
}

// Several processes acquire, nest, extend and release locks, permits, joint locks and their members at random, while
// commands are lost, delayed and repeated. Holds exclude each other, tokens rise, the servers know each valid hold,
// every acquisition ends in time, a minimum hold keeps others out, and nothing stays on the servers. In some runs a
// server forgets everything: then only the end is checked.
func TestHoldsExcludeEachOtherAndNothingIsLeft(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tasks := rapid.SliceOfN(rapid.Custom(drawTask), 1, 12).Draw(rt, "tasks")
		faults := rapid.SliceOfN(rapid.Custom(drawFault), 0, 80).Draw(rt, "faults")
		if rapid.Bool().Draw(rt, "leases outlast the test") {
			for i := range tasks {
				k := &tasks[i]
				k.TTL, k.Fixed, k.MaxHold, k.Shared, k.Detach = time.Hour, false, 0, false, false
			}
		}
		silent := rapid.IntRange(0, 3).Draw(rt, "messages are lost") == 3
		subscribe := rapid.SampledFrom([]time.Duration{0, 0, 50 * ms, time.Minute}).Draw(rt, "subscription delay")
		forgets := rapid.IntRange(0, 2).Draw(rt, "forgets")
		forgetAt := duration(0, 3*time.Second).Draw(rt, "forget at")
		forget := rapid.IntRange(0, 3).Draw(rt, "forget") == 3
		rapid.SyncTest(rt, func(rt *rapid.T) {
			w := &world{start: time.Now(), acquisitions: map[*Client]int{}, tokens: map[string]int64{}}
			next := oneByOne(faults)
			for range 3 {
				s := NewServer()
				s.SetPermits("rw", 100)
				s.SetPermits("q", 100)
				s.SetPermits("s", modelPermits)
				s.Silent, s.Subscribe.Delay = silent, subscribe
				s.OnEach(next)
				w.servers = append(w.servers, s)
			}
			for i := range processes {
				var clients []*Client
				for j, s := range w.servers {
					clients = append(clients, s.NewClient(fmt.Sprintf("%c%d", 'a'+i, j)))
				}
				w.clients = append(w.clients, clients)
			}
			ended := make(chan struct{})
			var running sync.WaitGroup
			for _, k := range tasks {
				running.Go(func() { w.run(&k) })
			}
			if forget {
				running.Go(func() {
					time.Sleep(forgetAt)
					w.mu.Lock()
					w.forgot = true
					w.mu.Unlock()
					for _, name := range w.servers[forgets].Names() {
						w.servers[forgets].Forget(name)
					}
				})
			}
			go func() { running.Wait(); close(ended) }()
			timeout := time.After(30 * time.Minute)
			tick := time.NewTicker(37 * ms)
			for open := true; open; {
				select {
				case <-ended:
					open = false
				case <-tick.C:
					w.check()
				case <-timeout:
					for i, s := range w.servers {
						t.Logf("server %d: %v", i, s.Log[:min(len(s.Log), 150)])
						for _, name := range s.Names() {
							t.Log(name, s.IDs(name))
						}
					}
					rt.Fatal("a call does not end")
				}
			}
			tick.Stop()
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			for i, s := range w.servers {
				for _, name := range s.Names() {
					if ids := s.IDs(name); len(ids) > 0 {
						w.failf("%v still hold %q of server %d", ids, name, i)
					}
				}
			}
			if w.violation != "" {
				t.Log(w.violation)
				for i, s := range w.servers {
					t.Logf("server %d: %v", i, s.Log)
				}
			}
			require.Empty(rt, w.violation)
			for _, clients := range w.clients {
				for _, c := range clients {
					require.NoError(rt, c.Shut(context.Background()))
					require.Empty(rt, c.Leftovers())
					results := 0
					for _, kind := range c.Kinds() {
						if kind == EventAcquired || kind == EventNested || kind == EventNotAcquired {
							results++
						}
					}
					require.Equal(rt, w.acquisitions[c], results, "events of results")
				}
			}
		})
	})
}
