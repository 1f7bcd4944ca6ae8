package redistest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRequires(t *testing.T) {
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

// ending records how a test ended, in place of ending it.
type ending struct {
	testing.TB
	how string
}

func (e *ending) Helper()               {}
func (e *ending) Fatal(...any)          { e.end("fatal") }
func (e *ending) Fatalf(string, ...any) { e.end("fatal") }
func (e *ending) Skipf(string, ...any)  { e.end("skip") }
func (e *ending) end(how string)        { e.how = how; panic(e) }

func TestAMissingServerSkipsUnlessRequired(t *testing.T) {
	t.Setenv(envServer, "no-such-server")
	for _, tt := range []struct{ list, want string }{
		{"", "skip"},
		{"cluster", "skip"},
		{"redis", "fatal"},
		{"rediss", "fatal"},
	} {
		t.Setenv(envRequire, tt.list)
		e := &ending{TB: t}
		require.Panics(t, func() { Fresh(e) })
		require.Equal(t, tt.want, e.how, "%q", tt.list)
	}
}
