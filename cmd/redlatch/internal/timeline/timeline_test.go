package timeline

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// at is a line of an event, some time after noon.
func at(d time.Duration, process, event, id, more string) string {
	return fmt.Sprintf(`{"at":%q,"process":%q,"event":%q,"kind":"lock","name":"orders","id":%q%s}`,
		time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC).Add(d).Format(time.RFC3339Nano), process, event, id, more) + "\n"
}

const second = time.Second

// incident is what two processes did: a has the lock for 4 s, and b waits for it for 3 s and loses
// it.
var incident = map[string]string{
	"a": at(0, "a", opened, "", "") + at(0, "a", acquired, "a:1", `,"outcome":"acquired"`) +
		at(4*second, "a", released, "a:1", `,"held_ms":4000`) +
		at(8*second, "a", notAcquired, "", `,"waited_ms":2000,"outcome":"busy","err":"not acquired"`),
	"b": at(second, "b", wait, "b:1", "") + at(4*second+2*time.Millisecond, "b", acquired, "b:1", `,"waited_ms":3002`) +
		at(5*second, "b", nested, "b:1", "") + at(6*second, "b", released, "b:1", `,"held_ms":1000`) +
		at(9*second, "b", lost, "b:1", `,"held_ms":5000,"reason":"paused"`) + at(9*second, "b", wait, "b:2", "") +
		at(10*second, "b", "link-lost", "", ""),
}

func read(t *testing.T, files ...string) *Log {
	t.Helper()
	var l Log
	for i, text := range files {
		require.NoError(t, l.Read(fmt.Sprint("file", i), strings.NewReader(text)))
	}
	return &l
}

func draw(t *testing.T, o Options, files ...string) *Timeline {
	t.Helper()
	drawn, err := read(t, files...).Draw(o)
	require.NoError(t, err)
	return drawn
}

// spansOf writes the spans of a timeline as text, in seconds since noon.
func spansOf(d *Timeline) (all []string) {
	for _, n := range d.Names {
		for _, r := range n.Rows {
			for _, s := range r.Spans {
				since := func(at time.Time) float64 { return at.Sub(at.Truncate(time.Hour)).Seconds() }
				all = append(all, strings.TrimSpace(
					fmt.Sprintf("%s %s %.3g-%.3g %s %s", r.Process, s.What, since(s.From), since(s.To), s.End, s.Why)))
			}
		}
	}
	return all
}

func TestSpansOfEvents(t *testing.T) {
	for name, tt := range map[string]struct {
		files   []string
		options Options
		want    []string
	}{
		"an incident": {[]string{incident["a"], incident["b"]}, Options{}, []string{
			"a hold 0-4 released", "a wait 6-8 busy not acquired",
			"b wait 1-4 acquired", "b hold 4-9 lost paused", "b wait 9-10 unknown",
		}},
		"a file that stands there twice": {[]string{incident["a"], incident["a"]}, Options{}, []string{
			"a hold 0-4 released", "a wait 6-8 busy not acquired",
		}},
		"the last seconds": {[]string{incident["a"], incident["b"]}, Options{Last: 3 * second}, []string{
			"a wait 6-8 busy not acquired", "b hold 4-9 lost paused", "b wait 9-10 unknown",
		}},
		"a try": {
			[]string{at(second, "a", notAcquired, "", `,"outcome":"busy"`)}, Options{}, []string{"a try 1-1 busy"},
		},
		"another name": {[]string{incident["a"]}, Options{Pattern: "x*"}, nil},
		"a shifted clock": {[]string{incident["a"]}, Options{Shifts: map[string]time.Duration{"a": second}}, []string{
			"a hold 1-5 released", "a wait 7-9 busy not acquired",
		}},
		"acquired before the file begins": {[]string{at(4*second, "a", released, "a:1", `,"held_ms":3000`)}, Options{},
			[]string{"a hold 1-4 released"}},
		"the process has ended": {[]string{at(0, "a", acquired, "a:1", "") + at(3*second, "a", "renew-failed", "a:1", "")},
			Options{}, []string{"a hold 0-3 unknown"}},
		"a nested hold is lost with the outer one": {[]string{at(0, "a", acquired, "a:1", "") +
			at(second, "a", nested, "a:1", "") + at(2*second, "a", lost, "a:1", "") +
			at(2*second, "a", lost, "a:1", `,"err":"x"`) +
			at(3*second, "a", acquired, "a:1", "") + at(4*second, "a", "detached", "a:1", "")}, Options{},
			[]string{"a hold 0-2 lost", "a hold 3-4 detached"}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, spansOf(draw(t, tt.options, tt.files...))) })
	}
	_, err := read(t, incident["a"]).Draw(Options{Pattern: "["})
	require.ErrorContains(t, err, "pattern")
	_, err = read(t, incident["a"]).Draw(Options{Shifts: map[string]time.Duration{"c": 1}})
	require.ErrorContains(t, err, `no event is of the process "c"`)
}

