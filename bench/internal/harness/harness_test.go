package harness

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/bench/internal/contend"
	"github.com/redlatch/redlatch/bench/internal/delay"
	"github.com/redlatch/redlatch/bench/internal/report"
	"github.com/redlatch/redlatch/bench/internal/server"
	"github.com/redlatch/redlatch/bench/internal/workload"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// TestMain runs workload.Serve or delay.Serve when workload.Fork or delay.Start starts this test
// binary as a child process.
func TestMain(m *testing.M) {
	serve := func() error { os.Exit(m.Run()); return nil }
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case workload.PartCommand:
			serve = func() error { return workload.Serve(context.Background(), contend.All(), os.Stdin, os.Stdout) }
		case delay.Command:
			serve = func() error { return delay.Serve(context.Background(), os.Stdin, os.Stdout) }
		}
	}
	if err := serve(); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

func start(t *testing.T) *server.Server {
	t.Helper()
	redistest.Require(t, redistest.NeedRedis)
	s, err := server.Start(t.Context())
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// smallSpecs returns the workloads with fewer workers and keys.
func smallSpecs() []Spec {
	specs := Specs(false)
	for i := range specs {
		w := &specs[i].Workload
		w.Goroutines, w.Keys = min(w.Goroutines, 8), min(w.Keys, 200)
		if w.Kind == contend.Section && w.Keys > 1 { // a key per worker
			w.Keys = w.Goroutines
		}
		for j := range specs[i].Rows {
			specs[i].Rows[j].Waiters = min(specs[i].Rows[j].Waiters, 20)
		}
	}
	return specs
}

// testDuration is long enough for each of 64 fair waiters to acquire on a busy machine.
const testDuration = 150 * time.Millisecond

func TestRunMeasuresEveryWorkload(t *testing.T) {
	t.Setenv("GORACE", "atexit_sleep_ms=0") // else each child takes a second to exit under the race detector
	s := start(t)
	for _, tt := range []struct {
		name     string
		fork     bool
		networks []string
		rounds   int
		most     int // workloads
	}{
		{"in this process", false, []string{Unix}, 1, 100},
		{"two rounds", false, []string{Unix}, 2, 2},
		{"a process per client", true, []string{TCP}, 1, 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Config{
				Specs: smallSpecs(), Contenders: contend.All(), Who: []string{"go-redis", "redlatch"},
				Networks: tt.networks, Rounds: tt.rounds, Duration: testDuration, Fork: tt.fork,
			}
			if tt.fork {
				c.Specs = slices.DeleteFunc(c.Specs, func(s Spec) bool { return !s.Forks })
			}
			c.Specs = c.Specs[:min(len(c.Specs), tt.most)]
			r, err := Run(t.Context(), s, c)
			require.NoError(t, err)
			require.Len(t, r.Workloads, len(c.Specs))
			for _, w := range r.Workloads {
				require.Equal(t, tt.fork, w.Forked)
				require.GreaterOrEqual(t, len(w.Rows), 2, w.ID)
				for _, row := range w.Rows {
					requireMeasured(t, w, row)
				}
			}
		})
	}
}

// optionalMetrics can be unknown for a contender, or too small to measure.
var optionalMetrics = []string{report.HeapEach, report.StackEach, report.GoroutineEach, report.AllocsPerOp}

func requireMeasured(t *testing.T, w report.Workload, row report.Row) {
	t.Helper()
	name := w.ID + ", " + row.Name
	require.Empty(t, row.Error, name)
	require.Empty(t, row.Broke, name)
	require.Len(t, row.Rounds, w.Rounds, name)
	for _, key := range w.Metrics {
		optional := slices.Contains(optionalMetrics, key)
		require.True(t, optional || hasKey(row.Values, key), "%s has no %s", name, key)
	}
	if w.Metrics[0] != report.Commands { // the run is too short for a renewal
		require.Contains(t, row.Ratios, w.Metrics[0], name)
	}
	if row.Name == row.Base && w.Metrics[0] != report.Commands {
		require.InDelta(t, 1, row.Ratios[w.Metrics[0]].Median, 1e-9, name)
	}
}

func hasKey[V any](m map[string]V, key string) bool {
	_, ok := m[key]
	return ok
}

// brokenLock does not exclude anybody.
type brokenLock struct{}

func (brokenLock) Locker(context.Context, string, bool) (contend.Locker, error) {
	return brokenLock{}, nil
}
func (brokenLock) Acquire(context.Context) (contend.Hold, error) { return brokenLock{}, nil }

func (brokenLock) Release(context.Context) error {
	time.Sleep(time.Millisecond)
	return nil
}

