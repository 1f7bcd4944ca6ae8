package timeline

import (
	_ "embed" // the template of the page
	"fmt"
	"html/template"
	"io"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redlatch/redlatch/internal/look"
)

//go:embed page.html
var pageSource string

var pageTemplate = template.Must(template.New("timeline").Parse(pageSource))

// Bounds of a page, for browsers.
const (
	pageNames    = 200
	pageSpans    = 2000 // of one row: the latest
	pageNotables = 500
)

// Part is a timeline on a page.
type Part struct {
	Title    string
	Lines    []string // below the title
	Timeline *Timeline
}

type (
	pagePart struct {
		Title        string
		Lines, Notes []string
		Axis         []pageMark
		Names        []pageName
		More         int
		Notables     []Notable
	}
	pageName struct {
		Name, Kind, Summary string
		Rows                []pageRow
	}
	pageRow struct {
		Label string
		Bars  []pageBar
	}
	pageBar struct {
		Class       string
		Left, Width float64
		Text        string // shown when the reader points at the bar
		Label       string // shown in the bar
	}
	pageMark struct {
		Left float64
		Text string
	}
)

// Page writes timelines as a page of HTML, which needs no network and no script.
func Page(out io.Writer, title, subtitle string, parts ...Part) error {
	all := make([]pagePart, 0, len(parts))
	var stays []string // why locks stay taken
	isKilled := false
	for _, p := range parts {
		all = append(all, p.draw())
		for s := range p.Timeline.spans() {
			isKilled = isKilled || s.End == Killed
			if s.What == Stay && !slices.Contains(stays, s.Why) {
				stays = append(stays, s.Why)
			}
		}
	}
	return pageTemplate.Execute(out, map[string]any{
		"Title": title, "Subtitle": subtitle, "Style": look.CSS(), "Parts": all, "Stays": stays, "Killed": isKilled,
	})
}

// Subtitle says from when to when the timeline is, and of what.
func (t *Timeline) Subtitle() string {
	return fmt.Sprintf("%s to %s UTC, %s. Processes: %d. Names: %d.", t.Begin.Format("2006-01-02 15:04:05.000"),
		t.End.Format("15:04:05.000"), short(t.End.Sub(t.Begin)), len(t.Processes), len(t.Names))
}

func (p *Part) draw() pagePart {
	t := p.Timeline
	part := pagePart{Title: p.Title, Lines: p.Lines, Notes: t.AllNotes(), Notables: t.Notables()}
	part.Notables = part.Notables[max(len(part.Notables)-pageNotables, 0):]
	part.More = max(len(t.Names)-pageNames, 0)
	part.Axis = t.marks()
	for _, n := range t.Names[:min(len(t.Names), pageNames)] {
		name := pageName{Name: printable(n.Name), Kind: printable(n.Kind), Summary: n.Summary()}
		for _, r := range n.Rows {
			row := pageRow{Label: printable(r.Process)}
			first := max(len(r.Spans)-pageSpans, 0)
			if first > 0 {
				row.Bars = append(row.Bars, t.cutBar(r.Spans[first], len(r.Spans)))
			}
			for _, s := range r.Spans[first:] {
				row.Bars = append(row.Bars, t.bar(s))
			}
			name.Rows = append(name.Rows, row)
		}
		part.Names = append(part.Names, name)
	}
	return part
}

// bar draws a span.
func (t *Timeline) bar(s *Span) pageBar {
	class, end := s.What, s.End
	switch {
	case s.What == Stay:
		return t.stayBar(s)
	case s.End == Killed:
		class = "hold killed"
	case s.End == unknown:
		class = unknown
	case s.End == lost:
		class = "hold lost"
	case s.Failed(), s.What == Try:
		class = "refused"
	}
	if s.Why != "" {
		end += ": " + printable(s.Why)
	}
	text := fmt.Sprintf("%s, %s to %s (%s), %s", s.What, s.From.Format("15:04:05.000"), s.To.Format("15:04:05.000"),
		short(s.To.Sub(s.From)), end)
	left := t.place(s.From)
	return pageBar{Class: class, Left: round(left), Width: round(t.place(s.To) - left), Text: text}
}

// cutBar says that a row shows its latest spans only, of so many. first is the first one that it
// shows.
func (t *Timeline) cutBar(first *Span, of int) pageBar {
	text := fmt.Sprintf("not drawn: only the latest %d of %d are", pageSpans, of)
	return pageBar{Class: "cut", Width: round(t.place(first.From)), Text: text, Label: text}
}

// stayBar draws for how long a lock stays taken, although nobody holds it.
func (t *Timeline) stayBar(s *Span) pageBar {
	why := printable(s.Why)
	text := fmt.Sprintf("%s, %s to %s (%s)", why, s.From.Format("15:04:05.000"), s.To.Format("15:04:05.000"),
		short(s.To.Sub(s.From)))
	left := t.place(s.From)
	return pageBar{Class: s.What, Left: round(left), Width: round(t.place(s.To) - left), Text: text, Label: why}
}

// axisLength is how much time the axis of a page shows. It is a little more than the time of all
// spans, so that what happens at the end has room, and at least 1.
func (t *Timeline) axisLength() time.Duration {
	whole := t.End.Sub(t.Begin)
	return max(whole+whole/50, 1)
}

// steps are lengths between the marks of an axis that are round. Longer ones are whole days.
var steps = []time.Duration{
	time.Microsecond, 2 * time.Microsecond, 5 * time.Microsecond,
	10 * time.Microsecond, 20 * time.Microsecond, 50 * time.Microsecond,
	100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond,
	10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
}

const maxMarks = 10

// marks are the marks of the axis, at round times after the begin.
func (t *Timeline) marks() (all []pageMark) {
	const day = 24 * time.Hour
	whole := t.axisLength()
	step := day * (whole/(day*maxMarks) + 1)
	for _, s := range steps {
		if whole/s < maxMarks {
			step = s
			break
		}
	}
	for at := time.Duration(0); at < whole; at += step {
		left := 100 * float64(at) / float64(whole)
		if left > 95 {
			break // there is no room for its text
		}
		all = append(all, pageMark{round(left), markText(at)})
	}
	return all
}

// markText is a duration without zero units at its end: 2m, not 2m0s.
func markText(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// spans are all spans of a timeline.
func (t *Timeline) spans() iter.Seq[*Span] {
	return func(yield func(*Span) bool) {
		for _, n := range t.Names {
			for _, r := range n.Rows {
				for _, s := range r.Spans {
					if !yield(s) {
						return
					}
				}
			}
		}
	}
}

// place is a percentage of the axis.
func (t *Timeline) place(at time.Time) float64 {
	whole := t.axisLength()
	return min(max(100*float64(at.Sub(t.Begin))/float64(whole), 0), 100)
}

func round(f float64) float64 { return math.Round(f*100) / 100 }
