package timeline

import (
	_ "embed" // the template of the page
	"fmt"
	"html/template"
	"io"
	"math"
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
		Text        string
	}
	pageMark struct {
		Left float64
		Text string
	}
)

// Page writes timelines as a page of HTML, which needs no network and no script.
func Page(out io.Writer, title, subtitle string, parts ...Part) error {
	all := make([]pagePart, 0, len(parts))
	for _, p := range parts {
		all = append(all, p.draw())
	}
	return pageTemplate.Execute(out, map[string]any{
		"Title": title, "Subtitle": subtitle, "Style": look.CSS(), "Parts": all,
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
	const marks = 6
	for i := range marks {
		text := short(t.End.Sub(t.Begin) * time.Duration(i) / marks)
		part.Axis = append(part.Axis, pageMark{round(100 * float64(i) / marks), text})
	}
	for _, n := range t.Names[:min(len(t.Names), pageNames)] {
		name := pageName{Name: printable(n.Name), Kind: printable(n.Kind), Summary: n.Summary()}
		for _, r := range n.Rows {
			row := pageRow{Label: printable(r.Process)}
			for _, s := range r.Spans[max(len(r.Spans)-pageSpans, 0):] {
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
	return pageBar{class, round(left), round(t.place(s.To) - left), text}
}

// place is a percentage of the time.
func (t *Timeline) place(at time.Time) float64 {
	whole := max(t.End.Sub(t.Begin), 1)
	return min(max(100*float64(at.Sub(t.Begin))/float64(whole), 0), 100)
}

func round(f float64) float64 { return math.Round(f*100) / 100 }
