package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The layout, in pixels. The grid of a dashboard has 24 columns.
const (
	margin    = 12
	column    = 40
	row       = 24
	gap       = 8
	topHeight = 60
	fontWidth = 6
)

// The colors go with light and dark pages: the text follows the reader's color scheme.
const style = `
text { font: 11px system-ui, sans-serif; fill: #24292f }
.title { font-size: 16px; font-weight: 600 } .head { font-weight: 600 } .big { font-size: 26px; font-weight: 600 }
.faint { fill: #59636e } .grid { stroke: #8c959f; stroke-opacity: .35 }
.frame { fill: none; stroke: #8c959f; stroke-opacity: .5 } .fault { fill: #c2434c; fill-opacity: .12 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .faint { fill: #9da7b3 } }
`

var colors = []string{"#2f81f7", "#d18616", "#3fa45b", "#c2434c", "#8957e5", "#1b9aaa", "#8c959f"}

// canvas is where a picture is drawn, and what all of its panels share.
type canvas struct {
	strings.Builder
	from, to time.Time
	faults   []fault
}

// picture draws the panels as SVG.
func picture(panels []panel, from, to time.Time, faults []fault) string {
	c := &canvas{from: from, to: to, faults: faults}
	height := 0
	for i := range panels {
		g := panels[i].GridPos
		height = max(height, topHeight+(g.Y+g.H)*row+margin)
	}
	width := 2*margin + 24*column
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d"`+
		` role="img" aria-label="The dashboard of redlatch">`+"\n<style>%s</style>\n", width, height, width, height, style)
	c.text(margin, 24, "title", "The dashboard of redlatch, fed by a real run")
	var names []string
	for _, f := range faults {
		names = append(names, c.clock(f.from)+" "+f.name)
	}
	c.text(margin, 44, "faint", fmt.Sprintf("Two processes on one Redis, with a TTL of %v. Faults, in red: %s.",
		ttl, strings.Join(names, "; ")))
	for i := range panels {
		c.panel(&panels[i])
	}
	c.WriteString("</svg>\n")
	return c.String()
}

// text adds a line of text.
func (c *canvas) text(x, y int, class, text string) {
	fmt.Fprintf(c, "<text x=\"%d\" y=\"%d\" class=\"%s\">%s</text>\n", x, y, class, html.EscapeString(text))
}

// clock shows a time since the beginning.
func (c *canvas) clock(t time.Time) string {
	d := t.Sub(c.from).Round(time.Second)
	return fmt.Sprintf("%d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}

func (c *canvas) panel(p *panel) {
	g := p.GridPos
	x, y, w, h := margin+g.X*column, topHeight+g.Y*row, g.W*column-gap, g.H*row-gap
	fmt.Fprintf(c, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\" class=\"frame\"/>\n", x, y, w, h)
	c.text(x+8, y+17, "head", p.Title)
	unit := p.FieldConfig.Defaults.Unit
	if p.Type == "stat" {
		c.text(x+8, y+h-16, "big", latest(p.series, unit))
		return
	}
	c.plot(p, x+50, y+28, w-60, h-68)
	// The legend.
	at := x + 50
	for i, s := range p.series {
		fmt.Fprintf(c, "<rect x=\"%d\" y=\"%d\" width=\"10\" height=\"3\" fill=\"%s\"/>\n", at, y+h-12, color(i))
		c.text(at+14, y+h-8, "", s.name)
		at += 30 + fontWidth*len(s.name)
	}
}

// latest is the last value of a panel with one number.
func latest(all []series, unit string) string {
	if len(all) == 0 || len(all[0].points) == 0 {
		return "no data"
	}
	return format(all[0].points[len(all[0].points)-1].value, unit)
}

func color(i int) string { return colors[i%len(colors)] }

// plot draws the lines of a panel into a rectangle, with its axes.
func (c *canvas) plot(p *panel, x, y, w, h int) {
	top := scale(p.series)
	unit, custom := p.FieldConfig.Defaults.Unit, p.FieldConfig.Defaults.Custom
	// share is the place of a value between the axis and the top.
	share, ticks := func(v float64) float64 { return v / top }, []float64{0, top / 2, top}
	if custom.ScaleDistribution.Type == "log" {
		const bottom = .0001
		decades := math.Ceil(math.Log10(top / bottom))
		share = func(v float64) float64 { return math.Log10(max(v, bottom)/bottom) / decades }
		ticks = nil
		for i := range int(decades) + 1 {
			ticks = append(ticks, bottom*math.Pow10(i))
		}
	}
	atX := func(t time.Time) float64 {
		return float64(x) + float64(w)*float64(t.Sub(c.from))/float64(c.to.Sub(c.from))
	}
	atY := func(v float64) float64 { return float64(y+h) - float64(h)*share(v) }
	for _, f := range c.faults {
		fmt.Fprintf(c, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" class=\"fault\"/>\n",
			atX(f.from), y, max(atX(f.to)-atX(f.from), 2), h)
	}
	for _, tick := range ticks {
		v := int(atY(tick))
		fmt.Fprintf(c, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" class=\"grid\"/>\n", x, v, x+w, v)
		fmt.Fprintf(c, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" class=\"faint\">%s</text>\n",
			x-5, v+4, format(tick, unit))
	}
	for t := c.from; !t.After(c.to); t = t.Add(30 * time.Second) {
		fmt.Fprintf(c, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" class=\"faint\">%s</text>\n",
			atX(t), y+h+14, c.clock(t))
	}
	for i, s := range p.series {
		if custom.DrawStyle == "bars" {
			for _, point := range s.points {
				if point.value > 0 {
					fmt.Fprintf(c, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n",
						atX(point.at), atY(point.value), float64(w)/c.to.Sub(c.from).Seconds(),
						float64(y+h)-atY(point.value), color(i))
				}
			}
			continue
		}
		var path strings.Builder
		command := "M" // of the next point; a value that is no number interrupts the line
		for _, point := range s.points {
			if math.IsNaN(point.value) {
				command = "M"
				continue
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", command, atX(point.at), atY(point.value))
			command = "L"
		}
		fmt.Fprintf(c, "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.3\"/>\n", path.String(), color(i))
	}
}

// scale is the top of an axis: the largest value, rounded up to 1, 2 or 5 times a power of ten.
func scale(all []series) float64 {
	largest := 0.0
	for _, s := range all {
		for _, p := range s.points {
			if !math.IsNaN(p.value) {
				largest = max(largest, p.value)
			}
		}
	}
	if largest == 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(largest)))
	factors := []float64{1, 2, 5, 10}
	i := slices.IndexFunc(factors, func(f float64) bool { return f*power >= largest*.999 })
	return factors[max(i, 0)] * power
}

// format shows a value in a unit of Grafana's.
func format(v float64, unit string) string {
	number := func(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }
	switch {
	case math.IsNaN(v):
		return "no data"
	case unit == "percentunit":
		return number(v*100) + " %"
	case unit == "ops":
		return number(v) + "/s"
	case unit == "s" && v != 0 && v < .995:
		return number(v*1000) + " ms"
	case unit == "s":
		return number(v) + " s"
	default:
		return number(v)
	}
}
