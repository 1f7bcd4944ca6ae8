package watch

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/browser"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// shown returns a page that has seen these results.
func shown(results ...result) *Page {
	p := NewPage(Config{Where: func() string { return "here" }})
	for _, r := range results {
		p.took(r)
	}
	return p
}

// served serves a page, and returns its address.
func served(t *testing.T, p *Page) string {
	t.Helper()
	listener, err := Listen(t.Context(), "0")
	require.NoError(t, err)
	require.True(t, listener.Addr().(*net.TCPAddr).IP.IsLoopback())
	server := &http.Server{Handler: p.handler(listener.Addr()), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String()
}

func request(t *testing.T, method, address, path, host string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, nil)
	require.NoError(t, err)
	r.Host = host
	reply, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer reply.Body.Close() //nolint:errcheck // of a test
	body, err := io.ReadAll(reply.Body)
	require.NoError(t, err)
	return reply, string(body)
}

func TestPageAnswersReadersOfThisMachineOnly(t *testing.T) {
	held := snapshot(noon, plainLock("a", 30*time.Second, uuid+":1"))
	address := served(t, shown(result{snap: held}))
	for _, tt := range []struct {
		name, method, path, host string
		want                     int
	}{
		{"the page", http.MethodGet, "/", "", http.StatusOK},
		{"its head", http.MethodHead, "/", "", http.StatusOK},
		{"by the name of this machine", http.MethodGet, "/", "localhost:1", http.StatusOK},
		{"by another address of it", http.MethodGet, "/", "[::1]:80", http.StatusOK},
		{"the locks", http.MethodGet, "/api/locks", "", http.StatusOK},
		{"the state", http.MethodGet, "/api/state", "", http.StatusOK},
		{"another name that leads here", http.MethodGet, "/api/locks", "example.com", http.StatusForbidden},
		{"a change", http.MethodPost, "/", "", http.StatusMethodNotAllowed},
		{"a change of a lock", http.MethodDelete, "/api/locks", "", http.StatusMethodNotAllowed},
		{"anything else", http.MethodGet, "/favicon.ico", "", http.StatusNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reply, _ := request(t, tt.method, address, tt.path, tt.host)
			require.Equal(t, tt.want, reply.StatusCode)
			require.Equal(t, "no-store", reply.Header.Get("Cache-Control"))
		})
	}
}

func TestPageListsLocksAsLs(t *testing.T) {
	held := snapshot(noon, plainLock("later", 30*time.Second, uuid+":1"), plainLock("<sooner>", time.Second, uuid+":2"))
	_, body := request(t, http.MethodGet, served(t, shown(result{snap: held})), "/api/locks", "")
	lines := strings.Split(strings.TrimSpace(body), "\n")
	require.Len(t, lines, 2)
	require.JSONEq(t, `{"name":"<sooner>","kind":"lock","ttl_ms":1000,
		"holders":[{"id":"`+uuid+`:2","client":"","count":1,"ttl_ms":1000}]}`, lines[0])
	require.Contains(t, lines[0], "<sooner>", "as ls writes it")
	require.Contains(t, lines[1], `"later"`)
}

// A page asks for the name that it shows in detail, and each look reads that again. It stops asking
// when it is closed.
func TestPageReadsWhatIsShownInDetail(t *testing.T) {
	page := shown(result{snap: snapshot(noon)})
	address := served(t, page)
	reads := func() []string { return *page.source.detail.Load() }
	for _, name := range []string{"orders%3A%231", "", "b"} {
		reply, _ := request(t, http.MethodGet, address, "/api/state?detail="+name, "")
		require.Equal(t, http.StatusOK, reply.StatusCode)
	}
	require.Equal(t, []string{"b", "orders:#1"}, reads())
	page.looksAt("c", time.Now().Add(detailFor+time.Second))
	require.Equal(t, []string{"c"}, reads())
	for i := range 2 * maxDetail {
		page.looksAt(strconv.Itoa(i), time.Now())
	}
	require.Len(t, reads(), maxDetail)
}