func (brokenLock) Close() error { return nil }

func TestRunReportsBadRowsAndContinues(t *testing.T) {
	s := start(t)
	specs, err := only("W8") // its sections last long enough to overlap
	require.NoError(t, err)
	specs[0].Rows = []Row{
		{Contender: contend.FloorPubsub}, {Contender: "broken"}, {Contender: "failing"}, {Contender: "missing"},
	}
	all := contend.All()
	all["broken"] = contend.Contender{
		Name: "broken", Family: "broken",
		Open: func(context.Context, contend.ClientConfig) (contend.Client, error) { return brokenLock{}, nil },
	}
	all["failing"] = contend.Contender{
		Name: "failing", Family: "failing",
		Open: func(context.Context, contend.ClientConfig) (contend.Client, error) { return nil, os.ErrPermission },
	}
	all["missing"] = contend.Contender{Name: "missing", Family: "missing", Missing: "not here"}

	r, err := Run(t.Context(), s, Config{
		Specs: specs, Contenders: all, Networks: []string{Unix}, Rounds: 1, Duration: testDuration,
	})
	require.NoError(t, err, "a bad row does not end the run")
	require.True(t, r.Bad())
	rows := map[string]report.Row{}
	for _, row := range r.Workloads[0].Rows {
		rows[row.Name] = row
	}
	require.False(t, rows[contend.FloorPubsub].Bad())
	require.Contains(t, rows["broken"].Broke, "overlaps")
	require.Contains(t, rows["failing"].Error, os.ErrPermission.Error())
	require.Equal(t, "not here", rows["missing"].Skipped)
	require.False(t, rows["missing"].Bad())
}

func only(id string) ([]Spec, error) {
	for _, s := range smallSpecs() {
		if s.ID == id {
			return []Spec{s}, nil
		}
	}
	return nil, fmt.Errorf("no workload %s", id)
}

// The count from INFO commandstats equals the number of commands that MONITOR shows.
func TestCommandCountMatchesMonitor(t *testing.T) {
	places := newPlaces(start(t))
	t.Cleanup(func() { require.NoError(t, places.close()) })
	for _, spec := range smallSpecs() {
		if spec.Workload.Kind != contend.Section || spec.Workload.Queued {
			continue
		}
		for _, e := range (Config{Contenders: contend.All(), Networks: []string{Unix}}).allEntries(spec) {
			if e.network != Unix && e.network != Cluster {
				continue
			}
			t.Run(spec.ID+", "+e.result.Name, func(t *testing.T) {
				w := spec.workload(Config{Duration: testDuration}, e.row)
				w.Name = t.Name()
				at, err := places.open(t.Context(), e.network)
				require.NoError(t, err)
				var monitors []func() int64
				for _, admin := range at.admins {
					require.NoError(t, admin.FlushAll(t.Context()).Err())
				}
				session, err := e.open(t.Context(), at.target, w)
				require.NoError(t, err)
				for _, admin := range at.admins {
					asks := !slices.Contains(e.commands(), "publish")
					monitors = append(monitors, startMonitor(t, admin, asks))
				}
				var o observation
				o.w = w
				require.NoError(t, o.observe(t.Context(), at.admins, session, e.commands()))
				require.Positive(t, o.run.commands)
				var monitored int64
				for _, stop := range monitors {
					monitored += stop()
				}
				assert.Equal(t, monitored, o.run.commands)
				require.NoError(t, session.Close(), "an open client would send commands during the next subtest")
			})
		}
	}
}

