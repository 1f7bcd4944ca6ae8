package report

import (
	"fmt"
	"os"
	"strings"
)

// The markers in a page, between which Fill puts the tables.
const (
	beginMark = "<!-- results -->"
	endMark   = "<!-- end of results -->"
)

// Fill replaces what stands between the markers in the file.
func Fill(path, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	before, rest, begins := strings.Cut(string(old), beginMark)
	_, after, ends := strings.Cut(rest, endMark)
	if !begins || !ends {
		return fmt.Errorf("report: %s has no %s and %s", path, beginMark, endMark)
	}
	page := before + beginMark + "\n\n" + strings.TrimSpace(text) + "\n\n" + endMark + after
	if err := os.WriteFile(path, []byte(page), 0o600); err != nil { //nolint:gosec // the caller names the file
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