func TestBrokenLines(t *testing.T) {
	good := at(0, "a", acquired, "a:1", "")
	for name, tt := range map[string]struct {
		text   string
		events int
		torn   int
		broken []string
	}{
		"none":                          {good + "\n" + good, 2, 0, nil},
		"the last has no end":           {good + good[:20], 1, 1, nil},
		"complete, but for its \\n":     {strings.TrimSpace(good), 1, 0, nil},
		"the process was started again": {good + good[:20] + "\n" + at(0, "a", opened, "", "") + good, 3, 1, nil},
		"no JSON":                       {good + "hello\n" + good, 2, 0, []string{"file0:2: no event: invalid character"}},
		"the last, with an end":         {good + "hello\n", 1, 0, []string{"file0:2: no event"}},
		"no time": {
			`{"process":"a","event":"lost"}` + "\n" + good, 1, 0, []string{`file0:1: no event: it has no`},
		},
		"no process": {strings.Replace(good, `"a"`, `""`, 1) + good, 1, 0, []string{`no "process"`}},
		"a bad name": {
			strings.Replace(good, `"id"`, `"name_base64":"!","id"`, 1), 0, 0, []string{"name_base64"},
		},
		"too long": {
			strings.Repeat("x", 3*maxLine) + "\n" + good, 1, 0, []string{"file0:1: no event: it is long"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := read(t, tt.text)
			require.Len(t, l.Events, tt.events)
			require.Equal(t, tt.torn, l.Torn)
			require.Len(t, l.Broken, len(tt.broken))
			for i, want := range tt.broken {
				require.ErrorContains(t, l.Broken[i], want)
			}
		})
	}
}

func TestNumbersOfAName(t *testing.T) {
	n := draw(t, Options{}, incident["a"], incident["b"]).Names[0]
	require.Equal(t, "holds: 2; waits: 3, up to 3s; hand-overs: 1, median 2ms; lost: 1", n.Summary())
	require.Equal(t, []int{2, 3, 1, 1}, []int{n.Holds, n.Waits, n.Refused, n.Lost})
	require.Equal(t, []time.Duration{2 * time.Millisecond}, n.HandOvers)
}

// A hand-over goes from a release to a waiter of another process, who waited by then.
func TestHandOvers(t *testing.T) {
	free := at(0, "a", acquired, "a:1", "") + at(second, "a", released, "a:1", "")
	waits := func(process string) string { return at(2*second, process, acquired, "2", `,"waited_ms":%d`) }
	for name, tt := range map[string]struct {
		file string
		want int
	}{
		"a waiter": {free + fmt.Sprintf(waits("b"), 1500), 1},
		"a waiter that tells it before the release returns": {
			at(0, "a", acquired, "a:1", "") + at(2*second+minSkew, "a", released, "a:1", "") + fmt.Sprintf(waits("b"), 1500), 1,
		},
		"a release that comes later": {
			at(0, "a", acquired, "a:1", "") + at(3*second, "a", released, "a:1", "") + fmt.Sprintf(waits("b"), 1500), 0,
		},
		"one of the same process":       {free + fmt.Sprintf(waits("a"), 1500), 0},
		"one who came after":            {free + fmt.Sprintf(waits("b"), 500), 0},
		"nobody waited":                 {free + at(2*second, "b", acquired, "2", ""), 0},
		"a waiter in vain":              {free + at(2*second, "b", notAcquired, "", `,"waited_ms":1500`), 0},
		"a hold that was lost by force": {strings.ReplaceAll(free, released, lost) + fmt.Sprintf(waits("b"), 1500), 0},
	} {
		t.Run(name, func(t *testing.T) { require.Len(t, draw(t, Options{}, tt.file).Names[0].HandOvers, tt.want) })
	}
}

