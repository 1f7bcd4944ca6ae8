package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/names"
	"github.com/redlatch/redlatch/primitives"
)

// entry is what ls and inspect print about a name. A nil field does not apply to its kind.
type entry struct {
	Name      string   `json:"name"`
	Base64    string   `json:"name_base64,omitempty"` // of a name that is not UTF-8
	Kind      string   `json:"kind"`
	TTL       *int64   `json:"ttl_ms,omitempty"`   // -1: no expiry
	MinHold   bool     `json:"min_hold,omitempty"` // it was released, and stays taken for the rest of its minimum hold
	Holders   []holder `json:"holders,omitzero"`
	Waiters   []string `json:"waiters,omitzero"` // of a fair lock, in order
	Waiting   []waiter `json:"waiting,omitzero"` // of every kind
	Permits   *int     `json:"permits,omitempty"`
	Available *int     `json:"available,omitempty"`
	Count     *int     `json:"count,omitempty"`
	Token     *int64   `json:"token,omitempty"`
}

type holder struct {
	ID     string `json:"id"`
	Client string `json:"client"` // "" if unknown
	Count  int    `json:"count"`
	TTL    int64  `json:"ttl_ms"`
	Held   *int64 `json:"held_ms,omitempty"` // nil: unknown
	// minHold: it was released, and stays taken for the rest of its minimum hold.
	minHold bool
}

// waiter is a client that waits, or one waiter of a fair lock.
type waiter struct {
	Client string `json:"client"` // "" if unknown
	ID     string `json:"id"`     // a fair waiter's in Redis, else its client's
}

// newEntry returns the entry of what the library has found, as a kind of allKinds.
func newEntry(info primitives.Info, kind string) *entry {
	e := &entry{Name: info.Name, Base64: names.Base64(info.Name), Kind: kind}
	if info.TTL != 0 || len(info.Holders) > 0 || info.Kind == kindInteger { // else nothing could expire
		e.TTL = new(millis(info.TTL))
	}
	switch kind {
	case kindSemaphore, kindInteger:
		e.Permits, e.Available = &info.Permits, &info.Available
		return e
	case kindLatch:
		e.Count = &info.Available
		return e
	case kindPermits:
		e.Permits, e.Available = &info.Permits, &info.Available
	case kindFair:
		e.Waiters = append([]string{}, info.Waiters...)
	}
	if info.Token > 0 {
		e.Token = &info.Token
	}
	e.Holders = []holder{}
	for _, h := range info.Holders {
		shown := holder{ID: h.ID, Client: h.Client, Count: h.Count, TTL: millis(h.TTL), minHold: h.MinHold}
		if h.Held > 0 {
			shown.Held = new(millis(h.Held))
		}
		e.Holders = append(e.Holders, shown)
		e.MinHold = e.MinHold || h.MinHold
	}
	return e
}

// addWaiting adds who waits: the waiters of a fair lock, whose clients have these names, and the
// clients that say so themselves. A client that has waiters in the queue is not added twice.
func (e *entry) addWaiting(clients []string, others []primitives.Waiter) {
	for i, id := range e.Waiters {
		e.Waiting = append(e.Waiting, waiter{clients[i], id})
	}
	for _, w := range others {
		stands := slices.ContainsFunc(e.Waiters, func(id string) bool { return strings.HasPrefix(id, w.ID+":") })
		if !stands {
			e.Waiting = append(e.Waiting, waiter(w))
		}
	}
}

// isNothing reports whether e says that there is nothing in Redis under its name.
func (e *entry) isNothing() bool {
	return len(e.Holders) == 0 && len(e.Waiters) == 0 && e.Token == nil && e.Permits == nil && e.Count == nil
}

// byTTL sorts entries: the shortest TTL first, and those without expiry last.
func byTTL(a, b *entry) int {
	return cmp.Or(cmp.Compare(a.order(), b.order()), cmp.Compare(a.Name, b.Name))
}

func (e *entry) order() uint64 {
	if e.TTL == nil {
		return ^uint64(0)
	}
	return uint64(*e.TTL) // -1 is the largest
}

// printTable prints entries for people: a line for each holder, and one for a number. On a terminal
// that is too narrow, the holder has a line of its own: its id must stay whole, because redlatch
// release needs it.
func printTable(w io.Writer, entries []*entry) {
	rows := tableRows(entries)
	text := aligned(rows)
	if columns := columnsOf(w); columns > 0 && widest(text) > columns {
		var others, holders [][]string
		for _, cells := range rows {
			others = append(others, slices.Concat(cells[:2], cells[4:]))
			holders = append(holders, cells[2:4])
		}
		lines, below := strings.SplitAfter(aligned(others), "\n"), strings.SplitAfter(aligned(holders), "\n")
		text = ""
		for i, cells := range holders {
			text += lines[i]
			if cells[1] != "-" {
				text += "  " + below[i]
			}
		}
	}
	heading, rest, _ := strings.Cut(text, "\n")
	fmt.Fprint(w, bold(w, heading), "\n", rest)
}