// While Redis does not answer, the page shows what was known, and says since when.
func TestPageSaysThatRedisIsSilent(t *testing.T) {
	held := snapshot(noon, plainLock("a", 30*time.Second, uuid+":1"))
	page := shown(result{snap: held}, result{err: errors.New("gone"), at: noon},
		result{err: errors.New("still gone"), at: noon.Add(time.Second)})
	state := page.state(true, noon)
	require.Len(t, state.Held, 1)
	require.Equal(t, "no answer from Redis: still gone", state.Error)
	require.Equal(t, noon, *state.Since)
	reply, _ := request(t, http.MethodGet, served(t, page), "/api/locks", "")
	require.Equal(t, http.StatusServiceUnavailable, reply.StatusCode)
	page.took(result{snap: held})
	require.Empty(t, page.state(true, noon).Error)
}

// The page's script expects lists, also if nothing is held and nothing was lost.
func TestStateOfThePageHasLists(t *testing.T) {
	text, err := json.Marshal(shown(result{snap: snapshot(noon)}).state(true, noon))
	require.NoError(t, err)
	for _, list := range []string{"held", "spans", "events"} {
		require.Contains(t, string(text), `"`+list+`":[]`)
	}
}

// Names are other people's data.
func TestPageEscapesNames(t *testing.T) {
	const bad = `</script><script>alert(1)</script><!--`
	held := snapshot(noon, plainLock(bad, 30*time.Second, bad))
	var text strings.Builder
	require.NoError(t, shown(result{snap: held}).write(&text, false, noon))
	require.NotContains(t, text.String(), bad)
	require.Equal(t, 2, strings.Count(text.String(), "<script"))
	_, after, _ := strings.Cut(text.String(), `id="state">`)
	inside, _, _ := strings.Cut(after, "</script>")
	var state pageState
	require.NoError(t, json.Unmarshal([]byte(inside), &state))
	require.Equal(t, bad, state.Held[0].Name)
}

func TestHistoryReportsHowHoldsEnd(t *testing.T) {
	partial := snapshot(noon)
	partial.Whole = false
	since := int64(5000)
	told := plainLock("a", 30*time.Second, "1")
	told.Holders[0].Held = &since
	rest := plainLock("b", 800*time.Millisecond, "1")
	rest.Holders[0].kept = true
	for _, tt := range []struct {
		name          string
		before, after *Snapshot
		from          time.Duration // relative to the second look
		maybeBefore   bool
		end           string
		events        int
	}{
		{"acquired between two looks", snapshot(noon), snapshot(noon, plainLock("a", 30*time.Second, "1")), 0, false, "", 0},
		{"held when the page began", snapshot(noon, plainLock("a", 30*time.Second, "1")),
			snapshot(noon, plainLock("a", 29*time.Second, "1")), -time.Second, true, "", 0},
		{"found late", partial, snapshot(noon, plainLock("a", 30*time.Second, "1")), 0, true, "", 0},
		{"its client says since when", snapshot(noon), snapshot(noon, told), -5 * time.Second, false, "", 0},
		{"its client says so later", snapshot(noon, plainLock("a", 30*time.Second, "1")), snapshot(noon, told),
			-5 * time.Second, false, "", 0},
		{"a minimum hold is over", snapshot(noon, rest), snapshot(noon), -time.Second, true, ended, 0},
		{"released", snapshot(noon, plainLock("a", 30*time.Second, "1")), snapshot(noon), -time.Second, true, ended, 0},
		{"its lease ran out", snapshot(noon, plainLock("a", 800*time.Millisecond, "1")), snapshot(noon), -time.Second, true,
			expired, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.after.At = tt.before.At.Add(time.Second)
			var h history
			h.apply(tt.before)
			h.apply(tt.after)
			spans := h.spans()
			require.Len(t, spans, 1)
			require.Equal(t, tt.after.At.Add(tt.from), spans[0].From)
			require.Equal(t, tt.maybeBefore, spans[0].Before)
			require.Equal(t, tt.end, spans[0].End)
			require.Len(t, h.events, tt.events)
			later := snapshot(noon.Add(pageWindow + 2*time.Second))
			h.apply(later)
			h.apply(snapshot(later.At.Add(pageWindow + time.Second)))
			require.Empty(t, h.spans(), "old spans are forgotten")
		})
	}
}

