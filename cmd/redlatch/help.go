package main

import (
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/urfave/cli/v3"
)

// helpWidth is the width of help: a terminal of the usual size breaks no line of it in the middle of a word.
const helpWidth = 80

func init() { cli.HelpPrinter = printHelp }

// printHelp prints help as the cli package does, but fills lines up to helpWidth.
func printHelp(out io.Writer, template string, data any) {
	var text strings.Builder
	cli.DefaultPrintHelp(&text, template, data)
	_, _ = io.WriteString(out, filled(text.String()))
}

// firstColumn is the name at the beginning of a line of a list, up to its text.
var firstColumn = regexp.MustCompile(`^ +\S+(?: \S+)*?  +`)

// filled fills lines up to helpWidth. Lines with the same indentation are a paragraph. In a list, further lines begin
// below the text of the first. Examples stay as they are, so that they can be copied.
func filled(text string) string {
	var out strings.Builder
	var words []string
	first, indent := "", -1 // of the paragraph: what its first line begins with, and the indentation of the others
	flush := func() {
		if words == nil {
			return
		}
		line := first
		for i, word := range words {
			switch {
			case i == 0:
				line += word
			case utf8.RuneCountInString(line+" "+word) > helpWidth:
				out.WriteString(line + "\n")
				line = strings.Repeat(" ", indent) + word
			default:
				line += " " + word
			}
		}
		out.WriteString(line + "\n")
		words, indent = nil, -1
	}
	inExamples := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		trimmed := strings.TrimLeft(line, " ")
		switch {
		case trimmed == "":
			inExamples = false
		case strings.HasPrefix(trimmed, "Example"):
			flush()
			inExamples = true
		}
		if trimmed == "" || inExamples {
			flush()
			out.WriteString(line + "\n")
			continue
		}
		column := firstColumn.FindString(line)
		at := len(line) - len(trimmed)
		if column != "" || at != indent || at == 0 {
			flush()
			first, indent = column, len(column)
			if column == "" {
				first, indent = line[:at], at
			}
		}
		words = append(words, strings.Fields(line[len(column):])...)
	}
	flush()
	return out.String()
}
