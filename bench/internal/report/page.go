package report

import (
	"fmt"
	"os"
	"strings"
)

// The markers in a page. Fill replaces the text between them.
const (
	beginMarker = "<!-- results -->"
	endMarker   = "<!-- end of results -->"
)

// Fill replaces the text between the markers in the file. It changes nothing if a marker is
// missing.
func Fill(path, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	before, rest, hasBegin := strings.Cut(string(old), beginMarker)
	_, after, hasEnd := strings.Cut(rest, endMarker)
	if !hasBegin || !hasEnd {
		return fmt.Errorf("report: %s does not contain %s and %s", path, beginMarker, endMarker)
	}
	page := before + beginMarker + "\n\n" + strings.TrimSpace(text) + "\n\n" + endMarker + after
	if err := os.WriteFile(path, []byte(page), 0o600); err != nil { //nolint:gosec // the caller names the file
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
