package timeline

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Widths of the text, which fits a terminal of 80 columns.
const (
	columns    = 80
	labelWidth = 22
	laneWidth  = columns - labelWidth - 1
)

// Bounds of the text.
const (
	maxNames  = 10
	maxEvents = 20 // losses and refused waits
)

// Signs of the text, the later ones over the earlier ones.
const signs = " .#?x!"

// Text writes the timeline for a terminal.
func (t *Timeline) Text(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s to %s UTC, %s, processes: %d, names: %d\n",
		t.Begin.Format("2006-01-02 15:04:05.000"), t.End.Format("15:04:05.000"), short(t.End.Sub(t.Begin)),
		len(t.Processes), len(t.Names))
	b.WriteString("# holds  . waits  ! lost  x not acquired  ? the events end here\n")
	for _, n := range t.Names[:min(len(t.Names), maxNames)] {
		fmt.Fprintf(&b, "\n%s (%s)\n  %s\n", clip(n.Name, columns-12), n.Kind, n.Summary())
		for _, r := range n.Rows {
			lane := strings.TrimRight(t.lane(r), " ")
			fmt.Fprintf(&b, "%*s %s\n", labelWidth, clip(r.Process, labelWidth), lane)
		}
		b.WriteString(t.axis() + "\n")
	}
	if more := len(t.Names) - maxNames; more > 0 {
		fmt.Fprintf(&b, "\nand %d more names: choose with --name\n", more)
	}
	b.WriteString(t.eventText())
	for _, note := range t.AllNotes() {
		b.WriteString("\n" + wrap("Note: "+note) + "\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// AllNotes are notes about the whole.
func (t *Timeline) AllNotes() []string {
	notes := t.Notes
	if t.Dropped > 0 {
		notes = append(slices.Clip(notes), fmt.Sprintf("%d events are missing: a file could not be written "+
			"fast enough, or not at all", t.Dropped))
	}
	return notes
}

// Summary says in a line what happened to a name.
func (n *Name) Summary() string {
	parts := []string{fmt.Sprintf("holds: %d", n.Holds)}
	if n.Waits > 0 {
		parts = append(parts, fmt.Sprintf("waits: %d, up to %s", n.Waits, short(n.LongestWait)))
	}
	if len(n.HandOvers) > 0 {
		middle := n.HandOvers[len(n.HandOvers)/2]
		parts = append(parts, fmt.Sprintf("hand-overs: %d, median %s", len(n.HandOvers), short(middle)))
	}
	if n.Tries > 0 {
		parts = append(parts, fmt.Sprintf("refused tries: %d", n.Tries))
	}
	if n.Lost > 0 {
		parts = append(parts, fmt.Sprintf("lost: %d", n.Lost))
	}
	return clip(strings.Join(parts, "; "), columns-2)
}

// lane draws a row. A column shows the most notable of what happened in it.
func (t *Timeline) lane(r *Row) string {
	cells := []byte(strings.Repeat(" ", laneWidth))
	set := func(i int, sign byte) {
		if strings.IndexByte(signs, sign) > strings.IndexByte(signs, cells[i]) {
			cells[i] = sign
		}
	}
	for _, s := range r.Spans {
		from, to := t.column(s.From), t.column(s.To)
		sign, last := byte('#'), byte('#')
		if s.What == Wait {
			sign, last = '.', '.'
		}
		switch {
		case s.End == lost:
			last = '!'
		case s.End == unknown:
			last = '?'
		case s.Failed(), s.What == Try:
			last = 'x'
		}
		for i := from; i <= to; i++ {
			set(i, sign)
		}
		set(to, last)
	}
	return string(cells)
}

func (t *Timeline) column(at time.Time) int {
	whole := max(t.End.Sub(t.Begin), 1)
	i := int(float64(at.Sub(t.Begin)) / float64(whole) * laneWidth)
	return min(max(i, 0), laneWidth-1)
}

// axis has a mark for each quarter.
func (t *Timeline) axis() string {
	line := []byte(strings.Repeat(" ", labelWidth+1) + strings.Repeat(" ", laneWidth))
	for i := range 4 {
		at := t.End.Sub(t.Begin) * time.Duration(i) / 4
		copy(line[labelWidth+1+laneWidth*i/4:], "|"+short(at))
	}
	return strings.TrimRight(string(line), " ")
}

// Notable is a loss, or a wait that was given up.
type Notable struct {
	At                       time.Time
	Process, Name, What, Why string
}

// Notables returns the losses and the waits that were given up, in order of time.
func (t *Timeline) Notables() (all []Notable) {
	for _, n := range t.Names {
		for _, r := range n.Rows {
			for _, s := range r.Spans {
				switch {
				case s.What == Stay:
					// The end of the hold says it.
				case s.End == Killed:
					what := "died after it had held it for " + short(s.To.Sub(s.From))
					all = append(all, Notable{s.To, printable(r.Process), printable(n.Name), what, printable(s.Why)})
				case s.End == lost:
					what := "lost it after " + short(s.To.Sub(s.From))
					all = append(all, Notable{s.To, printable(r.Process), printable(n.Name), what, printable(s.Why)})
				case s.Failed():
					what := "gave up after " + short(s.To.Sub(s.From))
					all = append(all, Notable{s.To, printable(r.Process), printable(n.Name), what, printable(s.End)})
				}
			}
		}
	}
	sortByTime(all)
	return all
}

func (t *Timeline) eventText() string {
	all := t.Notables()
	if len(all) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\nLosses, and waits without success\n")
	for _, e := range all[:min(len(all), maxEvents)] {
		text := fmt.Sprintf("%s %s: %s %s: %s",
			e.At.Format("15:04:05.000"), clip(e.Process, 20), clip(e.Name, 30), e.What, e.Why)
		b.WriteString(wrap(text) + "\n")
	}
	if more := len(all) - maxEvents; more > 0 {
		fmt.Fprintf(&b, "and %d more\n", more)
	}
	return b.String()
}

// printable replaces what is not: names are other people's data.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '\ufffd'
		}
		return r
	}, text)
}

// clip makes a text safe for a terminal, and not longer than width.
func clip(text string, width int) string {
	safe := printable(text)
	if utf8.RuneCountInString(safe) <= width {
		return safe
	}
	return string([]rune(safe)[:width-3]) + "..."
}

// wrap breaks a text at blanks, so that it fits the columns.
func wrap(text string) string {
	var b strings.Builder
	length := 0
	for word := range strings.FieldsSeq(text) {
		word = clip(word, columns-4)
		n := utf8.RuneCountInString(word)
		switch {
		case length == 0:
		case length+1+n > columns:
			b.WriteString("\n  ")
			length = 2
		default:
			b.WriteByte(' ')
			length++
		}
		b.WriteString(word)
		length += n
	}
	return b.String()
}
