package torture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// knownDefects are mistakes that lock libraries have made. Each is planted in the client processes,
// and one of the checks must find it.
var knownDefects = slices.Concat(acquisitionDefects, takeoverDefects)

// knownDefect is a row. A run makes rounds until one of its checks has failed. Other checks may
// fail, too.
type knownDefect struct {
	name       string
	primitives []string
	faults     []string
	pace       pace   // default: paceMixed
	rates      rates  // default: usualRates
	library    string // one of testLibraries, in every second process
	// checks lists the checks that this defect alone can make fail. Which of them fails first
	// depends on what the other sessions do next.
	checks []string
	defect
}

// heldByNobody are the checks that fail when Redis has a lock taken that nobody holds: others wait
// for it in vain while the round lasts, or it is still there at the end.
var heldByNobody = []string{checkFree, checkWake, checkKept, checkLeft}

// acquisitionDefects show in the life of an acquisition, from the call to the release.
var acquisitionDefects = []knownDefect{
	{
		name: "renewal stops after one error", primitives: []string{"lock"}, checks: []string{checkOrder},
		defect: defect{acquire: neverRenewed},
	},
	{
		name: "renewal of a permit stops", primitives: []string{"permits"}, checks: []string{checkOrder},
		defect: defect{acquire: neverRenewed},
	},
	{
		name: "loss told too late", primitives: []string{"lock"}, faults: []string{faultHole}, checks: []string{checkOrder},
		defect: defect{acquire: wrapped(func(s *session, h *faultyHold) {
			ctx, cancel := context.WithCancelCause(context.Background())
			context.AfterFunc(h.hold.Context(), func() {
				time.Sleep(3 * s.TTL)
				cancel(context.Cause(h.hold.Context()))
			})
			h.ctx = ctx
			h.until = func() time.Time { return h.hold.ValidUntil().Add(3 * s.TTL) }
		})},
	},
	{
		name: "orphan after a cancel", primitives: []string{"lock"}, checks: heldByNobody, rates: rareTakeovers,
		defect: defect{acquire: func(a attempt) (hold, error) {
			h, err := a.plainly()
			if err != nil && a.ctx.Err() != nil {
				orphan(a.lock)
			}
			return h, err
		}},
	},
	{
		name: "lost reply, retried with another id", primitives: []string{"fenced"}, checks: heldByNobody,
		rates: rareTakeovers,
		defect: defect{acquire: func(a attempt) (hold, error) {
			if a.one(5) {
				orphan(a.lock)
			}
			return a.plainly()
		}},
	},
	{
		name: "release by name", primitives: []string{"lock"}, checks: []string{checkOrder},
		defect: defect{acquire: func(a attempt) (hold, error) {
			a.opts[0] = primitives.WithLease(a.TTL / 3)
			return wrapped(func(s *session, h *faultyHold) {
				h.release = func(ctx context.Context) error {
					if h.hold.Context().Err() == nil {
						return h.hold.Release(ctx)
					}
					time.Sleep(between(s.rand, 0, 20*time.Millisecond)) // somebody else has it now
					return s.rdb.Del(ctx, h.call.Names[0]).Err()
				}
			})(a)
		}},
	},
	{
		name: "client clock in a script", primitives: []string{"lock"}, checks: []string{checkOrder},
		defect: defect{acquire: func(a attempt) (hold, error) {
			if a.Process == 0 { // its clock is fast: what has some time left has expired already
				a.rdb.Del(a.ctx, a.call.Names[0])
			}
			return a.plainly()
		}},
	},
	{
		name: "token repeats", primitives: []string{"fenced"}, checks: []string{checkOrder},
		defect: defect{acquire: wrapped(func(s *session, h *faultyHold) {
			if s.one(5) {
				h.token = h.hold.Token() - 1
			}
		})},
	},
	{
		name: "semaphore released twice", primitives: []string{"semaphore"}, checks: []string{checkOrder, checkLeft},
		defect: defect{acquire: wrapped(func(s *session, h *faultyHold) {
			h.release = func(ctx context.Context) error {
				s.rdb.Incr(ctx, h.call.Names[0])
				return h.hold.Release(ctx)
			}
		})},
	},
	{
		name: "count-down counted twice", primitives: []string{"latch"}, checks: []string{checkOrder},
		defect: defect{countDown: func(ctx context.Context, s *session, latch *primitives.CountDownLatch) error {
			if s.one(5) {
				_ = latch.CountDown(ctx)
			}
			return latch.CountDown(ctx)
		}},
	},
	{
		name: "count-down not counted", primitives: []string{"latch"}, checks: []string{checkOrder},
		defect: defect{countDown: func(ctx context.Context, s *session, latch *primitives.CountDownLatch) error {
			if s.one(5) {
				return nil
			}
			return latch.CountDown(ctx)
		}},
	},
	{
		name: "count-down not remembered", primitives: []string{"latch"}, pace: paceCrowd, checks: []string{checkCopy},
		defect: defect{countDown: func(ctx context.Context, s *session, latch *primitives.CountDownLatch) error {
			err := latch.CountDown(ctx)
			memories, _ := s.rdb.Keys(ctx, "redisson_unlock_latch:*"+s.Tag+"*").Result()
			for _, key := range memories {
				s.rdb.Del(ctx, key)
			}
			return err
		}},
	},
	{
		name: "wake-up lost, and no poll", primitives: []string{"lock"}, pace: paceCalm,
		checks: []string{checkFree, checkWake},
		defect: defect{acquire: func(a attempt) (hold, error) {
			return a.with(primitives.WithPolling(5*time.Second, 5*time.Second))
		}},
	},
	{
		name: "counted twice, released once", primitives: []string{"lock"}, checks: heldByNobody,
		defect: defect{acquire: wrapped(func(s *session, h *faultyHold) {
			id := h.hold.ID()
			h.release = func(ctx context.Context) error {
				err := h.hold.Release(ctx)
				if s.one(10) {
					s.rdb.HSet(ctx, h.call.Names[0], id, 1)
					s.rdb.PExpire(ctx, h.call.Names[0], 20*time.Second)
				}
				return err
			}
		})},
	},
	{
		name: "successful release reported as a loss", primitives: []string{"lock"}, checks: []string{checkReason},
		defect: defect{acquire: wrapped(func(s *session, h *faultyHold) {
			h.release = func(ctx context.Context) error { return errors.Join(h.hold.Release(ctx), primitives.ErrLost) }
		})},
	},
	{
		name: "later waiter overtakes in a fair lock", primitives: []string{"fair"}, checks: []string{checkOrder},
		defect: defect{acquire: func(a attempt) (hold, error) {
			a.out.write(record{Kind: kindWait, At: a.clock.now(), Op: a.call.Op})
			a.lock = a.client.Lock(a.call.Names[0])
			return a.with(primitives.WithPolling(time.Millisecond, 20*time.Millisecond))
		}},
	},
	{
		name: "readers beside a writer", primitives: []string{"rwlock"}, checks: []string{checkOrder},
		defect: defect{acquire: func(a attempt) (hold, error) {
			if a.call.Read && a.call.Root == a.call.Op {
				a.lock = a.client.RWLock(a.call.Names[0] + "2").Reader()
			}
			return a.plainly()
		}},
	},
	{
		name: "returns long after its context", primitives: []string{"lock"}, checks: []string{checkPrompt},
		defect: defect{acquire: func(a attempt) (hold, error) {
			h, err := a.plainly()
			if err != nil {
				time.Sleep(time.Second)
			}
			return h, err
		}},
	},
	{
		name: "never returns", primitives: []string{"semaphore"}, checks: []string{checkForever},
		defect: defect{acquire: func(a attempt) (hold, error) {
			if a.one(50) {
				select {}
			}
			return a.plainly()
		}},
	},
	{
		name: "forced release unnoticed", primitives: []string{"lock"}, faults: []string{faultForce, faultDelete},
		checks: []string{checkNotice},
		defect: defect{acquire: wrapped(func(s *session, h *faultyHold) {
			h.ctx = context.Background()
			h.until = func() time.Time { return time.Now().Add(s.TTL) }
		})},
	},
	{
		name: "subscription left behind", primitives: []string{"lock"}, checks: []string{checkLeft},
		defect: defect{acquire: func(a attempt) (hold, error) {
			h, err := a.plainly()
			if err != nil && a.one(3) {
				ctx := context.Background()
				_, _ = a.rdb.Subscribe(ctx, "redisson_lock__channel:{"+a.call.Names[0]+"}").Receive(ctx)
			}
			return h, err
		}},
	},
	{
		name: "SCRIPT FLUSH shows", primitives: []string{"lock"}, checks: []string{checkError},
		defect: defect{acquire: func(a attempt) (hold, error) {
			if a.one(20) {
				return nil, errors.New("NOSCRIPT No matching script")
			}
			return a.plainly()
		}},
	},
	{
		name: "one owner for all goroutines of a process", primitives: []string{"cohort"}, checks: []string{checkOrder},
		defect: defect{acquire: func(a attempt) (hold, error) {
			return a.with(primitives.WithOwner(fmt.Sprintf("%s:%d", a.client.ID(), 1)))
		}},
	},
	{
		name: "returns as if locked when interrupted", primitives: []string{"multi"}, checks: []string{checkOrder},
		defect: defect{acquire: func(a attempt) (hold, error) {
			h, err := a.plainly()
			if errors.Is(err, primitives.ErrNotAcquired) {
				return &faultyHold{ctx: context.Background()}, nil
			}
			return h, err
		}},
	},
	{
		name: "redlock without a majority", primitives: []string{"redlock"}, checks: []string{checkOrder},
		defect: defect{acquire: func(a attempt) (hold, error) {
			if a.call.Root == a.call.Op {
				a.lock = a.client.Lock(fmt.Sprintf("%s:%d", a.call.Names[0], a.rand.IntN(3)))
			}
			return a.plainly()
		}},
	},
	{
		name: "keys that another library does not use", primitives: []string{"lock"}, library: "another library",
		checks: []string{checkOrder},
		defect: defect{acquire: func(a attempt) (hold, error) {
			a.lock = a.client.Lock(a.call.Names[0] + ":other")
			return a.plainly()
		}},
	},
	{
		name: "panic", primitives: []string{"fair"}, checks: []string{checkProcess},
		defect: defect{acquire: func(a attempt) (hold, error) {
			if a.one(20) {
				panic("a bug")
			}
			return a.plainly()
		}},
	},
}

