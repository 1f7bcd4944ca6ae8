package torture

import (
	"cmp"
	_ "embed" // the template of the page
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redlatch/redlatch/internal/look"
)

// pageRounds is how many rounds without a violation a page shows: the latest ones. A browser can
// draw so many.
const pageRounds = 40

//go:embed page.html
var pageSource string

var pageTemplate = template.Must(template.New("page").Parse(pageSource))

// pageRound is the picture of a round. Positions and widths are percentages of its time.
type pageRound struct {
	Seed       uint64
	Theme      string
	Operations int
	Lost       int
	Violations int
	Second     float64 // the width of a second
	Seconds    []pageMark
	Faults     []pageRow
	Names      []pageName
}

type pageName struct {
	Name    string
	Clients []pageRow
}

// pageRow is a row of a picture. Bars that overlap are in tracks of their own.
type pageRow struct {
	Label  string
	Shades []pageBar // faults that may disturb the row
	Tracks [][]pageBar
}

type pageBar struct {
	Class       string
	Left, Width float64
	Text        string
}

type pageMark struct {
	Left float64
	Text string
}

// Made says which program made a page, and when. The zero value says nothing.
type Made struct {
	Version string
	At      time.Time
}

// Verdict says in a sentence what came out.
func (r *Result) Verdict() string {
	switch {
	case len(r.Violations) > 0:
		return fmt.Sprintf("Failed: a promise was broken. Violations: %d.", len(r.Violations))
	case len(r.Undecided) > 0:
		return fmt.Sprintf("Passed: no promise was broken, but the history of some names could not be decided: %d.",
			len(r.Undecided))
	case r.Total() == 0:
		return "Nothing was tested: there was no operation."
	default:
		return "Passed: no promise was broken."
	}
}

// Page writes a page of HTML with the timelines of the faults, the clients and their holds. It
// needs no network and no script. The run must have had Config.Pictures.
func (r *Result) Page(out io.Writer, made Made) error {
	var report strings.Builder
	if err := r.Print(&report); err != nil {
		return err
	}
	rounds := slices.Clone(r.pictures)
	slices.SortFunc(rounds, func(a, b *pageRound) int { return cmp.Compare(a.Seed, b.Seed) })
	open := -1 // the first round, if none has a violation
	if !slices.ContainsFunc(rounds, func(p *pageRound) bool { return p.Violations > 0 }) {
		open = 0
	}
	return pageTemplate.Execute(out, map[string]any{
		"Result": r, "Report": report.String(), "Rounds": rounds, "Open": open, "Elapsed": r.Elapsed.Round(time.Second),
		"Made": made, "Style": look.CSS(),
	})
}

// keepPicture adds the picture of a round. Of the rounds without a violation only the latest stay.
func (r *Result) keepPicture(p *pageRound) {
	r.pictures = append(r.pictures, p)
	clean := func(p *pageRound) bool { return p.Violations == 0 }
	count := 0
	for _, p := range r.pictures {
		if clean(p) {
			count++
		}
	}
	if count > pageRounds {
		oldest := slices.IndexFunc(r.pictures, clean)
		r.pictures = slices.Delete(r.pictures, oldest, oldest+1)
	}
}

// picture draws a history.
func (h *history) picture(seed uint64, t theme, p pace, violations []Violation) *pageRound {
	round := &pageRound{
		Seed: seed, Theme: t.describe(p), Operations: len(h.ops), Violations: len(violations),
		Second: percent(h.place(h.begin + int64(time.Second))),
	}
	for s := h.begin; s < h.end; s += int64(time.Second) {
		text := fmt.Sprintf("%d s", (s-h.begin)/int64(time.Second))
		round.Seconds = append(round.Seconds, pageMark{percent(h.place(s)), text})
	}
	round.Faults = h.faultRows()
	for _, name := range slices.Sorted(maps.Keys(h.names)) {
		n := pageName{Name: strings.TrimPrefix(name, h.tag+":")}
		clients := map[int][]pageBar{}
		for _, o := range h.names[name] {
			if o.ended != nil && o.ended.Outcome == outcomeLost && name == o.call.Names[0] {
				round.Lost++
			}
			clients[o.process] = append(clients[o.process], h.bars(o)...)
		}
		for _, process := range slices.Sorted(maps.Keys(clients)) {
			n.Clients = append(n.Clients, pageRow{
				Label: fmt.Sprintf("client %d", process), Shades: h.shades(process, name), Tracks: tracks(clients[process]),
			})
		}
		round.Names = append(round.Names, n)
	}
	return round
}

// describe says in words what a round injects.
func (t theme) describe(p pace) string {
	if len(t) == 0 {
		return "no faults, " + string(p)
	}
	var names []string
	for _, f := range t {
		names = append(names, f.name)
	}
	return strings.Join(names, " and ")
}

