package watch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

func TestMain(m *testing.M) {
	redis.SetLogger(discard{}) // as the command does
	if addr := os.Getenv(childEnv); addr != "" {
		os.Exit(child(addr))
	}
	os.Exit(redistest.Main(m))
}

type discard struct{}

func (discard) Printf(context.Context, string, ...any) {}

// childEnv makes the test binary run the view on the server at that address.
const childEnv = "REDLATCH_WATCH_CHILD"

// panics is an address on which the view panics.
const panics = "panics"

func child(addr string) int {
	var rdb redis.UniversalClient = redis.NewClient(options(addr))
	if addr == panics {
		rdb = (*redis.ClusterClient)(nil)
	}
	err := Run(context.Background(), Config{
		Redis: rdb, Pattern: "*", Where: func() string { return addr }, Timeout: time.Second, In: os.Stdin, Out: os.Stdout,
		Note: func(_, text string) { fmt.Fprintln(os.Stderr, text) },
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

const uuid = "0123abcd-4567-89ab-cdef-0123456789ab"

func plainLock(name string, ttl time.Duration, ids ...string) Lock {
	l := Lock{Name: name, Kind: "lock", TTL: TTL(ttl)}
	for _, id := range ids {
		l.Holders = append(l.Holders, Holder{ID: id, Count: 1, TTL: l.TTL})
	}
	return l
}

func snapshot(at time.Time, locks ...Lock) *Snapshot {
	return &Snapshot{At: at, Held: locks, Keys: int64(len(locks)), Visited: 1, Whole: true}
}

func fenced(token int64, id string) Lock {
	l := plainLock("f", 30*time.Second, id)
	l.Kind, l.Token = "fenced", token
	return l
}

// A look begins each second, and never right after one that took long: the rates would come from
// almost no time.
func TestLooksKeepTheirDistance(t *testing.T) {
	for took, distance := range map[time.Duration]time.Duration{
		0:                      time.Second,
		400 * time.Millisecond: time.Second,
		990 * time.Millisecond: 1590 * time.Millisecond,
		3 * time.Second:        3600 * time.Millisecond,
	} {
		redistest.RunBubble(t, took.String(), func(t *testing.T) {
			results := make(chan result)
			look := func(context.Context) (*Snapshot, error) {
				time.Sleep(took)
				return &Snapshot{}, nil
			}
			go follow(t.Context(), look, results)
			before := <-results
			for range 3 {
				now := <-results
				require.Equal(t, distance, now.at.Sub(before.at))
				before = now
			}
		})
	}
}

func TestRatesComeFromSuccessiveSnapshots(t *testing.T) {
	partial := snapshot(noon)
	partial.Whole = false
	rest := plainLock("a", 800*time.Millisecond, "1")
	rest.Holders[0].kept = true
	for name, tt := range map[string]struct {
		before, after  *Snapshot
		acquired, lost int
	}{
		"nothing changed": {
			snapshot(noon, plainLock("a", 30*time.Second, "1")), snapshot(noon, plainLock("a", 29*time.Second, "1")), 0, 0,
		},
		"a new name":                    {snapshot(noon), snapshot(noon, plainLock("a", 30*time.Second, "1")), 1, 0},
		"found late, maybe held before": {partial, snapshot(noon, plainLock("a", 30*time.Second, "1")), 0, 0},
		"another holder": {
			snapshot(noon, plainLock("a", 30*time.Second, "1")), snapshot(noon, plainLock("a", 30*time.Second, "2")), 1, 0,
		},
		"two more readers": {
			snapshot(noon, plainLock("a", 30*time.Second, "1")),
			snapshot(noon, plainLock("a", 30*time.Second, "1", "2", "3")), 2, 0,
		},
		"released":        {snapshot(noon, plainLock("a", 25*time.Second, "1")), snapshot(noon), 0, 0},
		"its TTL ran out": {snapshot(noon, plainLock("a", 800*time.Millisecond, "1")), snapshot(noon), 0, 1},
		"replaced after that": {
			snapshot(noon, plainLock("a", 800*time.Millisecond, "1")), snapshot(noon, plainLock("a", 30*time.Second, "2")), 1, 1,
		},
		"a minimum hold is over":      {snapshot(noon, rest), snapshot(noon), 0, 0},
		"no expiry":                   {snapshot(noon, plainLock("a", -1, "1")), snapshot(noon), 0, 0},
		"tokens count what is unseen": {snapshot(noon, fenced(5, "1")), snapshot(noon, fenced(25, "2")), 20, 0},
	} {
		t.Run(name, func(t *testing.T) {
			tt.after.At = tt.before.At.Add(time.Second)
			acquired, lost := changes(tt.before, tt.after)
			require.Equal(t, []int{tt.acquired, tt.lost}, []int{acquired, lost})
		})
	}
}

func TestKeysOfATerminal(t *testing.T) {
	for in, want := range map[string][]key{
		"q":                {'q'},
		"\x1b[A\x1b[B":     {keyUp, keyDown},
		"\x1bOA":           {keyUp},
		"\x1b[5~\x1b[6~":   {keyPageUp, keyPageDown},
		"/é\x7f\r":         {'/', 'é', keyBackspace, keyEnter},
		"\x1b":             {keyEsc},
		"\x1bq":            {keyEsc, 'q'},
		"\x03":             {keyInterrupt},
		"\x1b[200~x":       {keyUnknown, 'x'},
		"\x1b[1;5A":        {keyUnknown},
		"\xff\x00":         {keyUnknown, keyUnknown},
		"\x1b[":            {keyUnknown},
		"\x1b[A\x1b[4~s\f": {keyUp, keyEnd, 's', keyRedraw},
	} {
		keys, rest := decode([]byte(in), true)
		require.Equal(t, want, keys, "%q", in)
		require.Empty(t, rest, "%q", in)
		// However the bytes are split, the keys are the same.
		for cut := range len(in) {
			first, rest := decode([]byte(in[:cut]), false)
			second, _ := decode(append(rest, in[cut:]...), true)
			require.Equal(t, want, append(first, second...), "%q cut at %d", in, cut)
		}
	}
}

func TestNamesCannotControlTheTerminal(t *testing.T) {
	require.Equal(t, "a?[2Jb???", printable("a\x1b[2Jb\n\x9b\xff"))
	m := &model{where: "x\x1b]0;t\a", pattern: "*"}
	m.apply(snapshot(noon, plainLock("evil\x1b[2J", time.Second, "id\x1b[A")))
	for _, inspect := range []string{"", "evil\x1b[2J"} {
		m.inspect = inspect
		for _, l := range render(m, 80, 10, noon) {
			require.NotContains(t, l.text, "\x1b")
		}
	}
}

func TestFitCountsColumns(t *testing.T) {
	for _, tt := range []struct {
		in   string
		n    int
		want string
	}{
		{"abc", 5, "abc  "}, {"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"abc", 1, "…"}, {"abc", 0, ""},
		{"注文注文", 5, "注文…"}, {"注文注文", 4, "注… "}, {"注文", 4, "注文"},
		{"e\u0301e", 2, "e\u0301e"},
	} {
		require.Equal(t, tt.want, fit(tt.in, tt.n), "%q in %d", tt.in, tt.n)
	}
}

func TestDurationsAreShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0.0s", 9_990 * time.Millisecond: "9.9s", 29_999 * time.Millisecond: "29s", 100 * time.Second: "1m40s",
		59*time.Minute + 59*time.Second: "59m59s", 90 * time.Minute: "1h30m", 23*time.Hour + 59*time.Minute: "23h59m",
		72 * time.Hour: "3d", 100 * 365 * 24 * time.Hour: "years",
	} {
		require.Equal(t, want, short(d))
		require.LessOrEqual(t, len(short(d)), 6)
	}
	require.Equal(t, "1,234,567", thousands(1234567))
	require.Equal(t, "100", thousands(100))
	require.Equal(t, "1,235/s", rate(1234.6))
}

// example is a model with three locks, one second after its first snapshot.
func example() *model {
	m := &model{where: "localhost:6379", pattern: "*"}
	orders := plainLock("orders:42", 29_500*time.Millisecond, uuid+":7")
	orders.Holders[0].Client, orders.Waiting = "web-1:4711", 3
	jobs := plainLock("jobs", 4200*time.Millisecond, uuid+":9")
	jobs.Kind, jobs.Waiting, jobs.Waiters = "fair", 2, []string{"waiter:1", "waiter:2"}
	report := plainLock("report", 12*time.Second, uuid+":1", uuid+":2", uuid+":3")
	report.Kind, report.Holders[0].Client = "read", "batch:1"
	m.apply(snapshot(noon.Add(-time.Second), orders, report))
	m.apply(snapshot(noon, jobs, orders, report))
	return m
}

// text returns the lines without the spaces at their ends. Each must be as wide as the screen.
func text(t *testing.T, lines []line, columns int) string {
	t.Helper()
	var b strings.Builder
	for _, l := range lines {
		n := 0
		for _, r := range l.text {
			n += width(r)
		}
		require.Equal(t, columns, n, "%q", l.text)
		b.WriteString(strings.TrimRight(l.text, " ") + "\n")
	}
	return b.String()
}

func TestViewOf80Columns(t *testing.T) {
	require.Equal(t, `
redlatch watch * on localhost:6379                                      12:00:00
held 3   waiting 5   acquired >= 1.0/s   lost 0.0/s

NAME                       KIND       TTL   HELD  COUNT   WAIT  HOLDER
jobs                       fair      4.2s   0.0s      1      2  0123abcd-4567-8…
orders:42                  lock       29s  >1.0s      1      3  web-1:4711
report                     read       12s  >1.0s      3      -  batch:1 +2

q quit  / filter  s sort: name  enter inspect                           1-3 of 3
`, "\n"+text(t, render(example(), 80, 9, noon), 80))
}

func TestViewOf160Columns(t *testing.T) {
	want, err := os.ReadFile("testdata/160columns.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), text(t, render(example(), 160, 9, noon), 160))
}

func TestViewWithoutLocks(t *testing.T) {
	m := &model{where: "localhost:6379", pattern: "orders:*"}
	require.Equal(t, `
redlatch watch orders:* on localhost:6379                               12:00:00
Waiting for Redis

NAME                       KIND       TTL   HELD  COUNT   WAIT  HOLDER


q quit  / filter  s sort: name  enter inspect
`, "\n"+text(t, render(m, 80, 7, noon), 80))
	m.apply(snapshot(noon))
	require.Equal(t, `
redlatch watch orders:* on localhost:6379                               12:00:00
held 0   waiting 0   acquired >= -   lost -

NAME                       KIND       TTL   HELD  COUNT   WAIT  HOLDER

No lock is held.
q quit  / filter  s sort: name  enter inspect                           0-0 of 0
`, "\n"+text(t, render(m, 80, 7, noon), 80))
}

func TestInspectedName(t *testing.T) {
	m := example()
	m.inspect = "jobs"
	require.Equal(t, `
redlatch watch * on localhost:6379                                      12:00:00
held 3   waiting 5   acquired >= 1.0/s   lost 0.0/s

jobs

kind fair   ttl 4.2s   waiting 2

HOLDER       ID                                              COUNT    TTL   HELD
(unknown)    0123abcd-4567-89ab-cdef-0123456789ab:9              1   4.2s   0.0s

WAITERS, the next one first
   1  waiter:1
   2  waiter:2
esc back  arrows scroll  q quit
`, "\n"+text(t, render(m, 80, 14, noon), 80))
	m.apply(snapshot(noon.Add(time.Second)))
	require.Contains(t, text(t, render(m, 80, 14, noon), 80), "Nobody holds it now.")
}

func TestViewSaysWhatItLacks(t *testing.T) {
	for want, change := range map[string]func(*model){
		"No answer from Redis, trying again; last answer 2.0s ago: dial tcp: refused": func(m *model) {
			m.fail(errors.New("dial\n tcp: refused"), noon)
		},
		"Searching 4,000,000 keys: 25% of this pass; locks not found yet are missing": func(m *model) {
			m.snap.Visited, m.snap.Keys = 0.25, 4_000_000
		},
		"7 hashes cannot be read: this user lacks the right (NOPERM)": func(m *model) { m.snap.Denied = 7 },
		"held more than 3 ": func(m *model) { m.snap.Cut = true },
	} {
		m := example()
		change(m)
		require.Contains(t, text(t, render(m, 80, 9, noon.Add(2*time.Second)), 80), want)
	}
	require.Contains(t, text(t, render(example(), 80, 9, noon.Add(4*time.Second)), 80), "No answer from Redis for 4.0s")
	m := &model{}
	m.apply(&Snapshot{At: noon, Keys: 4_000_000, Visited: 0.25})
	require.Contains(t, text(t, render(m, 80, 9, noon), 80), "No lock found yet.")
}

func TestTTLsCountDownBetweenSnapshots(t *testing.T) {
	m := example()
	require.Contains(t, text(t, render(m, 80, 9, noon.Add(1200*time.Millisecond)), 80), "fair      3.0s   1.2s")
	require.Contains(t, text(t, render(m, 80, 9, noon.Add(time.Minute)), 80), "fair      0.0s")
}

// No size makes render panic, or return lines of another width.
func TestAnySizeOfTheTerminal(t *testing.T) {
	for columns := range 45 {
		for rows := range 12 {
			for _, inspect := range []string{"", "jobs", "gone"} {
				m := example()
				m.inspect = inspect
				lines := render(m, columns*4, rows, noon)
				text(t, lines, columns*4)
				require.LessOrEqual(t, len(lines), rows)
			}
		}
	}
}

// many is a model with n locks.
func many(n int) *model {
	m := &model{pattern: "*"}
	locks := make([]Lock, n)
	for i := range locks {
		locks[i] = plainLock(fmt.Sprintf("lock-%04d", i), time.Duration(n-i)*time.Second, fmt.Sprint(i))
	}
	m.apply(snapshot(noon, locks...))
	return m
}

func TestMovingThroughManyLocks(t *testing.T) {
	m := many(2000)
	first, at := "", ""
	show := func(keys ...key) {
		t.Helper()
		for _, k := range keys {
			require.False(t, m.press(k))
		}
		lines := render(m, 80, 25, noon)
		first, at = "", ""
		if m.inspect == "" {
			first = strings.Fields(lines[4].text)[0]
		}
		for _, l := range lines {
			if l.style == reverse {
				at = strings.Fields(l.text)[0]
			}
		}
	}
	show()
	require.Equal(t, []string{"lock-0000", "lock-0000"}, []string{first, at})
	show(keyUp)
	require.Equal(t, []string{"lock-0000", "lock-0000"}, []string{first, at})
	show(keyDown, keyDown)
	require.Equal(t, []string{"lock-0000", "lock-0002"}, []string{first, at})
	show(keyPageDown)
	require.Equal(t, "lock-0023", at)
	show(keyEnd)
	require.Equal(t, []string{"lock-1980", "lock-1999"}, []string{first, at})
	show(keyDown, keyPageUp, keyHome)
	require.Equal(t, []string{"lock-0000", "lock-0000"}, []string{first, at})
	show('s') // by TTL: the selected lock stays selected
	require.Equal(t, "lock-0000", at)
	show(keyHome)
	require.Equal(t, []string{"lock-1999", "lock-1999"}, []string{first, at})
	show('/', '1', '9', '9', keyEnter)
	require.Contains(t, text(t, render(m, 80, 25, noon), 80), "filter: 199")
	require.Len(t, m.rows(), 12) // 0199, 1199, 1990 to 1999
	show(keyEnter)
	require.Empty(t, at)
	require.Equal(t, "lock-1999", m.inspect)
	show(keyEsc, keyEsc)
	require.Len(t, m.rows(), 2000)
	require.True(t, m.press('q'))
	m.typing = true
	require.False(t, m.press('q'), "typed into the filter")
	require.True(t, m.press(keyInterrupt))
}

// When the selected lock is released, the next one is selected.
func TestSelectionSurvivesARelease(t *testing.T) {
	m := many(10)
	for range 4 {
		m.press(keyDown)
	}
	require.Equal(t, "lock-0004", m.selected)
	left := append(append([]Lock{}, m.snap.Held[:4]...), m.snap.Held[5:]...)
	m.apply(snapshot(noon.Add(time.Second), left...))
	rows := m.rows()
	require.Equal(t, "lock-0005", rows[m.cursor(rows)].Name)
}

func TestOnlyChangedLinesAreWritten(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out}
	m := many(2000)
	draw := func(now time.Time) string {
		out.Reset()
		require.NoError(t, s.draw(render(m, 80, 25, now), 80))
		return out.String()
	}
	require.Contains(t, draw(noon), eraseScreen)
	require.Empty(t, draw(noon), "nothing changed")
	m.press(keyDown)
	moved := draw(noon)
	require.Equal(t, 2, strings.Count(moved, "lock-"), "the rows that lost and got the selection: %q", moved)
	require.NotContains(t, moved, "\x1b[2J")
	s.forget()
	require.Contains(t, draw(noon), eraseScreen)
}

func TestLinesAreJSON(t *testing.T) {
	before := snapshot(noon, plainLock("a", 500*time.Millisecond, "1"))
	after := snapshot(noon.Add(2*time.Second), plainLock("b", -1, "2"), plainLock("c", 1500*time.Microsecond, "3"))
	r := record{At: after.At, Held: []Lock{}}
	r.fill(before, after)
	b, err := json.Marshal(r)
	require.NoError(t, err)
	require.JSONEq(t, `{"at":"2026-11-22T12:00:02Z","held":[
		{"name":"c","kind":"lock","ttl_ms":1,"holders":[{"id":"3","client":"","count":1,"ttl_ms":1}]},
		{"name":"b","kind":"lock","ttl_ms":-1,"holders":[{"id":"2","client":"","count":1,"ttl_ms":-1}]}
	],"waiting":0,"acquired_s":1,"lost_s":0.5}`, string(b))
}

func options(addr string) *redis.Options {
	return &redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true}
}

// NO_COLOR takes the colours away, and nothing else. The FAQ of https://no-color.org says that it
// does not disable bold, underline and italic, and names the reverse attribute of a status bar as
// one that users may want beside it. This view fills the screen: without reverse nobody could see
// which row is selected.
func TestWithoutColourTheScreenKeepsBoldAndReverse(t *testing.T) {
	all := []line{{"title", bold}, {"keys", dim}, {"selected", reverse}, {"lost", alarm}, {"row", plain}}
	for _, tt := range []struct {
		colour bool
		alarm  string
	}{{true, "\x1b[1;31mlost"}, {false, "\x1b[1mlost"}} {
		var out bytes.Buffer
		require.NoError(t, (&screen{out: &out, color: tt.colour}).draw(all, 10))
		for _, want := range []string{"\x1b[1mtitle", "\x1b[2mkeys", "\x1b[7mselected", tt.alarm} {
			require.Contains(t, out.String(), want)
		}
		require.Equal(t, tt.colour, regexp.MustCompile(`\x1b\[[\d;]*\b[349]\d`).MatchString(out.String()), "%q", out.String())
	}
}
