package scale

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// The layout of the picture, in pixels: plots in two columns.
const (
	plotWidth  = 400
	plotHeight = 220
	gapX       = 80
	gapY       = 76
	edge       = 64
	headHeight = 60
)

const style = `
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-size: 17px; font-weight: 600 } .head { font-weight: 600 }
.faint { fill: #59636e } .axis { stroke: #59636e; fill: none } .grid { stroke: #8c959f; stroke-opacity: .3 }
.model { fill: none; stroke-dasharray: 4 3; stroke-width: 1.5 } .dot { stroke: none }
.s0 { stroke: #2f81f7 } .d0 { fill: #2f81f7 } .s1 { stroke: #d18616 } .d1 { fill: #d18616 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .faint { fill: #9da7b3 } .axis { stroke: #9da7b3 }
}
`

// SVG returns a plot of each curve, on logarithmic axes: dots are measured, dashed lines are the
// model.
func (r *Report) SVG() string {
	var curves []string
	for _, c := range r.Checks {
		if !slices.Contains(curves, c.Curve) {
			curves = append(curves, c.Curve)
		}
	}
	rows := (len(curves) + 1) / 2
	width, height := 2*edge+2*plotWidth+gapX, headHeight+rows*(plotHeight+gapY)+20
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img"`+
		` aria-label="How the costs of redlatch grow">
<style>%s</style>
`, width, height, width, height, style)
	text(&b, 16, 24, "title", "How the costs of redlatch grow")
	text(&b, 16, 44, "faint", "Dots: measured. Dashed: the model. Both axes are logarithmic. "+
		r.Setup.Date.UTC().Format("2006-01-02")+".")
	for i, c := range r.Constants {
		x := width - 300 + 140*i
		fmt.Fprintf(&b, "<circle cx=\"%d\" cy=\"20\" r=\"4\" class=\"dot d%d\"/>\n", x, i)
		text(&b, x+10, 24, "", c.System)
	}
	for i, curve := range curves {
		x, y := edge+(i%2)*(plotWidth+gapX), headHeight+(i/2)*(plotHeight+gapY)+30
		r.plot(&b, curve, x, y)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func text(b *strings.Builder, x, y int, class, s string) {
	fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" class=\"%s\">%s</text>\n", x, y, class, html.EscapeString(s))
}

// plot draws one curve of all systems, with its top left corner at x, y.
func (r *Report) plot(b *strings.Builder, curve string, x, y int) {
	var checks []Check
	loX, hiX, loY, hiY := math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	for _, c := range r.Checks {
		if c.Curve == curve {
			checks = append(checks, c)
			loX, hiX = min(loX, float64(c.N)), max(hiX, float64(c.N))
			loY, hiY = min(loY, c.Measured, c.Model), max(hiY, c.Measured, c.Model)
		}
	}
	across := newAxis(loX, hiX, float64(x), float64(x+plotWidth))
	up := newAxis(loY, hiY, float64(y+plotHeight), float64(y))
	text(b, x, y-10, "head", fmt.Sprintf("%s (%s)", curve, checks[0].Unit))
	for _, v := range across.ticks() {
		fmt.Fprintf(b, "<path d=\"M%.1f %dv%d\" class=\"grid\"/>\n", across.at(v), y, plotHeight)
		text(b, int(across.at(v))-12, y+plotHeight+16, "faint", short(v))
	}
	for _, v := range up.ticks() {
		fmt.Fprintf(b, "<path d=\"M%d %.1fh%d\" class=\"grid\"/>\n", x, up.at(v), plotWidth)
		text(b, x-46, int(up.at(v))+4, "faint", short(v))
	}
	text(b, x+plotWidth-80, y+plotHeight+32, "faint", checks[0].What)
	fmt.Fprintf(b, "<path d=\"M%d %dv%dh%d\" class=\"axis\"/>\n", x, y, plotHeight, plotWidth)
	for i, system := range r.Constants {
		var line []string
		for _, c := range checks {
			if c.System != system.System {
				continue
			}
			line = append(line, fmt.Sprintf("%.1f,%.1f", across.at(float64(c.N)), up.at(c.Model)))
			fmt.Fprintf(b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" class=\"dot d%d\"/>\n",
				across.at(float64(c.N)), up.at(c.Measured), i)
		}
		fmt.Fprintf(b, "<polyline points=\"%s\" class=\"model s%d\"/>\n", strings.Join(line, " "), i)
	}
}

// axis maps values to pixels, by their logarithm. It begins and ends at powers of ten.
type axis struct{ lo, hi, from, to float64 }

func newAxis(lo, hi, from, to float64) axis {
	return axis{math.Floor(math.Log10(lo)), max(math.Ceil(math.Log10(hi)), math.Floor(math.Log10(lo))+1), from, to}
}

func (a axis) at(v float64) float64 {
	return a.from + (math.Log10(v)-a.lo)/(a.hi-a.lo)*(a.to-a.from)
}

func (a axis) ticks() (values []float64) {
	for e := a.lo; e <= a.hi; e++ {
		values = append(values, math.Pow(10, e))
	}
	return values
}

// short formats a power of ten.
func short(v float64) string {
	switch {
	case v >= 1e9:
		return fmt.Sprintf("%gG", v/1e9)
	case v >= 1e6:
		return fmt.Sprintf("%gM", v/1e6)
	case v >= 1e3:
		return fmt.Sprintf("%gk", v/1e3)
	}
	return fmt.Sprintf("%g", v)
}
