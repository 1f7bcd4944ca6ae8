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

// The contenders here need no server.
const (
	good   = "good"   // locks that exclude each other within the process
	greedy = "greedy" // as good, but who waits looks only now and then, so that who has had it gets it again
	broken = "broken" // locks that exclude nobody
)

// gates are the server of the good ones: a channel for each name.
type gates struct{ byName sync.Map }

func (g *gates) of(name string) chan struct{} {
	gate, _ := g.byName.LoadOrStore(name, make(chan struct{}, 1))
	return gate.(chan struct{})
}

func (g *gates) contenders() map[string]contend.Contender {
	opening := func(c contend.Client) func(context.Context, contend.ClientConfig) (contend.Client, error) {
		return func(context.Context, contend.ClientConfig) (contend.Client, error) { return c, nil }
	}
	return map[string]contend.Contender{
		good:   {Name: good, Open: opening(gateClient{gates: g})},
		greedy: {Name: greedy, Open: opening(gateClient{gates: g, greedy: true})},
		broken: {Name: broken, Open: opening(gateClient{})},
	}
}

type gateClient struct {
	gates  *gates
	greedy bool
}

func (c gateClient) Locker(_ context.Context, name string, _ bool) (contend.Locker, error) {
	if c.gates == nil {
		return gateLock(nil), nil
	}
	if c.greedy {
		return greedyLock{c.gates.of(name)}, nil
	}
	return gateLock(c.gates.of(name)), nil
}

func (c gateClient) Close() error { return nil }

type gateLock chan struct{}