// Two holders at once are two clocks. A hold that was lost, or may have been, says nothing.
func TestClocksThatDiffer(t *testing.T) {
	a := at(0, "a", acquired, "a:1", "") + at(4*second, "a", released, "a:1", "")
	b := at(2*second, "b", acquired, "b:1", "") + at(5*second, "b", released, "b:1", "")
	notes := draw(t, Options{}, a, b).Notes
	require.Equal(t, []string{
		`b seems to have "orders" for 2s before a released it: their clocks differ. Try --shift b=2s`,
	}, notes)
	require.Empty(t, draw(t, Options{Shifts: map[string]time.Duration{"b": 2 * second}}, a, b).Notes)
	require.Empty(t, draw(t, Options{}, strings.ReplaceAll(a, "released", "lost"), b).Notes)
	readers := strings.NewReplacer(`"lock"`, `"reader"`)
	require.Empty(t, draw(t, Options{}, readers.Replace(a), readers.Replace(b)).Notes)
	near := at(4*second-minSkew, "b", acquired, "b:1", "") + at(5*second, "b", released, "b:1", "")
	require.Empty(t, draw(t, Options{}, a, near).Notes, "a release takes effect before its call returns")
}

func TestText(t *testing.T) {
	missing := at(10*second, "b", dropped, "", `,"count":7`)
	var out strings.Builder
	require.NoError(t, draw(t, Options{}, incident["a"], incident["b"]+missing).Text(&out))
	require.Equal(t, `2026-11-22 12:00:00.000 to 12:00:10.000 UTC, 10s, processes: 2, names: 1
# holds  . waits  ! lost  x not acquired  ? the events end here

orders (lock)
  holds: 2; waits: 3, up to 3s; hand-overs: 1, median 2ms; lost: 1
                     a #######################           ...........x
                     b      .................#############################!....?
                       |0s           |2.5s         |5s           |7.5s

Losses, and waits without success
12:00:08.000 a: orders gave up after 2s: busy
12:00:09.000 b: orders lost it after 5s: paused

Note: 7 events are missing: a file could not be written fast enough, or not at
  all
`, out.String())
}

// Whatever the names are, the text fits 80 columns and sends no control characters to the terminal,
// and the page is well-formed.
func TestNamesOfOthers(t *testing.T) {
	var files []string
	for i := range 30 {
		for _, process := range []string{"a", strings.Repeat("long", 20)} {
			text := at(time.Duration(i)*second, process, acquired, "1", "") +
				at(time.Duration(i+9)*second, process, lost, "1", fmt.Sprintf(`,"err":%q`, strings.Repeat("word ", 40)))
			name := fmt.Sprintf(`%d \u001b[31m<script>alert(1)</script>&%s`, i, strings.Repeat("x", 100))
			files = append(files, strings.ReplaceAll(text, "orders", name))
		}
	}
	drawn := draw(t, Options{}, files...)
	var text strings.Builder
	require.NoError(t, drawn.Text(&text))
	for line := range strings.Lines(text.String()) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), columns, line)
	}
	require.NotContains(t, text.String(), "\x1b")
	require.Contains(t, text.String(), "and 20 more names")
	require.Contains(t, text.String(), "and 40 more")

	var page bytes.Buffer
	require.NoError(t, Page(&page, "title", drawn.Subtitle(), Part{Title: "<part>", Timeline: drawn}))
	require.NotContains(t, page.String(), "<script")
	require.NotContains(t, page.String(), "http", "it needs no network")
	for d := xml.NewDecoder(&page); ; {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
}

func TestPage(t *testing.T) {
	drawn := draw(t, Options{}, incident["a"], incident["b"])
	var page strings.Builder
	require.NoError(t, Page(&page, "title", drawn.Subtitle(), Part{Timeline: drawn}))
	for _, want := range []string{
		`<i class="hold" style="left:0%;width:39.22%" title="hold, 12:00:00.000 to 12:00:04.000 (4s), released"></i>`,
		`<i class="hold lost" style="left:39.24%;width:49%"`, `<i class="refused" style="left:58.82%;width:19.61%"`,
		`<i class="wait" style="left:9.8%;width:29.43%"`, `<i class="unknown" style="left:88.24%;width:9.8%"`,
		`<span style="left:0%">0s</span><span style="left:19.61%">2s</span>`, `<span style="left:78.43%">8s</span></div>`,
		"lost: paused", "Processes: 2. Names: 1.", "<td>gave up after 2s</td><td>busy</td>",
	} {
		require.Contains(t, page.String(), want)
	}
}

