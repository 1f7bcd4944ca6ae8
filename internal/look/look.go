// Package look is the common look of the pages that the command makes: of torture, of locks, of a timeline, and of the
// demo.
package look

import (
	_ "embed" // the style
	"html/template"
)

//go:embed look.css
var text string

// CSS returns the style for a template.
func CSS() template.CSS { return template.CSS(text) } //nolint:gosec // it is our own

// Text returns the style.
func Text() string { return text }