func (l gateLock) Acquire(ctx context.Context) (contend.Hold, error) {
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

func (l gateLock) Release(context.Context) error {
	if l != nil {
		<-l
	}
	return nil
}

type greedyLock struct{ gateLock }

func (l greedyLock) Acquire(ctx context.Context) (contend.Hold, error) {
	for ctx.Err() == nil {
		select {
		case l.gateLock <- struct{}{}:
			return l, nil
		default:
			time.Sleep(2 * time.Millisecond)
		}
	}
	return nil, context.Cause(ctx)
}

// A part is this test binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == PartCommand {
		if err := Serve(context.Background(), new(gates).contenders(), os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func section(t *testing.T) contend.Workload {
	return contend.Workload{ID: "W", Kind: contend.Section, Primitive: contend.Lock, Name: t.Name(), Keys: 1, Clients: 2, Goroutines: 3, Duration: 50 * time.Millisecond}
}

func open(t *testing.T, g *gates, contender string, w contend.Workload) contend.Session {
	t.Helper()
	s, err := Open(t.Context(), g.contenders()[contender], contend.Target{}, w)
	require.NoError(t, err)
	return s
}

func run(t *testing.T, contender string, w contend.Workload) contend.Result {
	t.Helper()
	s := open(t, new(gates), contender, w)
	r, err := s.Run(t.Context(), w)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	return r
}

func TestSection(t *testing.T) {
	r := run(t, good, section(t))
	require.Zero(t, r.Overlaps)
	require.Zero(t, r.Lost)
	require.Positive(t, r.Ops)
	require.LessOrEqual(t, r.Ops, r.AllOps)
	require.LessOrEqual(t, r.HandOvers, r.Ops)
	require.Positive(t, r.HandOvers)
	require.Len(t, r.PerWorker, 6)
	require.Len(t, r.Waits, int(r.Ops))
	require.Equal(t, 50*time.Millisecond, r.Elapsed)
	var sum int64
	for _, n := range r.PerWorker {
		sum += n
	}
	require.Equal(t, r.Ops, sum)
}

func TestSectionRunsAgain(t *testing.T) {
	w := section(t)
	w.Inside = time.Millisecond
	s := open(t, new(gates), broken, w)
	for range 2 {
		r, err := s.Run(t.Context(), w)
		require.NoError(t, err)
		require.LessOrEqual(t, r.Overlaps, r.AllOps, "the run before is forgotten")
		require.Len(t, r.Waits, int(r.Ops))
	}
	require.NoError(t, s.Close())
}

func TestGuardSeesABrokenLock(t *testing.T) {
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

// Who may be inside together is no overlap.
func TestGuardLetsIn(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*contend.Workload)
	}{
		{"readers", func(w *contend.Workload) { w.Primitive, w.Reads = contend.RW, 100 }},
		{"as many as there are permits", func(w *contend.Workload) { w.Primitive, w.Permits = contend.Semaphore, 6 }},
		{"a key for each", func(w *contend.Workload) { w.Keys = 6 }},
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

func TestTurns(t *testing.T) {
	w := section(t)
	w.Goroutines, w.Turns, w.Inside = 1, true, time.Millisecond
	r := run(t, greedy, w)
	require.Positive(t, r.HandOvers)
	require.GreaterOrEqual(t, r.HandOvers, r.Ops-1, "nobody comes twice")
	require.InDelta(t, r.HandOvers, len(r.HandOverTimes), 1)
	for _, took := range r.HandOverTimes {
		require.Positive(t, took)
		require.Less(t, took, int64(time.Second))
	}
}

func TestCrowd(t *testing.T) {
	w := section(t)
	w.Kind = contend.Crowd
	r := run(t, good, w)
	require.EqualValues(t, 6, r.AllOps)
	require.EqualValues(t, 6, r.AllHandOvers)
	require.Len(t, r.Waits, 6)
	require.Positive(t, r.Drain)
	require.Less(t, r.Drain, time.Second)
	require.Zero(t, r.Overlaps)
	require.Zero(t, r.Lost)
	require.Zero(t, r.Goroutines, "the workers themselves do not count")
}

// A crowd that nothing holds back is seen, too.
func TestCrowdBroken(t *testing.T) {
	w := section(t)
	w.Kind = contend.Crowd
	require.Positive(t, run(t, broken, w).Overlaps)
}

// A session that is closed before it ran leaves nobody waiting.
func TestCrowdClosedEarly(t *testing.T) {
	w := section(t)
	w.Kind = contend.Crowd
	g := new(gates)
	require.NoError(t, open(t, g, good, w).Close())
	require.Empty(t, g.of(w.Name))
}

func TestHolds(t *testing.T) {
	w := section(t)
	w.Kind, w.Keys = contend.Holds, 100
	g := new(gates)
	s := open(t, g, good, w)
	for i := range w.Keys {
		require.Len(t, g.of(KeyOf(w, i)), 1, "held")
	}
	r, err := s.Run(t.Context(), w)
	require.NoError(t, err)
	require.Zero(t, r.LostHolds)
	require.NoError(t, s.Close())
	for i := range w.Keys {
		require.Empty(t, g.of(KeyOf(w, i)), "released")
	}
}

// Processes share nothing but the board, so each has gates of its own: between them the lock is broken, and the guard sees it.
func TestForkGuards(t *testing.T) {
	t.Setenv("GORACE", "atexit_sleep_ms=0") // or each part takes a second to end, under the race detector
	for _, tt := range []struct {
		name    string
		clients int
		broken  bool
	}{{"one process", 1, false}, {"three processes", 3, true}} {
		t.Run(tt.name, func(t *testing.T) {
			w := section(t)
			w.Clients, w.Inside = tt.clients, time.Millisecond
			s, err := Fork(t.Context(), good, contend.Target{}, w)
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

func TestForkFails(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	_, err := Fork(t.Context(), "nobody", contend.Target{}, section(t))
	require.ErrorContains(t, err, `no contender "nobody"`)
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "bench-board-*"))
	require.NoError(t, err)
	require.Empty(t, left, "the board is gone")
}

func TestKeyOf(t *testing.T) {
	require.Equal(t, "k", KeyOf(contend.Workload{Name: "k", Keys: 1}, 0))
	require.Equal(t, "k:3", KeyOf(contend.Workload{Name: "k", Keys: 4}, 3))
}
