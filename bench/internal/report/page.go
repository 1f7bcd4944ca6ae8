package report

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// The markers in a page. Fill replaces the text between them.
//
// A begin marker may name workloads: "<!-- results of W1 W2 -->". Their tables are written there. A
// begin marker without names gets the description of the run, and all other tables.
const (
	beginMarker = "<!-- results -->"
	endMarker   = "<!-- end of results -->"
)

// section matches a pair of markers and the text between them.
var section = regexp.MustCompile(`(?s)(<!-- results(?: of ([\w ]+))? -->)(.*?)` + endMarker)

// Fill writes the tables between the markers in the file. It changes nothing if the page has no
// markers, or if they name a workload without results.
func (r *Report) Fill(path string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	page, err := r.fill(string(old))
	if err != nil {
		return fmt.Errorf("report: %s: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(page), 0o600); err != nil { //nolint:gosec // the caller names the file
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

func (r *Report) fill(page string) (string, error) {
	sections := section.FindAllStringSubmatch(page, -1)
	if len(sections) == 0 || len(sections) != strings.Count(page, endMarker) ||
		slices.ContainsFunc(sections, func(s []string) bool { return strings.Contains(s[3], "<!-- results") }) {
		return "", fmt.Errorf("no pairs of %s and %s", beginMarker, endMarker)
	}
	rest := *r // without the workloads that a section names
	rest.Workloads = slices.Clone(r.Workloads)
	texts := make([]string, len(sections))
	for i, s := range sections {
		for id := range strings.FieldsSeq(s[2]) {
			at := slices.IndexFunc(rest.Workloads, func(w Workload) bool { return w.ID == id })
			if at < 0 {
				return "", fmt.Errorf("%s: no results of %s, or two sections name it", s[1], id)
			}
			texts[i] += rest.Workloads[at].markdown()
			rest.Workloads = slices.Delete(rest.Workloads, at, at+1)
		}
	}
	for i, s := range sections {
		if s[2] == "" {
			texts[i] = rest.Markdown()
		}
	}
	next := 0
	return section.ReplaceAllStringFunc(page, func(string) string {
		text := sections[next][1] + "\n\n" + strings.TrimSpace(texts[next]) + "\n\n" + endMarker
		next++
		return text
	}), nil
}
