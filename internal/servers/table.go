package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// row is a line of the table of servers.
type row struct {
	server  *server
	date    string
	results []result // by topology
}

func (r row) passed() bool {
	return !slices.ContainsFunc(r.results, func(got result) bool { return !got.passed() })
}

func (r row) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "| %s | %s |", r.server, r.server.from)
	for _, got := range r.results {
		fmt.Fprintf(&text, " %s |", got)
	}
	fmt.Fprintf(&text, " %s |\n", r.date)
	return text.String()
}

// The table is between these markers in the documentation.
const (
	tableBegins = "<!-- servers -->\n"
	tableEnds   = "<!-- /servers -->"
)

// writeTable writes a row into the table in a file. The other rows stay.
func writeTable(file string, r row) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	head, rest, begins := bytes.Cut(page, []byte(tableBegins))
	old, tail, ends := bytes.Cut(rest, []byte(tableEnds))
	if !begins || !ends {
		return fmt.Errorf("%s lacks %q and %q", file, tableBegins, tableEnds)
	}
	page = slices.Concat(head, []byte(tableBegins), []byte(merge(string(old), r)), []byte(tableEnds), tail)
	return os.WriteFile(file, page, 0o644)
}

// merge returns the table with a new row, which replaces that of the same server and version.
func merge(old string, r row) string {
	header := fmt.Sprintf("| server | from | %s | tested |\n", strings.Join(topologies, " | "))
	byServer := map[string]string{}
	for line := range strings.Lines(old) {
		if strings.HasPrefix(line, "| ") && line != header {
			byServer[strings.TrimSpace(strings.Split(line, "|")[1])] = line
		}
	}
	byServer[r.server.String()] = r.String()
	var text strings.Builder
	text.WriteString(header)
	fmt.Fprintf(&text, "|%s\n", strings.Repeat("---|", len(topologies)+3))
	for _, name := range slices.Sorted(maps.Keys(byServer)) {
		text.WriteString(byServer[name])
	}
	return text.String()
}
