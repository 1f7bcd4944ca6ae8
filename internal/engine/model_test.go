package engine_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	. "github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/enginetest"
)

// world is several clients that share a server, and all holds of theirs. Whenever an acquisition
// succeeds, it checks that no other hold is valid, by its own clock, that excludes the new one.
type world struct {
	s       *Server
	clients []*Client

	mu           sync.Mutex
	holds        []*modelHold
	acquisitions map[*Client]int
	tokens       map[string]int64 // the latest fencing token, by name
	violation    string           // the first one
}

// modelHold is one hold. It does not exclude a hold that it is nested in, or that is nested in the same one.
type modelHold struct {
	*Hold
	task     *task
	outer    *modelHold // that it is nested in; nil if it is not
	released bool       // its release has begun; guarded by world.mu
}

// task is what one goroutine does: it acquires, nests, and ends its holds.
type task struct {
	Client  int
	Kind    string
	Start   time.Duration
	Limit   time.Duration // of the acquisition
	Timeout time.Duration // of its context; 0: none
	TTL     time.Duration
	Fixed   bool // a fixed lease, not a renewed one
	MaxHold time.Duration
	Shared  bool
	Polling bool
	Hold    time.Duration // how long it holds the lock
	Nested  int           // acquisitions made with the context of the hold, at the same time
	Extend  bool
	Detach  bool
	Cohort  time.Duration
}

const (
	modelPermits = 2 // of the semaphore
	sharedID     = "me"
)

// resource returns what a task acquires, and the names that it holds then.
func (w *world) resource(k *task) (r *Resource, names []string) {
	c := w.clients[k.Client]
	switch k.Kind {
	case "reader":
		return c.Reader("rw"), []string{"rw"}
	case "writer":
		return c.Writer("rw"), []string{"rw"}
	case "semaphore":
		return c.Semaphore("s"), []string{"s"}
	case "multi":
		return c.MultiOf("x", "y"), []string{"x", "y"}
	}
	return c.Lock(k.Kind), []string{k.Kind}
}

// valid reports whether the owner of h may rely on it.
func (h *modelHold) valid() bool {
	if h.released || Carry(h.Hold).Err() != nil {
		return false
	}
	until := h.ValidUntil()
	return until.IsZero() || time.Now().Before(until)
}

func (w *world) failf(format string, args ...any) {
	if w.violation == "" {
		w.violation = fmt.Sprintf("at %v: ", w.s.Now()) + fmt.Sprintf(format, args...)
	}
}

// outermost returns the outermost hold that h is nested in, or h.
func (h *modelHold) outermost() *modelHold {
	for h.outer != nil {
		h = h.outer
	}
	return h
}

// granted checks a new hold against all others.
func (w *world) granted(hold *Hold, k *task, outer *modelHold) *modelHold {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := &modelHold{Hold: hold, task: k, outer: outer}
	_, names := w.resource(k)
	for _, name := range names {
		permits := 1
		for _, other := range w.holds {
			_, others := w.resource(other.task)
			shares := false
			for _, o := range others {
				shares = shares || o == name
			}
			switch {
			case !shares || !other.valid():
			case k.Kind == "reader" && other.task.Kind == "reader":
			case k.Kind == "semaphore":
				permits++
			case hold.ID() == sharedID && other.ID() == sharedID:
			case other.outermost() != h.outermost():
				w.failf("%s holds %q although %s is valid until %v", hold.ID(), name, other.ID(), other.ValidUntil().Sub(w.s.Start))
			}
		}
		if permits > modelPermits {
			w.failf("%d permits of %q", permits, name)
		}
	}
	inherits := outer != nil && outer.Token() == hold.Token()
	if (k.Kind == "x" || k.Kind == "y") && !inherits && hold.ID() != sharedID {
		if last := w.tokens[k.Kind]; hold.Token() <= last {
			w.failf("%s has token %d of %q after %d", hold.ID(), hold.Token(), k.Kind, last)
		}
		w.tokens[k.Kind] = hold.Token()
	}
	w.holds = append(w.holds, h)
	return h
}

// releasing notes that the owner of h stops relying on it.
func (w *world) releasing(h *modelHold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h.released = true
}

// acquire makes one acquisition; nil if it fails.
func (w *world) acquire(ctx context.Context, k *task, limit time.Duration, outer *modelHold) *modelHold {
	r, _ := w.resource(k)
	tm := NewTerms(TTL(k.TTL), MaxHold(k.MaxHold))
	tm.Renew, tm.Cohort = !k.Fixed, k.Cohort
	if k.Shared && (k.Kind == "x" || k.Kind == "y") {
		tm.Owner = sharedID
	}
	if k.Polling {
		tm.PollMin, tm.PollMax = 7*ms, 100*ms
	}
	w.mu.Lock()
	w.acquisitions[w.clients[k.Client]]++
	w.mu.Unlock()
	hold, err := r.Acquire(ctx, tm, limit)
	if err != nil {
		return nil
	}
	return w.granted(hold, k, outer)
}