// aligned returns the rows of a table as lines.
func aligned(rows [][]string) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, cells := range rows {
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	_ = w.Flush()
	return text.String()
}

// widest is the length of the longest line.
func widest(text string) (columns int) {
	for line := range strings.Lines(text) {
		columns = max(columns, utf8.RuneCountInString(line)-1)
	}
	return columns
}

// tableRows returns the heading and the rows of entries.
func tableRows(entries []*entry) [][]string {
	rows := [][]string{{"NAME", "KIND", "CLIENT", "HOLDER", "COUNT", "TTL", "HELD", "WAITING"}}
	row := func(cells ...string) { rows = append(rows, cells) }
	for _, e := range entries {
		waiting := e.waitingCell()
		for _, h := range e.Holders {
			row(plain(e.Name), e.Kind, cmp.Or(plain(h.Client), "-"), plain(h.ID),
				strconv.Itoa(h.Count), shownMillis(h.TTL), cmp.Or(h.held(), "-"), waiting)
		}
		switch {
		case e.Kind == kindPermits:
			free := fmt.Sprintf("%d of %d free", *e.Available, *e.Permits)
			row(plain(e.Name), e.Kind, "-", "-", free, "-", "-", waiting)
		case e.Available != nil:
			row(plain(e.Name), e.Kind, "-", "-", strconv.Itoa(*e.Available), shownMillis(*e.TTL), "-", waiting)
		}
	}
	return rows
}

// shownWaiting is how many clients that wait a cell of the table names.
const shownWaiting = 3

// waitingCell says how many wait, and who the first of them are.
func (e *entry) waitingCell() string {
	if len(e.Waiting) == 0 {
		return "-"
	}
	var clients []string
	for _, w := range e.Waiting {
		name := cmp.Or(plain(w.Client), "?")
		if !slices.Contains(clients, name) {
			clients = append(clients, name)
		}
	}
	more := ""
	if len(clients) > shownWaiting {
		clients, more = clients[:shownWaiting], ", ..."
	}
	return fmt.Sprintf("%d: %s%s", len(e.Waiting), strings.Join(clients, ", "), more)
}

// held says for how long h has been held, or "" if that is unknown.
func (h *holder) held() string {
	switch {
	case h.minHold:
		return "min hold" // it is held no longer
	case h.Held != nil:
		return shownMillis(*h.Held)
	}
	return ""
}

// printEntry prints one entry for people, a fact a line.
func printEntry(w io.Writer, e *entry) {
	line := func(what string, value any) { fmt.Fprintf(w, "%-10s %v\n", what, value) }
	line("name", plain(e.Name))
	line("kind", e.Kind)
	kind := "hash"
	if e.Permits != nil || e.Count != nil {
		kind = "string"
	}
	line("type", kind)
	if e.TTL != nil {
		line("ttl", shownMillis(*e.TTL))
	}
	if e.Token != nil {
		line("token", *e.Token)
	}
	switch {
	case e.Kind == kindInteger: // perhaps a latch, or somebody's counter
		line("number", *e.Available)
	case e.Kind == kindSemaphore: // how many are taken is not known
		line("available", *e.Available)
	case e.Available != nil:
		line("available", fmt.Sprintf("%d of %d", *e.Available, *e.Permits))
	}
	if e.Count != nil {
		line("count", *e.Count)
	}
	if e.Holders != nil && len(e.Holders) == 0 {
		line("holder", "none")
	}
	for _, h := range e.Holders {
		text := fmt.Sprintf("%s, count %d, ttl %s", clientAndID(h.Client, h.ID), h.Count, shownMillis(h.TTL))
		switch {
		case h.minHold:
			text += ", released: it stays taken for the rest of its minimum hold"
		case h.Held != nil:
			text += ", held " + h.held()
		}
		line("holder", text)
	}
	for i, w := range e.Waiting {
		what := "waiting"
		if i < len(e.Waiters) {
			what = "waiter " + strconv.Itoa(i+1)
		}
		line(what, clientAndID(w.Client, w.ID))
	}
}

// clientAndID is a client and an id, for people.
func clientAndID(client, id string) string {
	if client == "" {
		return plain(id)
	}
	return plain(client) + " (" + plain(id) + ")"
}

func shownMillis(ms int64) string {
	if ms < 0 {
		return shown(-1)
	}
	return shown(time.Duration(ms) * time.Millisecond)
}