// The axis goes on after the last event, so that a refused try at the end has room.
func TestTheLastTryIsVisible(t *testing.T) {
	drawn := draw(t, Options{}, incident["a"]+at(10*second, "a", notAcquired, "", `,"outcome":"busy"`))
	var page strings.Builder
	require.NoError(t, Page(&page, "title", "", Part{Timeline: drawn}))
	require.Contains(t, page.String(), `<i class="refused" style="left:98.04%;width:0%"`)
}

func TestMarksAreRound(t *testing.T) {
	for whole, want := range map[time.Duration][]string{
		0:                       {"0s"},
		1400 * time.Millisecond: {"0s", "200ms", "400ms", "600ms", "800ms", "1s", "1.2s"},
		9 * second:              {"0s", "1s", "2s", "3s", "4s", "5s", "6s", "7s", "8s"},
		100 * second:            {"0s", "15s", "30s", "45s", "1m", "1m15s", "1m30s"},
		3 * time.Hour:           {"0s", "30m", "1h", "1h30m", "2h", "2h30m"},
		21 * 24 * time.Hour:     {"0s", "72h", "144h", "216h", "288h", "360h", "432h"},
	} {
		var texts []string
		for _, m := range (&Timeline{End: time.Time{}.Add(whole)}).marks() {
			texts = append(texts, m.Text)
		}
		require.Equal(t, want, texts, whole)
	}
}

// A lock may stay taken although nobody holds it: after a release, or a death. A dead process says
// nothing more.
func TestLocksThatStayTaken(t *testing.T) {
	noon := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	l := read(t, incident["a"]+at(second, "b", acquired, "b:1", "")+at(9*second, "b", lost, "b:1", `,"reason":"expired"`))
	l.Events = append(l.Events,
		Event{
			At: noon.Add(4 * second), Process: "a", Event: Kept, Kind: "lock", Name: "orders",
			Stays: noon.Add(5 * second), Err: "kept by WithMinHold",
		},
		Event{At: noon.Add(3 * second), Process: "b", Event: Killed, Stays: noon.Add(9 * second), Err: "left to its lease"})
	drawn, err := l.Draw(Options{})
	require.NoError(t, err)
	require.Equal(t, []string{
		"a hold 0-4 released", "a stay 4-5 kept kept by WithMinHold", "a wait 6-8 busy not acquired",
		"b hold 1-3 killed left to its lease", "b stay 3-9 killed left to its lease",
	}, spansOf(drawn))
	require.Equal(t, "holds: 2; waits: 1, up to 2s", drawn.Names[0].Summary())
	var page strings.Builder
	require.NoError(t, Page(&page, "title", "", Part{Timeline: drawn}))
	for _, want := range []string{
		`<i class="hold killed" style="left:10.89%;width:21.79%"`,
		`title="left to its lease, 12:00:03.000 to 12:00:09.000 (6s)"><span>left to its lease</span></i>`,
		`title="kept by WithMinHold, 12:00:04.000 to 12:00:05.000 (1s)"><span>kept by WithMinHold</span></i>`,
		`taken, though nobody holds it: kept by WithMinHold</span>`,
		`<td>died after it had held it for 2s</td><td>left to its lease</td>`,
	} {
		require.Contains(t, page.String(), want)
	}
	require.NotContains(t, page.String(), "expired")
}

// A row that has more spans than a browser can show says so, where they would be.
func TestRowThatIsCutSaysSo(t *testing.T) {
	var file strings.Builder
	for i := range pageSpans + 3 {
		file.WriteString(at(time.Duration(i)*time.Millisecond, "a", notAcquired, "", `,"outcome":"busy","err":"busy"`))
	}
	var page strings.Builder
	require.NoError(t, Page(&page, "title", "", Part{Timeline: draw(t, Options{}, file.String())}))
	require.Contains(t, page.String(), "<span>not drawn: only the latest 2000 of 2003 are</span>")
	require.Equal(t, pageSpans, strings.Count(page.String(), `<i class="refused" style`))
	page.Reset()
	require.NoError(t, Page(&page, "title", "", Part{Timeline: draw(t, Options{}, incident["a"])}))
	require.NotContains(t, page.String(), "not drawn")
}

func TestJSON(t *testing.T) {
	var out strings.Builder
	require.NoError(t, draw(t, Options{}, incident["a"]).JSON(&out))
	first, _, _ := strings.Cut(out.String(), "\n")
	require.JSONEq(t, `{"name":"orders","kind":"lock","process":"a","what":"hold","id":"a:1",
		"from":"2026-11-22T12:00:00Z","to":"2026-11-22T12:00:04Z","end":"released"}`, first)
}
