package watch

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/names"
)

// style is how a line looks.
type style int

const (
	plain style = iota
	bold
	dim
	reverse
	alarm // something is wrong
)

// line is one line of the screen, as wide as the screen.
type line struct {
	text  string
	style style
}

// render returns the lines of a screen of that size at an instant. It keeps the selected row in
// view.
func render(m *model, columns, height int, now time.Time) []line {
	var body []line
	head := header(m, columns, now)
	m.page = max(height-len(head)-1, 1)
	if m.inspect != "" {
		body = details(m, columns, now)
		m.scroll = max(min(m.scroll, len(body)-m.page), 0)
		body = body[m.scroll:]
	} else {
		body = table(m, columns, now)
	}
	for len(body) < m.page {
		body = append(body, line{"", plain})
	}
	lines := append(append(head, body[:m.page]...), footer(m, columns))
	for i := range lines {
		lines[i].text = fit(lines[i].text, columns)
	}
	return lines[:min(len(lines), height)]
}

func header(m *model, columns int, now time.Time) []line {
	clock := now.Format("15:04:05")
	title := "redlatch watch " + printable(m.pattern) + " on " + printable(m.where)
	lines := []line{{fit(title, columns-len(clock)-1) + " " + clock, bold}}
	if m.snap == nil {
		return append(lines, status(m, now), line{})
	}
	acquired, lost := "-", "-"
	perSecond, lostPerSecond, known := m.rates()
	if known {
		acquired, lost = rate(perSecond), rate(lostPerSecond)
	}
	held := thousands(int64(len(m.snap.Held)))
	if m.snap.Cut {
		held = "more than " + held
	}
	numbers := line{fmt.Sprintf("held %s   waiting %s   acquired >= %s   lost %s", held,
		thousands(int64(m.snap.waiting())), acquired, lost), plain}
	if lostPerSecond > 0 {
		numbers.style = alarm
	}
	return append(lines, numbers, status(m, now))
}

