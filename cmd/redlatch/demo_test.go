package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/demo"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/locktest"
)

// Each scene passes its checks on both kinds of server and leaves no keys.
func TestScenesPassAndLeaveNoKeys(t *testing.T) {
	for _, sc := range demo.Scenes() {
		t.Run(sc.Name, func(t *testing.T) {
			if sc.Name == "red" {
				redistest.Alone(t) // its members have less time to answer than a busy machine may take
			} else {
				t.Parallel() // the scenes wait most of the time
			}
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				prefix := redistest.Name(t) + "." // no other test's prefix begins with it
				code, stdout, stderr := redlatch(t.Context(), "demo",
					"--redis", "redis://"+s.Addr(), "--only", sc.Name, "--key-prefix", prefix)
				require.Zero(t, code, stdout)
				require.Empty(t, stderr)
				require.Contains(t, stdout, s.Addr())
				require.Contains(t, stdout, "1. "+sc.Name+": ")
				require.Regexp(t, `All \d+ checks passed`, stdout)
				require.NotContains(t, stdout, "FAILED")
				require.Empty(t, redistest.Keys(t, s, "*"+prefix+"*"))
			})
		})
	}
}

// The names of clients have no prefix, so they are looked for on a server of their own.
func TestDemoLeavesNoNamesOfClients(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	exits(t, 0, "demo", "--redis", "redis://"+s.Addr(), "--only", "lock,crash")
	require.Empty(t, redistest.Keys(t, s, "*"))
}

// requireNarrow requires that a terminal of 80 columns has room for a text.
func requireNarrow(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, line)
	}
}

// The demo without flags runs two scenes on a server inside the process, whatever REDIS_URL says.
// They fit a screen.
func TestDemoWithoutFlags(t *testing.T) {
	t.Parallel()
	require.Equal(t, unreachable, os.Getenv(urlVariable))
	file := filepath.Join(t.TempDir(), "demo.html")
	stdout, stderr := exits(t, 0, "demo", "--html", file)
	require.Equal(t, "redlatch: the page is in "+file+"\n", stderr)
	requireNarrow(t, stdout)
	require.Less(t, strings.Count(stdout, "\n"), 40)
	for _, line := range []string{
		`^redlatch demo on a server inside this process`,
		`^1\. cron: `,
		`^2\. cutoff: `,
		`s  host-2  night 2: its clock is 200ms late; it skips the job$`,
		`^  ok  runs of the job, in two nights: 2$`,
		`^  ok  why the hold was lost: expired$`,
		`^All 6 checks passed, in `,
		`^The code of the cron job: examples/tasks/cron/main\.go$`,
		`^All scenes: --all$`, // --html was given
	} {
		require.Regexp(t, `(?m)`+line, stdout)
	}
	require.NotContains(t, stdout, "3. ")
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, want := range []string{
		"All 6 checks passed", "2. cutoff: the holder", `<h3>ledger <span`, `<div class="label">anna</div>`,
		`<i class="hold lost"`, `<i class="wait"`, "lost: expired", "ok  runs of the job, in two nights: 2",
		`<div class="label">host-2</div>`, "<span>kept by WithMinHold</span>",
	} {
		require.Contains(t, string(page), want)
	}
}

func TestFlagsOfTheDemoThatCannotBe(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"contradict":   {"--all", "--only", "lock"},
		"no such file": {"--html", filepath.Join(t.TempDir(), "none", "x.html")},
		"no scene":     {"--only", "none"},
	} {
		_, stderr := exits(t, exitUsage, append([]string{"demo"}, args...)...)
		require.Contains(t, stderr, want)
	}
}

// All scenes run on servers inside the process, too.
func TestAllOfTheDemo(t *testing.T) {
	t.Parallel()
	stdout, stderr := exits(t, 0, "demo", "--all")
	require.Empty(t, stderr)
	requireNarrow(t, stdout)
	require.Regexp(t, `\nA picture of them: --html FILE\n$`, stdout)
	require.FileExists(t, "../../examples/tasks/cron/main.go", "the demo names it")
	stdout = regexp.MustCompile(`\n {12,}`).ReplaceAllString(stdout, " ") // what was wrapped
	for _, line := range []string{
		`^3\. lock: `,
		`s  (anna|ben|cleo)/\d +holds it; waiting: (\S+/\d ?)+$`,
		`s  anna +dies`,
		`s  ben +holds it, \d.* after the crash$`,
		`s  anna +is told in time; its context ends: redlatch: lock "[^"]+" lost: expired: no answer from Redis for`,
		`s  ben +holds it, \S+ after anna's context ended$`,
		`s  ben +turn 1 of 3: waited \S+; \d+ holds so far$`,
		`s  all +\d+ holds in all, but Redis saw only \d+ holders: \d+ were passed on without it$`,
		`^  ok  acquisitions: 135$`,
		`^  ok  overlaps: 0$`,
		`^  ok  lost updates: 0$`,
		`^  ok  time from the crash to the next holder: \S+ \(wanted: at most 4s\)$`,
		`^  ok  why the hold was lost: expired$`,
		`^  ok  from the end of anna's context to ben's hold: \S+ \(wanted: more than 0s\)$`,
		`s  all +served:  cleo/1 ben/1 anna/1 cleo/2 ben/2 anna/2 anna$`,
		`^  ok  served in the order of arrival: yes$`,
		`s  anna +resumes and writes; the error is: token 4 is older than 5$`,
		`^  ok  tokens: \[1 2 3 4 5\] \(wanted: increasing\)$`,
		`^  ok  readers at once: 3$`,
		`^  ok  others can read after the downgrade: yes$`,
		`^  ok  acquisitions of both: 30$`,
		`^  ok  a refused attempt keeps no member: yes$`,
		`s  anna +holds it on all 3 servers, with a TTL of 800ms$`,
		`^  ok  one server cut off: valid beyond its TTL: yes$`,
		`^  ok  acquisitions: 48$`,
		`^  ok  time from the crash to the next holder: \S+ \(wanted: at most 3\.5s\)$`,
		`^  ok  waiters that continued too early: 0$`,
		`^  ok  locks used by all customers: 4$`,
		`^All \d+ checks passed, in `,
	} {
		require.Regexp(t, `(?m)`+line, stdout)
	}
	require.NotContains(t, stdout, "only one server")
}

// The red scene needs three servers. If there is only one, the demo says so.
func TestRedSceneOnOneServer(t *testing.T) {
	redistest.Alone(t)
	s := locktest.NewServer(t)
	stdout, _ := exits(t, 0, "demo", "--redis", "redis://"+s.Addr(), "--only", "red")
	text := strings.Join(strings.Fields(stdout), " ") // without the ends of lines
	require.Contains(t, text, "only one server: three key names replace three servers")
}

func TestInterruptedDemoFails(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code, _, stderr := redlatch(ctx, "demo")
	require.Equal(t, exitFailed, code)
	require.Equal(t, "redlatch: interrupted in scene cron\n", stderr)
}
