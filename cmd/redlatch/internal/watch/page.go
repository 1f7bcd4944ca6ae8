package watch

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/names"
	"github.com/redlatch/redlatch/internal/look"
)

// The page is one document without anything from elsewhere. Its script draws a state in JSON, which
// is in the document when it is made, and is read again once a second from /api/state. Names and
// ids are other people's data. So encoding/json escapes what HTML could take for markup, and the
// script writes them as text.

//go:embed page.html
var pageSource string

// pageText is the page with the style that all pages of the command have.
var pageText = strings.Replace(pageSource, "{{LOOK}}", look.Text(), 1)

// stateMark stands in page.html where the state belongs.
const stateMark = "{{STATE}}"

// contentPolicy forbids all but the page's own style, script and state.
var contentPolicy = "default-src 'none'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; " +
	"form-action 'none'; style-src '" + hashOf("<style>", "</style>") + "'; " +
	"script-src '" + hashOf("<script>", "</script>") + "'"

// hashOf is the source expression for the part of the page between two marks.
func hashOf(open, end string) string {
	_, after, _ := strings.Cut(pageText, open)
	part, _, _ := strings.Cut(after, end)
	sum := sha256.Sum256([]byte(part))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// pageState is what the page shows.
type pageState struct {
	At       time.Time `json:"at"`
	Live     bool      `json:"live"` // the page asks again
	Where    string    `json:"where"`
	Pattern  string    `json:"pattern"`
	Held     []Lock    `json:"held"`
	Acquired float64   `json:"acquired_s"`
	Lost     float64   `json:"lost_s"`
	Visited  float64   `json:"visited"` // part of the keys that were searched
	Cut      bool      `json:"cut,omitempty"`
	Denied   int       `json:"denied,omitempty"`
	Window   int64     `json:"window_ms"`
	Spans    []*span   `json:"spans"`
	Events   []event   `json:"events"`
	Cycles   [][]step  `json:"cycles,omitempty"`
	// Error is why the latest look failed, and Since when the first of the failed looks was. The
	// rest is older then.
	Error string     `json:"error,omitempty"`
	Since *time.Time `json:"since,omitempty"`
}

// Page shows the locks in a browser. It is read-only.
type Page struct {
	cfg    Config
	source *Source

	mu      sync.Mutex // guards the rest
	model   model      // for the rates
	history history
	seen    chan struct{}        // closed after the first look; nil then
	detail  map[string]time.Time // names that somebody looks at in detail, and when he last asked
}

// NewPage returns a page that has not looked yet.
func NewPage(cfg Config) *Page {
	cfg.Pattern = cmp.Or(cfg.Pattern, "*")
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	return &Page{cfg: cfg, source: newSource(cfg), seen: make(chan struct{}), detail: map[string]time.Time{}}
}

// Bounds of the names that the page reads at each look, because somebody looks at them in detail.
const (
	detailFor = 5 * time.Second // a page asks once a second
	maxDetail = 100
)

// looksAt notes that somebody looks at a name in detail; "": at none.
func (p *Page) looksAt(name string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.detail, func(_ string, asked time.Time) bool { return now.Sub(asked) > detailFor })
	if name != "" && len(p.detail) < maxDetail {
		p.detail[name] = now
	}
	p.source.Detail(slices.Sorted(maps.Keys(p.detail))...)
}

