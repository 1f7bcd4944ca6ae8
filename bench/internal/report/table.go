package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/redlatch/redlatch/bench/internal/measure"
)

// Tables writes the report as plain text tables.
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

// Markdown returns the report as Markdown tables.
func (r *Report) Markdown() string {
	var b strings.Builder
	s := r.Setup
	fmt.Fprintf(&b, "%s, %d cores, %s. Redis %s, %s, go-redis %s. %s, took %s.\n",
		s.Machine, s.Cores, s.System, s.Redis, s.Go, s.GoRedis,
		s.Date.UTC().Format("2006-01-02 15:04 UTC"), duration(float64(s.Took)))
	fmt.Fprintf(&b, "%s.\n", r.versions())
	for _, w := range r.Workloads {
		b.WriteString(w.markdown())
	}
	return b.String()
}

// markdown returns the workload's heading and table.
func (w Workload) markdown() string {
	var b strings.Builder
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
	return b.String()
}

// versions lists the versions of the contenders, sorted.
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
		forked = ", one process per client"
	}
	return fmt.Sprintf("%s (median of %d rounds%s)", w.Title, w.Rounds, forked)
}

// lines returns the table with its header. The ratio is of the first metric.
func (w Workload) lines() [][]string {
	header := []string{"", "ratio of " + MetricOf(w.Metrics[0]).Title}
	for _, key := range w.Metrics {
		header = append(header, MetricOf(key).Title)
	}
	lines := [][]string{header}
	for _, row := range w.Rows {
		lines = append(lines, w.line(row))
	}
	return lines
}

func (w Workload) line(row Row) []string {
	line := []string{w.nameOf(row), w.ratioCell(row)}
	for _, key := range w.Metrics {
		cell := ""
		if v, ok := row.Values[key]; ok {
			cell = MetricOf(key).Format(v.Median)
		}
		line = append(line, cell)
	}
	return line
}

// nameOf returns the name of the row, with its network if the workload has rows on several.
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

// ratioCell returns the ratio of the first metric, or why there is none.
func (w Workload) ratioCell(row Row) string {
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

// notes returns the reasons behind skipped and bad rows, and other remarks.
func (w Workload) notes() []string {
	var notes []string
	for _, row := range w.Rows {
		for _, n := range []struct{ prefix, text string }{
			{"skipped: ", row.Skipped}, {"BROKE: ", row.Broke}, {"FAILED: ", row.Error}, {"", row.Note},
		} {
			if n.text != "" {
				notes = append(notes, w.nameOf(row)+": "+n.prefix+n.text)
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

// formatRatio rounds to two decimals, and large ratios to three digits: the spread of a ratio makes
// further digits meaningless.
func formatRatio(s measure.Spread) string {
	format := func(v float64) string {
		if v < 10 {
			return fmt.Sprintf("%.2f", v)
		}
		return number(v)
	}
	return fmt.Sprintf("%s (%s..%s)", format(s.Median), format(s.Min), format(s.Max))
}
