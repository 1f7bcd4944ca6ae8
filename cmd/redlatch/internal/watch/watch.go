package watch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/names"
	"github.com/redlatch/redlatch/internal/redisutil"
)

// Config is what Run needs.
type Config struct {
	Redis   redis.UniversalClient
	Prefix  string        // of all names, as WithPrefix
	Pattern string        // a glob; "": all names
	Where   func() string // names the server, for people
	Timeout time.Duration

	In    *os.File
	Out   io.Writer                // full screen if it is a terminal, and In is one too
	Note  func(event, text string) // beside Out, when Redis falls silent and when it answers again
	JSON  bool                     // lines on a terminal too
	Color bool
}

// Times of the view.
const (
	lookEvery      = time.Second
	leastRest      = 600 * time.Millisecond // from the end of a look to the next: two at once give no rates
	drawEvery      = 250 * time.Millisecond // TTLs count down
	defaultTimeout = 5 * time.Second
	silentAfter    = 3 * time.Second // without an answer the view says so
)

// Help says what the numbers mean.
const Help = "It reads once a second which locks are held, and never uses MONITOR. On a terminal it shows a table;\n" +
	"elsewhere, and with --json, it writes one JSON object a line. It sends fewer than 100 commands a second\n" +
	"to each server: of more than 5,000 locks, each is read every two seconds or more rarely, and in a large\n" +
	"keyspace it searches at most 20,000 keys a second, and shows its progress.\n\n" +
	"What the numbers mean:\n" +
	"  acquired  new holders per second. A lock may be acquired and released between two readings, so this\n" +
	"            is a lower bound; for fenced locks the tokens count every acquisition\n" +
	"  lost      holders per second whose TTL ended, as after a crash. A lease that was released in its\n" +
	"            last second counts too; a lock taken by force looks like a release\n" +
	"  waiting   for a fair lock, its queue; for other locks, the clients that wait for a release, each once,\n" +
	"            however many of its goroutines or threads wait. Waiters that poll are not seen\n" +
	"  held      how long this holder has been seen; \">\" if it may have held for longer\n\n" +
	"Keys: q quit, / filter, s sort by name, ttl, waiting or held, arrows and page keys move, enter shows\n" +
	"one name with all holders and waiters, esc goes back.\n\n" +
	"While Redis is unreachable, it says so and keeps trying. SIGINT ends it with exit code 0."

// result is what a look gave.
type result struct {
	snap *Snapshot
	err  error
	at   time.Time
}

// Run shows the locks until ctx ends, or somebody presses q. It returns nil then.
func Run(ctx context.Context, cfg Config) error {
	cfg.Pattern = cmp.Or(cfg.Pattern, "*")
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result)
	crashed := make(chan string, 2)
	source := newSource(cfg)
	go guard(crashed, func() { follow(ctx, source.Look, results) })
	out, _ := cfg.Out.(*os.File)
	if cfg.JSON || os.Getenv("TERM") == "dumb" || !isTerminal(cfg.In, out) {
		return writeLines(ctx, cfg, results, crashed)
	}
	return fullScreen(ctx, cfg, out, source, results, crashed)
}

// guard runs f. It hands a panic to the goroutine that restores the terminal.
func guard(crashed chan<- string, f func()) {
	defer func() {
		if p := recover(); p != nil {
			crashed <- fmt.Sprintf("%v\n%s", p, debug.Stack())
		}
	}()
	f()
}

// newSource returns the source of a configuration, whose defaults are filled in.
func newSource(cfg Config) *Source {
	s := NewSource(cfg.Redis, cfg.Prefix, cfg.Pattern)
	s.timeout = cfg.Timeout
	return s
}

// follow looks once a second until ctx ends, and less often if looks take long.
func follow(
	ctx context.Context, look func(context.Context) (*Snapshot, error), results chan<- result,
) {
	for ctx.Err() == nil {
		began := time.Now()
		snap, err := look(ctx)
		next := time.NewTimer(max(lookEvery-time.Since(began), leastRest))
		r := result{snap, err, time.Now()}
		if err != nil {
			r.snap = nil
		}
		select {
		case results <- r:
		case <-ctx.Done():
		}
		select {
		case <-next.C:
		case <-ctx.Done():
		}
		next.Stop()
	}
}

