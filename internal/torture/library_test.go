package torture

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// testLibraries play the part of another library. The test of the real one is in
// interop/tortureclient.
var testLibraries = map[string]func(LibrarySetup) (Library, error){
	"another library": func(s LibrarySetup) (Library, error) { return openPlain(s, false) },
	"a library that claims what it does not have": func(s LibrarySetup) (Library, error) {
		return openPlain(s, true)
	},
}

// plainLibrary is redlatch without the features that other libraries do not have: it does not
// report losses.
type plainLibrary struct {
	rdb    *redis.Client
	client *primitives.Client
	lies   bool
	setup  LibrarySetup
}

func openPlain(s LibrarySetup, lies bool) (Library, error) {
	redis.SetLogger(discard{})
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr})
	client, err := primitives.New(rdb)
	return &plainLibrary{rdb, client, lies, s}, err
}

func (l *plainLibrary) Name() string { return "a test" }

func (l *plainLibrary) Close() error {
	return errors.Join(l.client.Close(context.Background()), l.rdb.Close())
}

func (l *plainLibrary) Lock(kind LockKind, name string, _ int) LibraryLock {
	locks := map[LockKind]*primitives.Lock{
		PlainKind: l.client.Lock(name), FencedKind: l.client.FencedLock(name), FairKind: l.client.FairLock(name),
		ReadKind: l.client.RWLock(name).Reader(), WriteKind: l.client.RWLock(name).Writer(),
	}
	return &plainLock{library: l, name: name, lock: locks[kind]}
}

type plainLock struct {
	library *plainLibrary
	name    string
	lock    *primitives.Lock
	hold    *primitives.Hold
}

func (l *plainLock) ID() string {
	if l.hold == nil {
		return "a lie"
	}
	return l.hold.ID()
}

func (l *plainLock) TryLock(ctx context.Context, wait, lease time.Duration) (_ bool, err error) {
	terms := primitives.WithLease(lease)
	if lease == 0 {
		terms = primitives.WithWatchdog(l.library.setup.Watchdog)
	}
	l.hold, err = l.lock.Acquire(ctx, primitives.WithWait(wait), terms)
	if errors.Is(err, primitives.ErrNotAcquired) && !errors.Is(err, primitives.ErrOutcomeUnknown) {
		return l.library.lies, nil
	}
	return err == nil, err
}

func (l *plainLock) TTL(ctx context.Context) (time.Duration, error) {
	return l.library.rdb.PTTL(ctx, l.name).Result()
}

func (l *plainLock) IsHeld(ctx context.Context) (bool, error) {
	if l.hold == nil {
		return true, nil
	}
	there, err := l.library.rdb.HMGet(ctx, l.name, l.ID(), l.ID()+":write").Result()
	return err == nil && (there[0] != nil || there[1] != nil), err
}

func (l *plainLock) Token(context.Context) (int64, error) {
	if l.hold == nil {
		return 0, nil
	}
	return l.hold.Token(), nil
}

func (l *plainLock) Unlock(ctx context.Context) error {
	if l.hold == nil {
		return ErrNotOwner
	}
	err := l.hold.Release(ctx)
	if errors.Is(err, primitives.ErrLost) || errors.Is(err, primitives.ErrNotHeld) {
		return ErrNotOwner
	}
	return err
}

// Processes with another library take part, and exclusion is checked among all of them.
func TestAnotherLibrary(t *testing.T) {
	redistest.Require(t, redistest.NeedRedis)
	for name, tt := range map[string]struct {
		topology string
		library  string
		wrong    []string // the checks that find something
		err      string
	}{
		"as it should be": {Single, "another library", nil, ""},
		"a wrong claim":   {Single, "a library that claims what it does not have", []string{checkOrder}, ""},
		"independent servers": {
			Independent, "another library", nil, "another library is supported with a single server only",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A busy machine may need a few rounds.
			both := func(r *Result) bool { return min(r.Others, r.Total()-r.Others) > 50 }
			r, err := Run(t.Context(), Config{
				Client: testClient, Other: func() *exec.Cmd { return testClientOf(tt.library) }, enough: both,
				Seed: 1, Duration: time.Minute, Round: 2 * time.Second, Topology: tt.topology, Timelines: t.TempDir(),
				Primitives: []string{"lock", "fenced", "rwlock"}, Processes: 2, Sessions: 4,
				TTL: 500 * time.Millisecond, Faults: []string{faultReplies, faultDelete, faultKill}, single: true,
			})
			if tt.err != "" {
				require.ErrorIs(t, err, ErrConfig)
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			var found []string
			for _, v := range r.Violations {
				found = append(found, v.Check)
			}
			require.Subset(t, tt.wrong, found, "%v", violationsOf(r))
			require.Equal(t, len(tt.wrong) > 0, len(found) > 0, "%v", violationsOf(r))
			require.True(t, both(r), "%d of %d operations by the other library", r.Others, r.Total())
		})
	}
}