// status is the line that says what the view lacks.
func status(m *model, now time.Time) line {
	switch {
	case m.fault != nil:
		age := "never answered"
		if m.snap != nil {
			age = "last answer " + short(now.Sub(m.snap.At)) + " ago"
		}
		text := trouble(m.fault)
		text = strings.ToUpper(text[:1]) + text[1:]
		return line{fmt.Sprintf("%s, trying again; %s: %s", text, age, printable(oneLine(m.fault))), alarm}
	case m.snap == nil:
		return line{"Waiting for Redis", dim}
	case now.Sub(m.snap.At) > silentAfter:
		return line{"No answer from Redis for " + short(now.Sub(m.snap.At)), alarm}
	case m.snap.Denied > 0:
		return line{fmt.Sprintf("%s hashes cannot be read: this user lacks the right (NOPERM)",
			thousands(int64(m.snap.Denied))), alarm}
	case m.snap.Visited < 1:
		return line{fmt.Sprintf("Searching %s keys: %.0f%% of this pass; locks not found yet are missing",
			thousands(m.snap.Keys), 100*m.snap.Visited), dim}
	}
	return line{}
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// footer is the last line: the keys. It is made after the body, which sets m.top.
func footer(m *model, columns int) line {
	switch {
	case m.typing:
		return line{"/" + printable(m.filter) + "_   enter: keep  esc: clear", bold}
	case m.inspect != "":
		return line{"esc back  arrows scroll  q quit", dim}
	}
	text := "q quit  / filter  s sort: " + m.order.String() + "  enter inspect"
	if m.filter != "" {
		text = "filter: " + printable(m.filter) + " (esc clears)  " + text
	}
	if m.snap != nil {
		rows := m.rows()
		first, last := min(m.top+1, len(rows)), min(m.top+m.page-1, len(rows))
		position := fmt.Sprintf("%d-%d of %s", first, last, thousands(int64(len(rows))))
		if len(position) < columns {
			text = fit(text, columns-len(position)-1) + " " + position
		}
	}
	return line{text, dim}
}

// Columns of the table with numbers, each with a space in front.
const (
	kindWidth    = 8
	numberWidth  = 7
	numberedWide = kindWidth + 4*numberWidth
)

// idWidth is enough for a uuid and a number.
const idWidth = 46

// wideColumns is the width from which the table has a column for ids.
const wideColumns = 140

// table returns the column titles and the rows in view.
func table(m *model, columns int, now time.Time) []line {
	rows := m.rows()
	visible := max(m.page-1, 1)
	at := m.cursor(rows)
	m.top = max(min(m.top, len(rows)-visible, at), at-visible+1, 0)
	text := max(columns-numberedWide, 10)
	name, holder, id := text*6/10, text-text*6/10, 0
	if columns >= wideColumns {
		name, id = text*4/10, idWidth
		holder = text - name - id
	}
	format := func(lockName, kind, ttl, age, count, waiting, client, ids string) string {
		return fit(lockName, name) + " " + fit(kind, kindWidth-1) + right(ttl, numberWidth) + right(age, numberWidth) +
			right(count, numberWidth) + right(waiting, numberWidth) + "  " + fit(client, holder-2) + fit(ids, id)
	}
	lines := []line{{format("NAME", "KIND", "TTL", "HELD", "COUNT", "WAIT", "HOLDER", " ID"), bold}}
	if len(rows) == 0 && m.snap != nil {
		empty := "No lock is held."
		if m.snap.Visited < 1 {
			empty = "No lock found yet."
		}
		if m.filter != "" && len(m.snap.Held) > 0 {
			empty = "No name contains " + printable(m.filter) + "."
		}
		return append(lines, line{}, line{empty, dim})
	}
	for i := m.top; i < min(m.top+visible, len(rows)); i++ {
		l := rows[i]
		ids := " " + names.Shown(l.Holders[0].ID)
		client := printable(l.Holders[0].Client)
		switch {
		case client == "" && id > 0:
			client = "(unknown)"
		case client == "":
			client = strings.TrimSpace(ids)
		}
		if n := len(l.Holders) - 1; n > 0 {
			more := fmt.Sprintf(" +%d", n)
			if l.more {
				more += "+"
			}
			client = strings.TrimRight(fit(client, max(holder-2-len(more), 1)), " ") + more
		}
		row := line{format(names.Shown(l.Name), l.Kind, m.left(l.TTL, now), m.age(l, m.oldest(l), now), count(l),
			number(l.Waiting), client, ids), plain}
		if i == at {
			row.style = reverse
		}
		lines = append(lines, row)
	}
	return lines
}

// count is the sum of the holders' counts.
func count(l *Lock) string {
	n := 0
	for _, h := range l.Holders {
		n += h.Count
	}
	return strconv.Itoa(n)
}

func number(n int) string {
	if n == 0 {
		return "-"
	}
	return thousands(int64(n))
}

// left is a TTL that counts down since the snapshot.
func (m *model) left(ttl TTL, now time.Time) string {
	if ttl < 0 {
		return "none"
	}
	return short(time.Duration(ttl) - now.Sub(m.snap.At))
}

// age is how long a holder has been seen.
func (m *model) age(l *Lock, since time.Time, now time.Time) string {
	text := short(now.Sub(since))
	for _, h := range l.Holders {
		if s := m.since[holderKey{l.Name, h.ID}]; s.at.Equal(since) && s.atLeast {
			return ">" + text
		}
	}
	return text
}

// details returns everything about the inspected name.
func details(m *model, columns int, now time.Time) []line {
	lines := []line{{names.Shown(m.inspect), bold}, {}}
	l := m.held(m.inspect)
	if l == nil {
		return append(lines, line{"Nobody holds it now.", dim})
	}
	about := fmt.Sprintf("kind %s   ttl %s   waiting %d", l.Kind, m.left(l.TTL, now), l.Waiting)
	if l.Token > 0 {
		about += fmt.Sprintf("   last token %d", l.Token)
	}
	client := max(columns-idWidth-3*numberWidth, 10)
	row := func(name, id, count, ttl, age string) string {
		return fit(name, client-1) + " " + fit(id, idWidth) +
			right(count, numberWidth) + right(ttl, numberWidth) + right(age, numberWidth)
	}
	lines = append(lines, line{about, plain}, line{}, line{row("HOLDER", "ID", "COUNT", "TTL", "HELD"), bold})
	for _, h := range l.Holders {
		since := m.since[holderKey{l.Name, h.ID}]
		age := short(now.Sub(since.at))
		if since.atLeast {
			age = ">" + age
		}
		name := cmp.Or(printable(h.Client), "(unknown)")
		lines = append(lines, line{row(name, names.Shown(h.ID), strconv.Itoa(h.Count), m.left(h.TTL, now), age), plain})
	}
	if l.more {
		lines = append(lines, line{"and more", dim})
	}
	switch {
	case l.Kind != "fair" && l.Waiting > 0:
		waiting := fmt.Sprintf("%d clients wait for a release. Their order is not known.", l.Waiting)
		lines = append(lines, line{}, line{waiting, plain})
		for _, w := range l.Clients {
			lines = append(lines, line{"      " + cmp.Or(printable(w.Client), "(unknown)"), plain})
		}
	case len(l.Waiters) > 0:
		lines = append(lines, line{}, line{"WAITERS, the next one first", bold})
		for i, id := range l.Waiters {
			text := fmt.Sprintf("%4d  %s", i+1, names.Shown(id))
			if i < len(l.Clients) && l.Clients[i].Client != "" {
				text += "  " + printable(l.Clients[i].Client)
			}
			lines = append(lines, line{text, plain})
		}
		if n := l.Waiting - len(l.Waiters); n > 0 {
			lines = append(lines, line{fmt.Sprintf("and %d more", n), dim})
		}
	}
	return lines
}
