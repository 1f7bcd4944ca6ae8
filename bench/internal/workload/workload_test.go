package workload

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/bench/internal/contend"
)

// Contenders for the tests. They need no server.
const (
	correct = "correct" // locks that exclude each other within the process
	greedy  = "greedy"  // correct, but waiters poll, so that the last owner usually acquires again
	broken  = "broken"  // locks that do not exclude anybody
)

// locks is the state of the correct contenders: a channel per key, full while the lock is held.
type locks struct{ byName sync.Map }

func (l *locks) get(name string) chan struct{} {
	lock, _ := l.byName.LoadOrStore(name, make(chan struct{}, 1))
	return lock.(chan struct{})
}

func (l *locks) contenders() map[string]contend.Contender {
	open := func(c contend.Client) func(context.Context, contend.ClientConfig) (contend.Client, error) {
		return func(context.Context, contend.ClientConfig) (contend.Client, error) { return c, nil }
	}
	return map[string]contend.Contender{
		correct: {Name: correct, Open: open(chanClient{locks: l})},
		greedy:  {Name: greedy, Open: open(chanClient{locks: l, greedy: true})},
		broken:  {Name: broken, Open: open(chanClient{})},
	}
}

type chanClient struct {
	locks  *locks // nil: broken
	greedy bool
}

func (c chanClient) Locker(_ context.Context, name string, _ bool) (contend.Locker, error) {
	if c.locks == nil {
		return chanLock(nil), nil
	}
	if c.greedy {
		return greedyLock{c.locks.get(name)}, nil
	}
	return chanLock(c.locks.get(name)), nil
}

func (c chanClient) Close() error { return nil }

// chanLock is a lock. A nil chanLock does not exclude anybody.
type chanLock chan struct{}

func (l chanLock) Acquire(ctx context.Context) (contend.Hold, error) {
	if l == nil {
		return l, nil
	}
	select {
	case l <- struct{}{}:
		return l, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (l chanLock) Release(context.Context) error {
	if l != nil {
		<-l
	}
	return nil
}

type greedyLock struct{ chanLock }

func (l greedyLock) Acquire(ctx context.Context) (contend.Hold, error) {
	for ctx.Err() == nil {
		select {
		case l.chanLock <- struct{}{}:
			return l, nil
		default:
			time.Sleep(2 * time.Millisecond)
		}
	}
	return nil, context.Cause(ctx)
}

// TestMain runs Serve when Fork starts this test binary as a child process.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == PartCommand {
		if err := Serve(context.Background(), new(locks).contenders(), os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func section(t *testing.T) contend.Workload {
	return contend.Workload{
		ID: "W", Name: t.Name(), Kind: contend.Section, Primitive: contend.Lock, Keys: 1, Clients: 2, Goroutines: 3,
		Duration: 50 * time.Millisecond,
	}
}

func open(t *testing.T, l *locks, contender string, w contend.Workload) contend.Session {
	t.Helper()
	s, err := Open(t.Context(), l.contenders()[contender], contend.Target{}, w)
	require.NoError(t, err)
	return s
}

func run(t *testing.T, contender string, w contend.Workload) contend.Result {
	t.Helper()
	s := open(t, new(locks), contender, w)
	r, err := s.Run(t.Context(), w)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	return r
}

func TestSectionCounts(t *testing.T) {
	r := run(t, correct, section(t))
	require.Zero(t, r.Overlaps)
	require.Zero(t, r.Lost)
	require.Positive(t, r.Ops)
	require.LessOrEqual(t, r.Ops, r.AllOps)
	require.LessOrEqual(t, r.HandOffs, r.Ops)
	require.Positive(t, r.HandOffs)
	require.Len(t, r.PerWorker, 6)
	require.Len(t, r.Waits, int(r.Ops))
	require.Equal(t, 50*time.Millisecond, r.Elapsed)
	var sum int64
	for _, n := range r.PerWorker {
		sum += n
	}
	require.Equal(t, r.Ops, sum)
}

func TestSectionRunResetsCounts(t *testing.T) {
	w := section(t)
	w.Inside = time.Millisecond
	s := open(t, new(locks), broken, w)
	for range 2 {
		r, err := s.Run(t.Context(), w)
		require.NoError(t, err)
		require.LessOrEqual(t, r.Overlaps, r.AllOps, "the previous run must not count")
		require.Len(t, r.Waits, int(r.Ops))
	}
	require.NoError(t, s.Close())
}

func TestGuardDetectsBrokenLock(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*contend.Workload)
		lost   bool
	}{
		{"lock", func(*contend.Workload) {}, true},
		{"writers", func(w *contend.Workload) { w.Primitive = contend.RW }, true},
		{"readers and writers", func(w *contend.Workload) { w.Primitive, w.Reads = contend.RW, 50 }, false},
		{"semaphore", func(w *contend.Workload) { w.Primitive, w.Permits = contend.Semaphore, 2 }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := section(t)
			w.Inside = 2 * time.Millisecond
			tt.change(&w)
			r := run(t, broken, w)
			require.Positive(t, r.Overlaps)
			if tt.lost {
				require.Positive(t, r.Lost)
			}
		})
	}
}