func plant(name string) defect {
	for _, d := range knownDefects {
		if d.name == name {
			return d.defect
		}
	}
	panic("no defect " + name)
}

// TestKnownDefectsAreFound runs the harness with each defect. The runs mostly wait, so many run at
// a time. The simulation, which CI runs, has the same checks.
func TestKnownDefectsAreFound(t *testing.T) {
	redistest.NeedNightly(t, "minutes of faults")
	redistest.Require(t, redistest.NeedRedis)
	t.Parallel()
	type outcome struct {
		*Result
		err error
	}
	running := make(chan struct{}, 5)
	var runs []chan outcome
	for _, d := range knownDefects {
		c := d.config(t)
		done := make(chan outcome, 1)
		runs = append(runs, done)
		go func() {
			running <- struct{}{}
			defer func() { <-running }()
			r, err := Run(t.Context(), c)
			done <- outcome{r, err}
		}()
	}
	for i, d := range knownDefects {
		t.Run(d.name, func(t *testing.T) {
			r := <-runs[i]
			require.NoError(t, r.err)
			var found []string
			for _, v := range r.Violations {
				found = append(found, v.Check)
			}
			slices.Sort(found)
			t.Logf("%v, %d rounds: %v", r.Elapsed.Round(time.Millisecond), r.Rounds, slices.Compact(found))
			assert.True(t, slices.ContainsFunc(d.checks, func(c string) bool { return slices.Contains(found, c) }),
				"wanted one of %v", d.checks)
		})
	}
}

// config is a run in which the situation of the defect comes in almost every round. It lasts for
// many rounds, and ends as soon as the defect is found.
func (d *knownDefect) config(t *testing.T) Config {
	t.Helper()
	c := Config{
		Client: testClient, Topology: Single, Timelines: t.TempDir(), Primitives: d.primitives, Faults: d.faults,
		Duration: 3 * time.Minute, Round: 1500 * time.Millisecond, TTL: 300 * time.Millisecond, Seed: 1,
		Processes: 2, Sessions: 6, long: 4, Every: [2]time.Duration{50 * time.Millisecond, 200 * time.Millisecond},
		defect: d.name, until: d.checks, drain: 4 * time.Second, single: true,
		pace: cmp.Or(d.pace, paceMixed), rates: d.rates,
	}
	if d.library != "" {
		c.Other = func() *exec.Cmd { return testClientOf(d.library) }
	}
	if d.faults == nil {
		c.Faults = []string{NoFaults}
	}
	if slices.Contains(d.checks, checkCopy) {
		c.copyAge = time.Second
	}
	if c.pace == paceCalm { // waits must be longer than the patience of the checks
		c.Round, c.drain, c.TTL = patience, 20*time.Second, time.Second
	}
	return c
}
