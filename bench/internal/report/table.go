package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/redlatch/redlatch/bench/internal/measure"
)

// Tables writes the report for a terminal.
func (r *Report) Tables(out io.Writer) error {
	for _, w := range r.Workloads {
		fmt.Fprintf(out, "\n%s  %s\n", w.ID, w.caption())
		tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		for _, line := range w.lines() {
			fmt.Fprintln(tw, strings.Join(line, "\t"))
		}
		if err := tw.Flush(); err != nil {
			return fmt.Errorf("report: %w", err)
		}
		for _, note := range w.notes() {
			fmt.Fprintln(out, note)
		}
	}
	return nil
}

// Markdown writes the report's tables as Markdown.
func (r *Report) Markdown() string {
	var b strings.Builder
	s := r.Setup
	fmt.Fprintf(&b, "%s, %d cores, %s. Redis %s, %s, go-redis %s. %s, in %s.\n", s.Machine, s.Cores, s.System, s.Redis, s.Go, s.GoRedis,
		s.Date.UTC().Format("2006-01-02 15:04 UTC"), span(float64(s.Took)))
	fmt.Fprintf(&b, "%s.\n", r.versions())
	for _, w := range r.Workloads {
		fmt.Fprintf(&b, "\n### %s: %s\n\n", w.ID, w.caption())
		for i, line := range w.lines() {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(line, " | "))
			if i == 0 {
				fmt.Fprintf(&b, "|---|%s\n", strings.Repeat("---:|", len(line)-1))
			}
		}
		for _, note := range w.notes() {
			fmt.Fprintf(&b, "\n%s\n", note)
		}
	}
	return b.String()
}

func (r *Report) versions() string {
	var all []string
	for family, version := range r.Setup.Lib {
		all = append(all, strings.TrimSpace(family+" "+version))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func (w Workload) caption() string {
	forked := ""
	if w.Forked {
		forked = ", a process for each client"
	}
	return fmt.Sprintf("%s (median of %d rounds%s)", w.Title, w.Rounds, forked)
}

// lines is the table with its head. The ratio is that of the first metric.
func (w Workload) lines() [][]string {
	head := []string{"", "ratio of " + MetricOf(w.Metrics[0]).Title}
	for _, key := range w.Metrics {
		head = append(head, MetricOf(key).Title)
	}
	lines := [][]string{head}
	for _, row := range w.Rows {
		lines = append(lines, w.line(row))
	}
	return lines
}

func (w Workload) line(row Row) []string {
	line := []string{w.nameOf(row), w.verdict(row)}
	for _, key := range w.Metrics {
		cell := ""
		if v, ok := row.Values[key]; ok {
			cell = MetricOf(key).Format(v.Median)
		}
		line = append(line, cell)
	}
	return line
}

// nameOf has the network where that is not clear.
func (w Workload) nameOf(row Row) string {
	if w.networks() > 1 {
		return row.Name + " (" + row.Network + ")"
	}
	return row.Name
}

func (w Workload) networks() int {
	seen := map[string]bool{}
	for _, row := range w.Rows {
		seen[row.Network] = true
	}
	return len(seen)
}

// verdict is the ratio, or why there is none to be trusted.
func (w Workload) verdict(row Row) string {
	switch {
	case row.Skipped != "":
		return "skipped"
	case row.Broke != "":
		return "BROKE"
	case row.Error != "":
		return "FAILED"
	default:
		return row.ratio(w.Metrics[0])
	}
}

// notes tell what does not fit into a cell.
func (w Workload) notes() []string {
	var notes []string
	for _, row := range w.Rows {
		for _, n := range []struct{ what, text string }{{"skipped: ", row.Skipped}, {"BROKE: ", row.Broke}, {"FAILED: ", row.Error}, {"", row.Note}} {
			if n.text != "" {
				notes = append(notes, w.nameOf(row)+": "+n.what+n.text)
			}
		}
	}
	return notes
}

func (r Row) ratio(key string) string {
	s, ok := r.Ratios[key]
	if !ok || r.Base == r.Name {
		return "1"
	}
	return formatRatio(s)
}

// formatRatio keeps two digits behind the point: a ratio has no more to say.
func formatRatio(s measure.Spread) string {
	return fmt.Sprintf("%.2f (%.2f..%.2f)", s.Median, s.Min, s.Max)
}