// What looks have seen adds up: a name that comes later, a new holder of a known name, a lock
// without expiry.
func TestHistoryOfSeveralLooks(t *testing.T) {
	named := plainLock("a", -1, "1")
	named.Holders[0].Client = "host"
	both := plainLock("a", -1, "1")
	both.Holders = append(both.Holders, plainLock("a", -1, "2").Holders...)
	var h history
	for i, locks := range [][]Lock{{plainLock("a", -1, "1")}, {named}, {both}, {}} {
		look := snapshot(noon.Add(time.Duration(i)*time.Second), locks...)
		look.Whole = false
		h.apply(look)
	}
	spans := h.spans()
	require.Len(t, spans, 2)
	require.Equal(t, []string{"1", "2"}, []string{spans[0].ID, spans[1].ID}, "the oldest first")
	require.Equal(t, "host", spans[0].Client, "its client says its name later, and then it is known")
	require.True(t, spans[0].Before)
	require.False(t, spans[1].Before, "the look before has seen the name")
	require.Equal(t, ended, spans[0].End, "a lock without expiry does not run out")
}

// The rest of a minimum hold is no hold: it begins when the hold was released.
func TestHistorySeparatesTheRestOfAMinimumHold(t *testing.T) {
	since := int64(0)
	held, rest := plainLock("a", 30*time.Second, "1"), plainLock("a", 500*time.Millisecond, "1")
	held.Holders[0].Held, rest.Holders[0].kept = &since, true
	var h history
	for i, locks := range [][]Lock{{held}, {rest}, {}} {
		h.apply(snapshot(noon.Add(time.Duration(i)*time.Second), locks...))
	}
	spans := h.spans()
	require.Len(t, spans, 2)
	hold, kept := spans[0], spans[1]
	require.Equal(t, []bool{false, true}, []bool{hold.Kept, kept.Kept})
	require.Equal(t, []string{ended, ended}, []string{hold.End, kept.End})
	require.Equal(t, noon.Add(time.Second), *hold.To)
	require.Equal(t, noon.Add(time.Second), kept.From)
	require.False(t, kept.Before, "the looks have seen when it began")
	require.Empty(t, h.events, "nothing was lost")
}

// However much happens, the page remembers a bounded number of holds and of losses: the latest.
func TestHistoryIsBounded(t *testing.T) {
	locks := make([]Lock, maxSpans+10)
	for i := range locks {
		locks[i] = plainLock(strconv.Itoa(i), time.Millisecond, "1")
	}
	var h history
	h.apply(snapshot(noon, locks...))
	h.apply(snapshot(noon.Add(time.Second)))
	require.LessOrEqual(t, len(h.done), maxSpans)
	require.LessOrEqual(t, len(h.events), maxEvents)
}

func TestCyclesAreClientsThatWaitForEachOther(t *testing.T) {
	lock := func(name, holder string, waiters ...string) Lock {
		l := plainLock(name, 30*time.Second, holder+":1")
		l.Holders[0].Client = "host " + holder
		for _, w := range waiters {
			l.Clients = append(l.Clients, Waiter{ID: w})
		}
		return l
	}
	for name, tt := range map[string]struct {
		locks []Lock
		want  [][]step
	}{
		"nobody waits": {[]Lock{lock("x", "a"), lock("y", "b")}, nil},
		"a chain":      {[]Lock{lock("x", "a", "b"), lock("y", "b", "c")}, nil},
		"two": {[]Lock{lock("x", "a", "b"), lock("y", "b", "a:7")}, [][]step{{
			{"host a", "x", "y"}, {"host b", "y", "x"},
		}}},
		"three, and one that waits for them": {
			[]Lock{lock("x", "a", "c"), lock("y", "b", "a"), lock("z", "c", "b"), lock("w", "d"), lock("v", "e", "d", "a")},
			[][]step{{{"host a", "x", "y"}, {"host b", "y", "z"}, {"host c", "z", "x"}}},
		},
		"a client that waits for itself": {[]Lock{lock("x", "a", "a")}, nil},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, cycles(tt.locks)) })
	}
}

