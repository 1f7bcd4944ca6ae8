package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/urfave/cli/v3"
)

// helpCommand shows the help of a command, such as "help semaphore init".
func helpCommand() *cli.Command {
	return &cli.Command{
		Name: "help", Usage: "show the help of a command", ArgsUsage: "[COMMAND...]",
		Description: withExamples("Shows the same as COMMAND --help.", "redlatch help run"),
		Action: func(ctx context.Context, c *cli.Command) error {
			parent := c.Root()
			words := c.Args().Slice()
			if len(words) == 0 {
				return cli.ShowAppHelp(parent)
			}
			for _, word := range words[:len(words)-1] {
				next := parent.Command(word)
				if next == nil {
					return noCommand(parent, word)
				}
				parent = next
			}
			last := words[len(words)-1]
			if parent.Command(last) == nil {
				return noCommand(parent, last)
			}
			return cli.ShowCommandHelp(ctx, parent, last)
		},
	}
}

// noCommand is the error for an unknown command below parent. It names the nearest one.
func noCommand(parent *cli.Command, name string) error {
	return badUsage("no command %q%s (see %s --help)", name, suggestion(parent, name), parent.FullName())
}

// suggestion asks whether the user meant the command below parent that is nearest to name; "" if
// none is near.
func suggestion(parent *cli.Command, name string) string {
	nearest, least := "", 3 // so many typing errors, or more, are another word
	for _, c := range parent.Commands {
		if d := distance(name, c.Name); d < least && !c.Hidden {
			nearest, least = c.Name, d
		}
	}
	if nearest == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", nearest)
}

// distance is the number of letters to insert, delete, replace or swap with the next one that makes
// b of a.
func distance(a, b string) int {
	before, last, row := []int(nil), []int(nil), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j]+cost, last[j+1]+1, row[j]+1)
			hasNeighbours := i > 0 && j > 0
			if hasNeighbours && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}

// helpWidth is the width of help: a terminal of the usual size breaks no line of it in the middle
// of a word.
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

// filled fills lines up to helpWidth. Lines with the same indentation are a paragraph. In a list,
// further lines begin below the text of the first. Examples stay as they are, so that they can be
// copied.
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