// fullScreen shows the view until ctx ends or a key ends it.
func fullScreen(
	ctx context.Context, cfg Config, out *os.File, source *Source, results <-chan result, crashed chan string,
) error {
	t, err := openTerminal(cfg.In, out)
	if err != nil {
		return fmt.Errorf("use the terminal: %w", err)
	}
	defer t.restore() // also when this goroutine panics
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	keys := make(chan key)
	go guard(crashed, func() {
		t.keys(ctx, func(k key) {
			select {
			case keys <- k:
			case <-ctx.Done():
			}
		})
	})
	m := &model{pattern: cfg.Pattern}
	s := &screen{out: out, color: cfg.Color}
	tick := time.NewTicker(drawEvery)
	defer tick.Stop()
	for {
		columns, rows := t.size()
		m.where = cfg.Where()
		if err := s.draw(render(m, columns, rows, time.Now()), columns); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case text := <-crashed:
			panic(text)
		case sig := <-t.ended:
			t.restore()
			endBy(sig)
			return nil
		case r := <-results:
			if r.err != nil {
				m.fail(r.err, r.at)
			} else {
				m.apply(r.snap)
			}
		case k := <-keys:
			if k == keyRedraw {
				s.forget()
			}
			if m.press(k) {
				return nil
			}
			if m.inspect == "" {
				source.Detail()
			} else {
				source.Detail(m.inspect)
			}
		case <-t.resized:
			s.forget()
		case <-tick.C:
		}
	}
}

// trouble says in a few words why a look has failed.
func trouble(err error) string {
	if redisutil.LacksRights(err) {
		return "Redis refuses (watch needs +scan, +dbsize and +pubsub|numsub, which redlatch acl leaves out)"
	}
	return "no answer from Redis"
}

// record is a line of JSON.
type record struct {
	At       time.Time `json:"at"`
	Held     []Lock    `json:"held"`
	Waiting  int       `json:"waiting"`
	Acquired float64   `json:"acquired_s"`
	Lost     float64   `json:"lost_s"`
	// Error is set while Redis does not answer. The other fields then say nothing.
	Error string `json:"error,omitempty"`
}

// errNoAnswer is the error of a line that is due while a look is still waiting for Redis.
var errNoAnswer = errors.New("no answer yet")

// writeLines writes a line of JSON for each look, and for each second that a look is late.
func writeLines(ctx context.Context, cfg Config, results <-chan result, crashed <-chan string) error {
	out := json.NewEncoder(cfg.Out)
	out.SetEscapeHTML(false)
	var last *Snapshot
	failing := false
	late := time.NewTimer(2 * lookEvery)
	defer late.Stop()
	for {
		var r result
		select {
		case <-ctx.Done():
			return nil
		case text := <-crashed:
			panic(text)
		case r = <-results:
			late.Reset(2 * lookEvery)
		case now := <-late.C:
			r = result{err: errNoAnswer, at: now}
			late.Reset(lookEvery)
		}
		if ctx.Err() != nil {
			return nil // the look was cut short
		}
		line := record{At: r.at.UTC().Truncate(time.Millisecond), Held: []Lock{}}
		if r.err != nil {
			line.Error = oneLine(r.err)
			if !failing {
				cfg.Note("silent", fmt.Sprintf("%s, trying again: %s", trouble(r.err), line.Error))
			}
		} else {
			if failing {
				cfg.Note("answering", "Redis answers again")
			}
			line.fill(last, r.snap)
			last = r.snap
		}
		failing = r.err != nil
		if err := out.Encode(line); err != nil {
			return err
		}
	}
}

// fill takes over a snapshot and its rates since the one before, which may be nil.
func (r *record) fill(before, snap *Snapshot) {
	if len(snap.Held) > 0 {
		r.Held = slices.Clone(snap.Held)
		for i := range r.Held {
			r.Held[i].Base64 = names.Base64(r.Held[i].Name)
		}
		slices.SortStableFunc(r.Held, func(a, b Lock) int { return cmp.Compare(uint64(a.TTL), uint64(b.TTL)) })
	}
	r.Waiting = snap.waiting()
	if before == nil {
		return
	}
	acquired, lost := changes(before, snap)
	elapsed := snap.At.Sub(before.At).Seconds()
	r.Acquired, r.Lost = float64(acquired)/elapsed, float64(lost)/elapsed
}