// Another library makes no promise but exclusion. What it may have left to its lease excuses the
// waits of others.
func TestChecksOfAnotherLibrary(t *testing.T) {
	waits := func(h *testHistory, from, to int64) {
		a := h.holdOf("lock", 0, from, to, "a1")
		h.waits(0, a, from+1)
		h.release(0, a, to+1, to+2)
	}
	for _, tt := range []struct {
		name  string
		build func(*testHistory)
		want  []string
	}{
		{"two holders", func(h *testHistory) {
			h.hold(0, 10_000, "a1")
			h.hold(1, 10_500, "b1")
		}, []string{checkOrder}},
		{"a late return without an event", func(h *testHistory) {
			h.do(1, 10_000, 14_000, record{Do: opAcquire, TTL: 3 * time.Second, Bound: 10_100 * ms},
				record{Outcome: outcomeBusy, Events: 1})
		}, nil},
		{"a loss without a reason", func(h *testHistory) {
			h.lost(1, h.hold(1, 10_000, "b1"), 11_000)
		}, nil},
		{"an unexplained error", func(h *testHistory) {
			h.do(1, 10_000, 10_010, record{Do: opAcquire, TTL: 3 * time.Second},
				record{Outcome: outcomeUnknown, Is: []string{isOther}})
		}, nil},
		{"a wait after its release", func(h *testHistory) {
			h.release(1, h.hold(1, 10_000, "b1"), 10_090, 10_100)
			waits(h, 10_050, 14_000)
		}, []string{checkFree}},
		{"a wait after a release of unknown outcome", func(h *testHistory) {
			b := h.hold(1, 10_000, "b1")
			h.do(1, 10_090, 10_100, record{Do: opRelease, Root: b}, record{Outcome: outcomeUnknown})
			waits(h, 10_050, 14_000)
		}, nil},
		{"a wait after an acquisition of unknown outcome", func(h *testHistory) {
			h.do(1, 10_000, 10_010, record{Do: opAcquire, TTL: 3 * time.Second}, record{Outcome: outcomeUnknown})
			waits(h, 10_050, 14_000)
		}, nil},
		{"a wait in a fair lock behind a waiter that has gone", func(h *testHistory) {
			h.do(1, 10_000, 10_010, record{Do: opAcquire, Primitive: "fair", TTL: 3 * time.Second},
				record{Outcome: outcomeBusy})
			a := h.holdOf("fair", 0, 10_050, 14_000, "a1")
			h.waits(0, a, 10_051)
		}, nil},
		{"a release that Redis does not know of", func(h *testHistory) {
			h.release(1, h.hold(1, 10_000, "b1"), 10_100, 10_101)
			h.samples = []sample{{
				name: "name", ids: []string{"b1"}, before: 12_000 * ms, after: 12_001 * ms, until: 13_000 * ms,
			}}
		}, nil},
		{"a validity that is longer than the lease in Redis", func(h *testHistory) {
			h.valid(1, h.hold(1, 10_000, "b1"), 14_000)
			h.records[1][len(h.records[1])-1].At = 11_000 * ms
			h.samples = []sample{{
				name: "name", ids: []string{"b1"}, before: 11_500 * ms, after: 11_501 * ms, until: 13_000 * ms,
			}}
		}, nil},
		{"many holds in a row", func(h *testHistory) {
			waits(h, 10_000, 12_000)
			for i := range int64(95) {
				h.quick(1, 10_100+20*i, fmt.Sprint("b", i))
			}
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var found []string
			violations, _ := newTestHistory(func(h *testHistory) {
				h.outside = 1
				tt.build(h)
			}).check()
			for _, v := range violations {
				found = append(found, v.Check)
			}
			require.Equal(t, tt.want, found, "%v", violations)
		})
	}
}
