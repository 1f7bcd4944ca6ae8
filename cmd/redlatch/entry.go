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
	TTL       *int64   `json:"ttl_ms,omitempty"` // -1: no expiry
	Holders   []holder `json:"holders,omitzero"`
	Waiters   []string `json:"waiters,omitzero"`
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
		e.Holders = append(e.Holders, holder{h.ID, h.Client, h.Count, millis(h.TTL)})
	}
	return e
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

// printTable prints entries for people: a line for each holder, and one for a number. On a terminal that is too narrow,
// the holder has a line of its own: its id must stay whole, because redlatch release needs it.
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
			if text += lines[i]; cells[0] != "-" {
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
	rows := [][]string{{"NAME", "KIND", "HOLDER", "CLIENT", "COUNT", "TTL", "WAITERS"}}
	row := func(cells ...string) { rows = append(rows, cells) }
	for _, e := range entries {
		waiters := "-"
		if e.Waiters != nil {
			waiters = strconv.Itoa(len(e.Waiters))
		}
		for _, h := range e.Holders {
			row(plain(e.Name), e.Kind, plain(h.ID), cmp.Or(plain(h.Client), "-"),
				strconv.Itoa(h.Count), shownMillis(h.TTL), waiters)
		}
		switch {
		case e.Kind == kindPermits:
			row(plain(e.Name), e.Kind, "-", "-", fmt.Sprintf("%d of %d free", *e.Available, *e.Permits), "-", waiters)
		case e.Available != nil:
			row(plain(e.Name), e.Kind, "-", "-", strconv.Itoa(*e.Available), shownMillis(*e.TTL), waiters)
		}
	}
	return rows
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
		text := plain(h.ID)
		if h.Client != "" {
			text += " (" + plain(h.Client) + ")"
		}
		line("holder", fmt.Sprintf("%s, count %d, ttl %s", text, h.Count, shownMillis(h.TTL)))
	}
	for i, id := range e.Waiters {
		line("waiter "+strconv.Itoa(i+1), plain(id))
	}
}

func shownMillis(ms int64) string {
	if ms < 0 {
		return shown(-1)
	}
	return shown(time.Duration(ms) * time.Millisecond)
}
