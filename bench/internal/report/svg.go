package report

import (
	"fmt"
	"html"
	"slices"
	"strings"

	"github.com/redlatch/redlatch/bench/internal/measure"
)

// The layout of the picture, in pixels.
const (
	width        = 960
	margin       = 16
	nameWidth    = 230
	unitWidth    = 190 // width of a bar that equals its base
	barMax       = 2   // longer bars are cut to barMax*unitWidth, and have a break mark
	breakWidth   = 8   // of the gap in such a bar
	breakEnd     = 24  // length of the bar behind the gap
	rowHeight    = 20
	headerHeight = 34
	topHeight    = 74
	textColumn   = margin + nameWidth + barMax*unitWidth + 12
)

// The picture has no background. So the bars use medium tones, and the text follows the reader's
// color scheme.
const style = `
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-size: 17px; font-weight: 600 } .head { font-weight: 600 }
.faint { fill: #59636e } .line { stroke: #59636e }
.go-redis { fill: #8c959f } .redlatch { fill: #2f81f7 } .peer { fill: #d18616 } .redisson { fill: #c2434c }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .faint { fill: #9da7b3 } .line { stroke: #9da7b3 }
}
`

// pictureTitle is the title and the accessible name of the picture.
const pictureTitle = "redlatch and its peers, compared with go-redis alone"

// SVG returns a bar chart. For each workload it shows the first metric of each row relative to its
// base.
func (r *Report) SVG() string {
	var b strings.Builder
	y := topHeight
	for _, w := range r.Workloads {
		y = w.draw(&b, y)
	}
	s := r.Setup
	head := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d"`+
		` role="img" aria-label="%s">
<style>%s</style>
`, width, y+margin, width, y+margin, pictureTitle, style)
	var top strings.Builder
	label(&top, margin, 24, "title", pictureTitle)
	label(&top, margin, 44, "faint",
		"1 is go-redis alone, without renewal, loss detection or retries. Longer is better; a bar with a break is cut. "+
			"Median (min..max) of the rounds. "+s.Date.UTC().Format("2006-01-02")+".")
	label(&top, margin, 60, "faint", fmt.Sprintf("%s. Redis %s, %s, go-redis %s, %d cores.",
		r.versions(), s.Redis, s.Go, s.GoRedis, s.Cores))
	return head + top.String() + b.String() + "</svg>\n"
}

// label adds a line of text.
func label(b *strings.Builder, x, y int, class, text string) {
	fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" class=\"%s\">%s</text>\n", x, y, class, html.EscapeString(text))
}

// draw adds a workload below y. It returns the y where the workload ends.
func (w Workload) draw(b *strings.Builder, y int) int {
	key := w.Metrics[0]
	title, _, _ := strings.Cut(w.Title, ";")
	label(b, margin, y+headerHeight-14, "head", fmt.Sprintf("%s  %s (%s)", w.ID, title, MetricOf(key).Title))
	y += headerHeight - 6
	top := y
	for _, row := range w.Rows {
		if row.Skipped != "" {
			continue
		}
		w.bar(b, row, key, y)
		y += rowHeight
	}
	x := margin + nameWidth + unitWidth
	fmt.Fprintf(b, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" class=\"line\" stroke-dasharray=\"2 3\"/>\n",
		x, top-2, x, y)
	return y
}

// bar adds a row.
func (w Workload) bar(b *strings.Builder, row Row, key string, y int) {
	label(b, margin, y+14, "", w.nameOf(row))
	x := margin + nameWidth
	if row.Bad() {
		label(b, textColumn, y+14, "", w.ratioCell(row))
		return
	}
	performance := row.performance(key)
	length := int(min(performance.Median, barMax)*unitWidth + 0.5)
	if performance.Median > barMax {
		brokenBar(b, x, y, length, barClass(row))
	} else {
		rectangle(b, x, y, max(length, 1), barClass(row))
	}
	text := MetricOf(key).Format(row.Values[key].Median)
	if row.Name != row.Base {
		text = formatRatio(performance) + "   " + text
	}
	label(b, textColumn, y+14, "", text)
}

// rectangle adds a bar without a break.
func rectangle(b *strings.Builder, x, y, length int, class string) {
	fmt.Fprintf(b, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"2\" class=\"%s\"/>\n",
		x, y+3, length, rowHeight-6, class)
}

// brokenBar adds a bar that is cut: two slanted lines in a gap show that it is longer than drawn.
func brokenBar(b *strings.Builder, x, y, length int, class string) {
	gap := x + length - breakEnd - breakWidth
	rectangle(b, x, y, gap-x, class)
	rectangle(b, gap+breakWidth, y, breakEnd, class)
	for _, at := range []int{gap, gap + breakWidth} {
		fmt.Fprintf(b, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" class=\"line break\"/>\n",
			at-2, y+rowHeight-1, at+2, y+1)
	}
}

// performance returns the ratio to the base, inverted if less is better: more is always better, and
// 1 equals the base.
func (r Row) performance(key string) measure.Spread {
	s, ok := r.Ratios[key]
	switch {
	case !ok:
		return measure.Spread{Median: 1, Min: 1, Max: 1}
	case MetricOf(key).LessIsBetter() && s.Min > 0:
		return measure.Spread{Median: 1 / s.Median, Min: 1 / s.Max, Max: 1 / s.Min}
	default:
		return s
	}
}

// barClass returns the CSS class of a bar.
func barClass(row Row) string {
	known := []string{"go-redis", "redlatch", "redisson"}
	if slices.Contains(known, row.Family) {
		return row.Family
	}
	return "peer"
}
