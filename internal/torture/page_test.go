package torture

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bar is a bar of a page, as a browser would find it.
func bar(class string, left, width float64, text string) string {
	return fmt.Sprintf(`<i class="%s" style="left:%v%%;width:%v%%" title="%s"></i>`, class, left, width, text)
}

// A page shows who held, who waited, and what was broken, where it was. Its HTML is well-formed,
// whatever stands in an error.
func TestPage(t *testing.T) {
	h := newTestHistory(func(h *testHistory) {
		lost := h.hold(0, 3_000, "a1")
		h.nested(lost, 4_000)
		h.waits(1, h.holdOf("lock", 1, 4_500, 6_000, "b1"), 4_510)
		h.force(2, 5_400, 5_700)
		h.lostBy(0, lost, 5_700, "forced", 0)
		detached := h.hold(2, 21_000, "c1")
		h.do(2, 21_100, 21_100, record{Do: opDetach, Root: detached}, record{Outcome: outcomeOK})
		h.do(1, 21_300, 21_600, record{Do: opReleaseID, Target: "c1"}, record{Outcome: outcomeOK})
		h.fault("black-hole", 0, 15_000, 18_000)
		h.fault(faultStall, -1, 27_000, 30_000)
		h.failing(15_000, 18_000, "<script>&")
	})
	r := &Result{Topology: Single, Rounds: 2, Elapsed: time.Minute, Violations: []Violation{
		{Check: checkOrder, Primitive: "lock", Name: "name", Detail: "a <b> & c", Seed: 7},
	}}
	calm := newTestHistory(func(h *testHistory) { h.quick(0, 1_000, "a1") })
	r.keepPicture(h.picture(7, theme{&fault{name: "black-hole"}, &fault{name: "force"}}, paceMixed, r.Violations))
	r.keepPicture(calm.picture(3, nil, paceCalm, nil))
	var page bytes.Buffer
	require.NoError(t, r.Page(&page, Made{Version: "v1.2.3", At: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}))
	requireWellFormed(t, page.Bytes())
	html := page.String()
	for _, want := range []string{
		bar("hold lost", 10, 9, "hold, 3.000 s to 5.700 s, id a1, lost: forced"),
		bar("nested", 13.33, 9.67, "nested, 4.000 s to 6.900 s, id a1"),
		bar("wait", 15, 5, "acquire by goroutine 0, 4.500 s to 6.000 s: ok"),
		bar("hold", 20, 9.89, "hold, 6.000 s to 8.968 s, id b1"),
		bar("takeover", 18, 1, "force by goroutine 0, 5.400 s to 5.700 s: ok"),
		bar("hold", 70, 2, "hold, 21.000 s to 21.600 s, id c1"),
		bar("takeover", 71, 1, "release-id by goroutine 0, 21.300 s to 21.600 s: ok, of c1"),
		bar("refused", 50, 10, "acquire by goroutine 0, 15.000 s to 18.000 s: failed, &lt;script&gt;&amp;"),
		bar("fault", 50, 10, "black-hole, client 0, 15.000 s to 18.000 s"),
		bar("shade", 50, 10, "black-hole"),
		bar("stall", 90, 10, "server stall, 27.000 s to 30.000 s"),
		`<details id="round-7" open="" style="--second:3.33%">`,
		`<details id="round-3" style="--second:3.33%">`,
		"<b>Seed 7</b>: black-hole and force",
		"<b>Seed 3</b>: no faults, calm",
		"a &lt;b&gt; &amp; c",
		`<p class="verdict bad">Failed: a promise was broken. Violations: 1.</p>`,
		`redlatch v1.2.3, 2026-11-22 12:00:00 UTC</p>`,
	} {
		require.Contains(t, html, want)
	}
	require.Less(t, strings.Index(html, `id="round-3"`), strings.Index(html, `id="round-7"`))
	require.NotContains(t, html, "http") // it needs no network
}

// The head of the page says what came out.
func TestVerdicts(t *testing.T) {
	some := map[string]int{"lock": 3}
	for want, r := range map[string]*Result{
		"Failed: a promise was broken. Violations: 2.": {
			Operations: some, Violations: make([]Violation, 2), Undecided: []string{"a"},
		},
		"Passed: no promise was broken.":              {Operations: some},
		"Nothing was tested: there was no operation.": {},
		"Passed: no promise was broken, but the history of some names could not be decided: 1.": {
			Operations: some, Undecided: []string{"a"},
		},
	} {
		require.Equal(t, want, r.Verdict())
	}
	var page bytes.Buffer
	require.NoError(t, (&Result{Operations: some}).Page(&page, Made{}))
	require.Contains(t, page.String(), `<p class="verdict good">Passed`)
	require.NotContains(t, page.String(), "redlatch v", "it is not known which program made it")
}

func requireWellFormed(t *testing.T, page []byte) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(page))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
	}
}

// A long run keeps the pictures of the rounds with violations, and of the latest others.
func TestPicturesOfALongRun(t *testing.T) {
	var r Result
	for seed := range uint64(2 * pageRounds) {
		p := &pageRound{Seed: seed}
		if seed == 5 {
			p.Violations = 1
		}
		r.keepPicture(p)
	}
	require.Len(t, r.pictures, pageRounds+1)
	require.EqualValues(t, 5, r.pictures[0].Seed)
	require.EqualValues(t, pageRounds, r.pictures[1].Seed)
}

// Bars that overlap are in different tracks.
func TestTracks(t *testing.T) {
	a, b, c := pageBar{Left: 1, Width: 4}, pageBar{Left: 3, Width: 4}, pageBar{Left: 5, Width: 1}
	require.Equal(t, [][]pageBar{{a, c}, {b}}, tracks([]pageBar{c, a, b}))
}