// startMonitor starts MONITOR. The function that it returns stops it, and returns the number of
// commands that clients sent between the observer's two INFO commands. asks says that clients
// publish only to ask for a lock.
func startMonitor(t *testing.T, admin *redis.Client, asks bool) func() int64 {
	t.Helper()
	conn, err := net.Dial("unix", admin.Options().Addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = conn.Write([]byte("MONITOR\r\n"))
	require.NoError(t, err)
	lines := bufio.NewScanner(conn)
	require.True(t, lines.Scan())
	require.Equal(t, "+OK", lines.Text())
	const info, end = `"info" "commandstats"`, `"echo" "the end"`
	return func() int64 {
		require.NoError(t, admin.Echo(t.Context(), "the end").Err())
		var sinceFirstInfo, untilLastInfo int64
		infos := 0
		for lines.Scan() && !strings.Contains(lines.Text(), end) {
			switch line := lines.Text(); {
			case strings.Contains(line, info):
				infos++
				untilLastInfo = sinceFirstInfo
			case strings.Contains(line, "lua]"), strings.Contains(line, `"client" "list"`): // a script, the observer
			case strings.Contains(line, `] "get" `): // reads a holder's name; not counted, because scripts call GET too
			case asks && strings.Contains(line, `] "publish" `): // a slow waiter; not counted, for the same reason
			case infos > 0:
				sinceFirstInfo++
			}
		}
		require.Equal(t, 2, infos)
		return untilLastInfo
	}
}

// A lock that is acquired over a network takes one round trip to acquire.
func TestDelayedNetworksDelayEachRoundTrip(t *testing.T) {
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	s := start(t)
	specs, err := only("W12")
	require.NoError(t, err)
	require.Len(t, specs[0].Networks, len(roundTrips))
	r, err := Run(t.Context(), s, Config{
		Specs: specs, Contenders: contend.All(), Networks: []string{Unix}, Rounds: 1, Duration: testDuration,
	})
	require.NoError(t, err)
	require.Len(t, r.Workloads[0].Rows, 2*len(roundTrips))
	for _, row := range r.Workloads[0].Rows {
		want := roundTrips[row.Network]
		require.GreaterOrEqual(t, row.Values[report.WaitP50].Min, float64(want), "%s, %s", row.Name, row.Network)
		require.LessOrEqual(t, row.Values[report.Ops].Max, 0.5/want.Seconds(), "%s, %s", row.Name, row.Network)
	}
}

func TestUnknownNetworkIsAnError(t *testing.T) {
	places := newPlaces(&server.Server{})
	_, err := places.open(t.Context(), "token ring")
	require.ErrorContains(t, err, "token ring")
	require.NoError(t, places.close())
}

func TestSelectEntriesAddsBases(t *testing.T) {
	all := contend.All()
	all["remote"] = contend.Contender{Name: "remote", Family: "remote"}
	spec := Spec{ID: "W", Rows: []Row{
		{Contender: contend.Floor},
		{Contender: contend.Redlatch},
		{Name: fair, Contender: contend.Redlatch},
		{Contender: "remote"},
		{Contender: "unknown"},
	}}
	for _, tt := range []struct {
		name     string
		who      []string
		networks []string
		want     []string
	}{
		{
			"all", nil, []string{Unix},
			[]string{"go-redis alone unix", "redlatch unix", "redlatch fair unix", "go-redis alone tcp", "remote tcp"},
		},
		{
			"a family", []string{"redlatch"}, []string{Unix},
			[]string{"go-redis alone unix", "redlatch unix", "redlatch fair unix"},
		},
		{"a row", []string{fair}, []string{TCP}, []string{"go-redis alone tcp", "redlatch fair tcp"}},
		{"a remote contender", []string{"remote"}, []string{Unix}, []string{"go-redis alone tcp", "remote tcp"}},
		{"both networks", []string{"go-redis"}, []string{Unix, TCP}, []string{"go-redis alone unix", "go-redis alone tcp"}},
		{"no contender", []string{"other"}, []string{Unix}, nil},
		{
			"networks of the spec", []string{fair}, nil,
			[]string{"go-redis alone cluster", "redlatch fair cluster"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, spec := Config{Contenders: all, Who: tt.who, Networks: tt.networks}, spec
			if tt.networks == nil {
				spec.Networks = []string{Cluster}
			}
			entries, missing := c.selectEntries(spec)
			var got []string
			for _, e := range entries {
				got = append(got, e.result.Name+" "+e.network)
				require.Equal(t, contend.Floor, e.base)
			}
			require.Equal(t, tt.want, got)
			require.Empty(t, missing)
		})
	}
}

func TestSpecsAreConsistent(t *testing.T) {
	all := contend.All()
	for _, long := range []bool{false, true} {
		seen := map[string]bool{}
		for _, s := range Specs(long) {
			require.False(t, seen[s.ID])
			seen[s.ID] = true
			require.NotEmpty(t, s.Metrics, s.ID)
			require.NotEmpty(t, s.Title, s.ID)
			require.Positive(t, s.Workload.Clients, s.ID)
			require.Positive(t, s.Workload.Duration, s.ID)
			names := map[string]bool{}
			for _, row := range s.Rows {
				require.Contains(t, all, row.Contender)
				require.False(t, names[row.name()], "%s: two rows are named %s", s.ID, row.name())
				names[row.name()] = true
			}
			for _, row := range s.Rows {
				require.True(t, names[s.base(row)], "%s: the base of %s is not a row", s.ID, row.name())
			}
			for _, key := range s.Metrics {
				require.NotEqual(t, key, report.MetricOf(key).Title, "%s: metric %s has no title", s.ID, key)
			}
		}
	}
}