// faultRows has a row for each fault, and for each client that it hit.
func (h *history) faultRows() (rows []pageRow) {
	bars := map[string][]pageBar{}
	for i := range h.windows {
		w := &h.windows[i]
		label := w.fault
		if w.process >= 0 {
			label += fmt.Sprintf(", client %d", w.process)
		}
		class := "fault"
		if w.isStall() {
			class = "stall"
		}
		text := fmt.Sprintf("%s, %s to %s", label, h.seconds(w.begin), h.seconds(w.end))
		if len(w.names) > 0 {
			text += ", " + strings.ReplaceAll(strings.Join(w.names, ", "), h.tag+":", "")
		}
		bars[label] = append(bars[label], h.bar(class, w.begin, w.end, text))
	}
	for _, label := range slices.Sorted(maps.Keys(bars)) {
		rows = append(rows, pageRow{Label: label, Tracks: tracks(bars[label])})
	}
	return rows
}

// shades are the faults that may disturb what a process does with a name.
func (h *history) shades(process int, name string) (out []pageBar) {
	for i := range h.windows {
		if w := &h.windows[i]; w.disturbs(process, name) {
			out = append(out, h.bar("shade", w.begin, w.end, w.fault))
		}
	}
	return out
}

// bars draws an operation: how long a call waited, and how long its hold was valid.
func (h *history) bars(o *op) (out []pageBar) {
	text := fmt.Sprintf("%s by goroutine %d, %s to %s: %s", o.call.Do, o.call.Session, h.seconds(o.call.At),
		h.seconds(o.returned()), o.outcome())
	if o.ret != nil && o.ret.Err != "" {
		text += ", " + o.ret.Err
	}
	end := min(o.returned(), o.died, h.end)
	switch {
	case o.call.Do == opAcquire || o.call.Do == opAwait:
		class := "wait"
		switch {
		case o.outcome() == outcomeUnknown:
			class = "unknown"
		case o.outcome() != outcomeOK:
			class = "refused"
		}
		out = append(out, h.bar(class, o.call.At, end, text))
	case o.takesOver():
		if o.call.Target != "" {
			text += ", of " + o.call.Target
		}
		out = append(out, h.bar("takeover", o.call.At, end, text))
	}
	if !o.holds() {
		return out
	}
	class := "hold"
	if o.root != o {
		class = "nested"
	}
	until := h.drawnEnd(o)
	held := fmt.Sprintf("%s, %s to %s", class, h.seconds(o.ret.At), h.seconds(until))
	if o.ret.ID != "" {
		held += ", id " + o.ret.ID
	}
	if o.ret.Token != 0 {
		held += fmt.Sprintf(", token %d", o.ret.Token)
	}
	if o.ended != nil && o.ended.Outcome == outcomeLost {
		class += " lost"
		held += ", lost: " + o.ended.Reason
	}
	return append(out, h.bar(class, o.ret.At, until, held))
}

// drawnEnd is when a hold ended for its holder. One that was detached has none: it ended when it
// was taken over.
func (h *history) drawnEnd(o *op) int64 {
	end := min(o.claimEnd(), h.end)
	if o.detached {
		for _, t := range h.takeovers(o, o.ret.At, end) {
			end = min(end, max(o.ret.At, t.returned()))
		}
	}
	return end
}

// tracks puts bars into as few tracks as there can be, so that none overlaps another one of its
// track.
func tracks(bars []pageBar) (out [][]pageBar) {
	slices.SortStableFunc(bars, func(a, b pageBar) int { return cmp.Compare(a.Left, b.Left) })
next:
	for _, b := range bars {
		for i, track := range out {
			if last := track[len(track)-1]; last.Left+last.Width <= b.Left {
				out[i] = append(track, b)
				continue next
			}
		}
		out = append(out, []pageBar{b})
	}
	return out
}

func (h *history) bar(class string, begin, end int64, text string) pageBar {
	begin = min(max(begin, h.begin), h.end)
	end = min(max(end, begin), h.end)
	return pageBar{Class: class, Left: percent(h.place(begin)), Width: percent(h.place(end) - h.place(begin)), Text: text}
}

// place is where an instant is in the round, in hundredths of a percent of its time.
func (h *history) place(at int64) int64 { return 10_000 * (at - h.begin) / (h.end - h.begin) }

func percent(hundredths int64) float64 { return float64(hundredths) / 100 }

// seconds says when an instant was, since the beginning of the round.
func (h *history) seconds(at int64) string {
	if at == never || at == 0 {
		return "never"
	}
	return fmt.Sprintf("%.3f s", float64(at-h.begin)/float64(time.Second))
}