// run does what a task says.
func (w *world) run(k *task) {
	time.Sleep(k.Start)
	ctx := context.Background()
	if k.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, k.Timeout)
		defer cancel()
	}
	h := w.acquire(ctx, k, k.Limit, nil)
	if h == nil {
		return
	}
	var nested sync.WaitGroup
	for range k.Nested {
		nested.Go(func() {
			inner := *k
			inner.Shared = false // under the outer hold
			if n := w.acquire(Carry(h.Hold), &inner, time.Second, h); n != nil {
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
	if k.Detach && k.Kind != "semaphore" { // a permit without a lease would be gone
		h.Detach()
	} else {
		_ = h.Release(ctx)
	}
	nested.Wait()
}

// duration draws odd numbers of nanoseconds, so that events seldom happen at one instant.
func duration(lo, hi time.Duration) *rapid.Generator[time.Duration] {
	return rapid.Map(rapid.Int64Range(int64(lo), int64(hi)), func(n int64) time.Duration { return time.Duration(n | 1) })
}

func drawTask(rt *rapid.T) task {
	k := task{
		Client: rapid.IntRange(0, 2).Draw(rt, "client"),
		Kind: rapid.SampledFrom([]string{"x", "x", "x", "y", "reader", "reader", "writer", "semaphore",
			"multi"}).Draw(rt, "kind"),
		Start:   duration(0, 2*time.Second).Draw(rt, "start"),
		Limit:   rapid.SampledFrom([]time.Duration{NoWait, Forever, Forever, 300 * ms, 3 * time.Second}).Draw(rt, "limit"),
		Timeout: rapid.SampledFrom([]time.Duration{0, 0, 0, 700 * ms, 4 * time.Second}).Draw(rt, "timeout"),
		TTL:     duration(500*ms, 5*time.Second).Draw(rt, "ttl"),
		Fixed:   rapid.IntRange(0, 3).Draw(rt, "fixed") == 3,
		Shared:  rapid.IntRange(0, 4).Draw(rt, "shared") == 4,
		Polling: rapid.IntRange(0, 4).Draw(rt, "polling") == 4,
		Hold:    duration(0, time.Second).Draw(rt, "hold"),
		Nested:  max(rapid.IntRange(-2, 2).Draw(rt, "nested"), 0),
		Extend:  rapid.Bool().Draw(rt, "extend"),
		Detach:  rapid.IntRange(0, 9).Draw(rt, "detach") == 9,
	}
	if rapid.IntRange(0, 4).Draw(rt, "limited") == 4 {
		k.MaxHold = duration(200*ms, 3*time.Second).Draw(rt, "max hold")
	}
	if rapid.IntRange(0, 2).Draw(rt, "cohort") == 2 {
		k.Cohort, k.TTL, k.Fixed, k.MaxHold, k.Shared = time.Second, 3*time.Second, false, 0, false
	}
	return k
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

// Several clients acquire, nest, extend and release at random, while commands are lost, delayed and
// repeated. At most one hold is valid at any time, every call ends, and nothing stays on the server.
func TestHoldsExcludeEachOtherAndNothingIsLeft(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tasks := rapid.SliceOfN(rapid.Custom(drawTask), 1, 12).Draw(rt, "tasks")
		faults := rapid.SliceOfN(rapid.Custom(drawFault), 0, 80).Draw(rt, "faults")
		// In half of the runs no lease ends. Then a lock that was not released is still there at the end.
		if rapid.Bool().Draw(rt, "leases outlast the test") {
			for i := range tasks {
				k := &tasks[i]
				k.TTL, k.Fixed, k.MaxHold, k.Shared, k.Detach = time.Hour, false, 0, false, false
			}
		}
		silent := rapid.IntRange(0, 3).Draw(rt, "messages are lost") == 3
		subscribe := rapid.SampledFrom([]time.Duration{0, 0, 50 * ms, time.Minute}).Draw(rt, "subscription delay")
		rapid.SyncTest(rt, func(rt *rapid.T) {
			s := NewServer()
			s.SetPermits("rw", 100)
			s.SetPermits("s", modelPermits)
			s.Silent, s.Subscribe.Delay = silent, subscribe
			left := faults
			s.OnEach(func(Command) (f Fault) { // mu is held
				if len(left) > 0 {
					f, left = left[0], left[1:]
				}
				return f
			})
			w := &world{s: s, acquisitions: map[*Client]int{}, tokens: map[string]int64{}}
			for i := range 3 {
				w.clients = append(w.clients, s.NewClient(string(rune('a'+i))))
			}
			ended := make(chan struct{})
			var running sync.WaitGroup
			for _, k := range tasks {
				running.Go(func() { w.run(&k) })
			}
			go func() { running.Wait(); close(ended) }()
			select {
			case <-ended:
			case <-time.After(30 * time.Minute): // before the long leases end
				s.Mu.Lock()
				t.Logf("the first commands: %v", s.Log[:min(len(s.Log), 100)])
				s.Mu.Unlock()
				rt.Fatal("a call does not end")
			}
			time.Sleep(10 * time.Minute) // late copies, leases and background work
			synctest.Wait()
			for _, name := range s.Names() {
				if ids := s.IDs(name); len(ids) > 0 {
					w.failf("%v still hold %q", ids, name)
				}
			}
			if w.violation != "" {
				t.Logf("commands: %v", s.Log) // a second run may take another way
			}
			require.Empty(rt, w.violation)
			for _, c := range w.clients {
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
		})
	})
}