// Once looks once and writes the page, as it is now.
func (p *Page) Once(ctx context.Context, w io.Writer) error {
	for {
		snap, err := p.source.Look(ctx)
		if err != nil {
			return err
		}
		p.took(result{snap: snap, at: snap.At})
		if snap.Visited == 1 {
			break
		}
		select { // a large keyspace takes several looks, none of which is sooner after another than in a live view
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return p.write(w, false, time.Now())
}

// Serve looks and answers requests until ctx ends. It returns nil then.
func (p *Page) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results, crashed := make(chan result), make(chan string, 1)
	go guard(crashed, func() { follow(ctx, p.source.Look, results) })
	server := &http.Server{Handler: p.handler(listener.Addr()), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() { _ = server.Close() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-served:
			return err
		case text := <-crashed:
			panic(text)
		case r := <-results:
			if ctx.Err() == nil {
				p.took(r)
			}
		}
	}
}

// took takes a look in. When Redis falls silent, and when it answers again, it notes that.
func (p *Page) took(r result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wasSilent := p.model.fault != nil
	if r.err != nil {
		p.model.fail(r.err, r.at)
	} else {
		p.model.apply(r.snap)
		p.history.apply(r.snap)
	}
	if p.seen != nil {
		close(p.seen)
		p.seen = nil
	}
	switch {
	case p.cfg.Note == nil:
	case r.err != nil && !wasSilent:
		p.cfg.Note("silent", trouble(r.err)+", trying again: "+oneLine(r.err))
	case r.err == nil && wasSilent:
		p.cfg.Note("answering", "Redis answers again")
	}
}

// state returns what the page shows.
func (p *Page) state(live bool, now time.Time) *pageState {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &pageState{
		At: now.UTC(), Live: live, Where: p.cfg.Where(), Pattern: p.cfg.Pattern, Held: []Lock{},
		Window: pageWindow.Milliseconds(), Spans: []*span{}, Events: append([]event{}, p.history.events...),
	}
	if p.model.fault != nil {
		since := p.model.faultAt.UTC()
		s.Error, s.Since = trouble(p.model.fault)+": "+oneLine(p.model.fault), &since
	}
	if snap := p.model.snap; snap != nil {
		s.At, s.Visited, s.Cut, s.Denied = snap.At.UTC(), snap.Visited, snap.Cut, snap.Denied
		s.Held = locksOf(snap)
		s.Cycles = cycles(snap.Held)
	}
	s.Acquired, s.Lost, _ = p.model.rates()
	for _, one := range p.history.spans() {
		copied := *one // it may end while the state is written
		s.Spans = append(s.Spans, &copied)
	}
	return s
}

// locksOf returns the locks of a snapshot, as "redlatch ls --json" prints them.
func locksOf(snap *Snapshot) []Lock {
	locks := append([]Lock{}, snap.Held...) // an empty list in JSON, if nothing is held
	for i := range locks {
		locks[i].Base64 = names.Base64(locks[i].Name)
	}
	slices.SortStableFunc(locks, func(a, b Lock) int { return cmp.Compare(uint64(a.TTL), uint64(b.TTL)) })
	return locks
}

// write writes the page.
func (p *Page) write(w io.Writer, live bool, now time.Time) error {
	state, err := json.Marshal(p.state(live, now))
	if err != nil {
		return err
	}
	before, after, _ := strings.Cut(pageText, stateMark)
	_, err = io.Copy(w, io.MultiReader(strings.NewReader(before), bytes.NewReader(state), strings.NewReader(after)))
	return err
}

// handler answers requests that name the address on which the page listens.
func (p *Page) handler(address net.Addr) http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		if !p.awaitLook(r.Context()) {
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", contentPolicy)
		_ = p.write(w, true, time.Now())
	})
	routes.HandleFunc("GET /api/state", func(w http.ResponseWriter, r *http.Request) {
		p.looksAt(r.FormValue("detail"), time.Now())
		if p.awaitLook(r.Context()) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(p.state(true, time.Now()))
		}
	})
	routes.HandleFunc("GET /api/locks", func(w http.ResponseWriter, r *http.Request) {
		if !p.awaitLook(r.Context()) {
			return
		}
		p.mu.Lock()
		snap, fault := p.model.snap, p.model.fault
		p.mu.Unlock()
		if fault != nil {
			http.Error(w, trouble(fault), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		out := json.NewEncoder(w)
		out.SetEscapeHTML(false)
		for _, l := range locksOf(snap) {
			if err := out.Encode(l); err != nil {
				return
			}
		}
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Referrer-Policy", "no-referrer")
		if !isLocalRequest(address, r.Host) {
			http.Error(w, "this page is for localhost", http.StatusForbidden)
			return
		}
		routes.ServeHTTP(w, r)
	})
}

// awaitLook waits for the first look. It reports false if the request has ended before.
func (p *Page) awaitLook(ctx context.Context) bool {
	p.mu.Lock()
	seen := p.seen
	p.mu.Unlock()
	if seen == nil {
		return true
	}
	select {
	case <-seen:
		return true
	case <-ctx.Done():
		return false
	}
}

// isLocalRequest reports whether a page that listens on a loopback address was asked under a name
// of this machine. Otherwise a page of somebody else could make its name lead here, and read the
// answers in the browser of a user. Another address was chosen by whoever started it.
func isLocalRequest(address net.Addr, host string) bool {
	listens, ok := address.(*net.TCPAddr)
	if !ok || !listens.IP.IsLoopback() {
		return true
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	ip := net.ParseIP(name)
	return strings.EqualFold(name, "localhost") || ip != nil && ip.IsLoopback()
}

// ErrAddress is the error of an address on which the page cannot listen.
var ErrAddress = errors.New("cannot listen")

// Listen listens on an address such as 127.0.0.1:8080. Without a host, as in :8080 or 8080, that is
// loopback.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	if !strings.Contains(address, ":") {
		address = ":" + address
	}
	if strings.HasPrefix(address, ":") {
		address = "127.0.0.1" + address
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, errors.Join(ErrAddress, err)
	}
	return listener, nil
}