// The contender is broken, but these workloads need no exclusion.
func TestGuardAllowsSharedAccess(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*contend.Workload)
	}{
		{"readers", func(w *contend.Workload) { w.Primitive, w.Reads = contend.RW, 100 }},
		{"a permit per worker", func(w *contend.Workload) { w.Primitive, w.Permits = contend.Semaphore, 6 }},
		{"a key per worker", func(w *contend.Workload) { w.Keys = 6 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := section(t)
			w.Inside = time.Millisecond
			tt.change(&w)
			r := run(t, broken, w)
			require.Zero(t, r.Overlaps)
			require.Zero(t, r.Lost)
			require.Positive(t, r.Ops)
		})
	}
}

func TestTurnsAlternateWorkers(t *testing.T) {
	w := section(t)
	w.Goroutines, w.Turns, w.Inside = 1, true, time.Millisecond
	r := run(t, greedy, w)
	require.Positive(t, r.HandOffs)
	require.GreaterOrEqual(t, r.HandOffs, r.Ops-1, "no worker enters twice in a row")
	require.InDelta(t, r.HandOffs, len(r.HandOffTimes), 1)
	for _, took := range r.HandOffTimes {
		require.Positive(t, took)
		require.Less(t, took, int64(time.Second))
	}
}

func TestCrowdAcquiresOncePerWorker(t *testing.T) {
	w := section(t)
	w.Kind = contend.Crowd
	r := run(t, correct, w)
	require.EqualValues(t, 6, r.AllOps)
	require.EqualValues(t, 6, r.AllHandOffs)
	require.Len(t, r.Waits, 6)
	require.Positive(t, r.Drain)
	require.Less(t, r.Drain, time.Second)
	require.Zero(t, r.Overlaps)
	require.Zero(t, r.Lost)
	require.Zero(t, r.Goroutines, "the workers themselves do not count")
}

func TestGuardDetectsBrokenLockInCrowd(t *testing.T) {
	w := section(t)
	w.Kind = contend.Crowd
	require.Positive(t, run(t, broken, w).Overlaps)
}

func TestCloseBeforeRunCancelsCrowd(t *testing.T) {
	w := section(t)
	w.Kind = contend.Crowd
	l := new(locks)
	require.NoError(t, open(t, l, correct, w).Close())
	require.Empty(t, l.get(w.Name), "the lock is free")
}

func TestHoldsLastUntilClose(t *testing.T) {
	w := section(t)
	w.Kind, w.Keys = contend.Holds, 100
	l := new(locks)
	s := open(t, l, correct, w)
	for i := range w.Keys {
		require.Len(t, l.get(KeyOf(w, i)), 1, "held")
	}
	r, err := s.Run(t.Context(), w)
	require.NoError(t, err)
	require.Zero(t, r.LostHolds)
	require.NoError(t, s.Close())
	for i := range w.Keys {
		require.Empty(t, l.get(KeyOf(w, i)), "released")
	}
}

// Child processes share the guard but not the locks. So the locks are broken across processes, and
// the guard must detect it.
func TestForkSharesGuard(t *testing.T) {
	t.Setenv("GORACE", "atexit_sleep_ms=0") // else each child takes a second to exit under the race detector
	for _, tt := range []struct {
		name    string
		clients int
		broken  bool
	}{{"one process", 1, false}, {"three processes", 3, true}} {
		t.Run(tt.name, func(t *testing.T) {
			w := section(t)
			w.Clients, w.Inside = tt.clients, time.Millisecond
			s, err := Fork(t.Context(), correct, contend.Target{}, w)
			require.NoError(t, err)
			for range 2 {
				r, err := s.Run(t.Context(), w)
				require.NoError(t, err)
				require.Len(t, r.PerWorker, w.Workers())
				require.Equal(t, tt.broken, r.Overlaps > 0)
				require.Equal(t, tt.broken, r.Lost > 0)
				require.Len(t, r.Waits, int(r.Ops))
			}
			require.NoError(t, s.Close())
		})
	}
}

func TestForkRemovesGuardFileOnFailure(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	_, err := Fork(t.Context(), "nobody", contend.Target{}, section(t))
	require.ErrorContains(t, err, `no contender "nobody"`)
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "bench-guard-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestKeyOf(t *testing.T) {
	require.Equal(t, "k", KeyOf(contend.Workload{Name: "k", Keys: 1}, 0))
	require.Equal(t, "k:3", KeyOf(contend.Workload{Name: "k", Keys: 4}, 3))
}
