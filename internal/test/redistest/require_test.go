package redistest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRequiresReadsTheList(t *testing.T) {
	for _, tt := range []struct {
		list, what string
		want       bool
		err        string
	}{
		{"", NeedRedis, false, ""},
		{"redis", NeedRedis, true, ""},
		{"redis, cluster", NeedCluster, true, ""},
		{"redis,cluster,", NeedSentinel, false, ""},
		{"redisson", NeedRedis, false, ""},
		{"redis,clutser", NeedRedis, false, "clutser"},
		{"redis", "postgres", false, "postgres"},
	} {
		got, err := requires(tt.list, tt.what)
		if tt.err != "" {
			require.ErrorContains(t, err, tt.err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, tt.want, got, "%q in %q", tt.what, tt.list)
	}
}

// endRecorder is a testing.TB that records how a test ends and panics instead of ending it.
type endRecorder struct {
	testing.TB
	how string
}

func (e *endRecorder) Helper()               {}
func (e *endRecorder) Fatal(...any)          { e.end("fatal") }
func (e *endRecorder) Fatalf(string, ...any) { e.end("fatal") }
func (e *endRecorder) Skipf(string, ...any)  { e.end("skip") }
func (e *endRecorder) end(how string)        { e.how = how; panic(e) }

func TestMissingServerSkipsUnlessRequired(t *testing.T) {
	t.Setenv(envServer, "no-such-server")
	for _, tt := range []struct{ list, want string }{
		{"", "skip"},
		{"cluster", "skip"},
		{"redis", "fatal"},
		{"rediss", "fatal"},
	} {
		t.Setenv(envRequire, tt.list)
		e := &endRecorder{TB: t}
		require.Panics(t, func() { Fresh(e) })
		require.Equal(t, tt.want, e.how, "%q", tt.list)
	}
}

// By default, a test for each server needs one server: redis-server, or else miniredis. All tests
// use both.
func TestEachServerThatIsHere(t *testing.T) {
	t.Setenv(envRequire, "")
	t.Setenv(envNightly, "")
	here, err := binary()
	if err != nil {
		here = ""
	}
	for _, tt := range []struct {
		binary, full string
		want         []string
	}{
		{"no-such-server", "", []string{"miniredis"}},
		{"no-such-server", "1", []string{"miniredis"}},
		{here, "", []string{"redis"}},
		{here, "1", []string{"miniredis", "redis"}},
	} {
		if tt.binary == "" || tt.full != "" && testing.Short() {
			continue
		}
		t.Setenv(envServer, tt.binary)
		t.Setenv(envFull, tt.full)
		var got []string
		Each(t, func(_ *testing.T, s *Server) { got = append(got, s.Name()) })
		require.Equal(t, tt.want, got, "%s %s", tt.binary, tt.full)
	}
}