// A browser runs the page's script under the page's own policy: a lock is taken, and the page says
// who has it. Its name is shown as it is.
func TestPageInABrowser(t *testing.T) {
	server := redistest.Fresh(t)
	rdb := redis.NewClient(options(server.Addr()))
	t.Cleanup(func() { _ = rdb.Close() })
	client, err := primitives.New(rdb, primitives.WithClientName("the-holder"))
	require.NoError(t, err)
	const name = `<b>orders</b> & "more"`
	hold, err := client.Lock(name).Acquire(t.Context())
	require.NoError(t, err)
	page := NewPage(Config{Redis: rdb, Where: server.Addr})
	listener, err := Listen(t.Context(), "0")
	require.NoError(t, err)
	go func() { _ = page.Serve(t.Context(), listener) }()
	window := browser.Open(t, "http://"+listener.Addr().String()+"/")
	dom := func() (html string) {
		window.Eval(`[...document.body.children].filter(e => e.tagName !== "SCRIPT").map(e => e.outerHTML).join("\n")`, &html)
		return html
	}
	const escaped = `&lt;b&gt;orders&lt;/b&gt; &amp; "more"`
	redistest.WaitFor(t, time.Minute, func() bool { // a client says its name a moment later
		page := dom()
		return strings.Contains(page, escaped) && strings.Contains(page, "the-holder ("+hold.ID()+")")
	}, "the page shows the holder")
	require.NotContains(t, dom(), "<b>orders")
	require.NoError(t, hold.Release(t.Context()))
	shows := func(text string) func() bool { return func() bool { return strings.Contains(dom(), text) } }
	redistest.WaitFor(t, time.Minute, shows("Nothing is held."), "the page shows the release")
	require.NoError(t, server.Kill())
	redistest.WaitFor(t, time.Minute, shows("no answer from Redis"), "the page says so")
	require.Empty(t, window.Troubles())
}

// A page that looked once does not know since when the hold of an older client lasts. It says so,
// and tells a lock that only its minimum hold keeps from one that is held.
func TestPageDrawsWhatIsNotKnownAndWhatIsKept(t *testing.T) {
	ago := int64(60_000)
	unknown, told, rest := plainLock("unknown", 30*time.Second, "1"), plainLock("told", 30*time.Second, "2"),
		plainLock("rest", 30*time.Second, "3")
	told.Holders[0].Held = &ago
	rest.MinHold, rest.Holders[0].kept = true, true
	window := browser.Open(t, "http://"+served(t, shown(result{snap: snapshot(noon, unknown, told, rest)}))+"/")
	var lanes map[string][]string
	const bars = `Object.fromEntries([...document.querySelectorAll("#timeline .row")].slice(1).map(row =>
		[row.firstChild.textContent, [...row.querySelectorAll("i")].map(i => i.className + " " + i.textContent)]))`
	window.Eval(bars, &lanes)
	require.Equal(t, map[string][]string{
		"told": {"now "}, "unknown": {"unknown ", "now "}, "rest": {"stay unknown minimum hold", "stay minimum hold"},
	}, lanes)
	var colours []string
	const drawn = `[".now", ".unknown:not(.stay)", ".stay:not(.unknown)", ".stay.unknown"].
		map(c => getComputedStyle(document.querySelector(".lane i" + c))).
		map(s => s.backgroundColor + s.backgroundImage)`
	window.Eval(drawn, &colours)
	slices.Sort(colours)
	require.Len(t, slices.Compact(colours), 4, "each of them looks different")
	require.Empty(t, window.Troubles())
}
