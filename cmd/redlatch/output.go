package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/names"
)

// wantsJSON reports whether args contain --json. It is separate from the parser because errors of
// the parser are printed as JSON, too.
func wantsJSON(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	for _, arg := range slices.Backward(args) {
		if arg == "--json" || arg == "-json" {
			return true
		}
		if value, ok := strings.CutPrefix(arg, "--json="); ok {
			on, err := strconv.ParseBool(value)
			return on && err == nil
		}
	}
	return false
}

// printJSON prints one line of JSON on standard output.
func printJSON(c *cli.Command, v any) error {
	out := json.NewEncoder(c.Root().Writer)
	out.SetEscapeHTML(false)
	return out.Encode(v)
}

// checkedWriter keeps the first error of w: output that is lost must not look like success.
type checkedWriter struct {
	w   io.Writer
	err error
}

func (c *checkedWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if err != nil { // a file's error looks like one of the network to exitCode
		err = failure("cannot write the output: %w", err)
		c.err = cmp.Or(c.err, err)
	}
	return n, err
}

// notes are lines for people on standard error, beside the error at the end. With --json they are
// objects.
type notes struct {
	out  io.Writer
	json bool
	all  bool // --verbose
}

func notesOf(c *cli.Command) notes {
	return notes{c.Root().ErrWriter, c.Bool("json"), c.Bool("verbose")}
}

func (n notes) note(event, format string, args ...any) {
	text := strings.TrimPrefix(fmt.Sprintf(format, args...), "redlatch: ")
	if n.json {
		_ = json.NewEncoder(n.out).Encode(struct {
			Event   string `json:"event"`
			Message string `json:"message"`
		}{event, text})
		return
	}
	fmt.Fprintln(n.out, "redlatch:", harmless(text))
}

// verbose is a note that only --verbose shows.
func (n notes) verbose(event, format string, args ...any) {
	if n.all {
		n.note(event, format, args...)
	}
}

// colours reports whether to use colours on w.
func colours(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(f)
}

// columnsOf returns how many columns w has; 0 if it is no terminal, or does not know.
func columnsOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		return columns(f)
	}
	return 0
}

// bold makes a line bold if w is a terminal.
func bold(w io.Writer, line string) string {
	if !colours(w) {
		return line
	}
	return "\x1b[1m" + line + "\x1b[0m"
}

// millis is a duration in JSON: whole milliseconds, or -1 for "no expiry".
func millis(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return d.Milliseconds()
}

// shown is a TTL for people.
func shown(d time.Duration) string {
	switch {
	case d < 0:
		return "none"
	case d < 10*time.Second:
		return d.Truncate(10 * time.Millisecond).String()
	}
	return d.Truncate(time.Second).String()
}

// plain is a name or an id for people.
func plain(s string) string { return names.Shown(s) }

// harmless is a text for people that may contain words of the server. What could do something to a
// terminal becomes a question mark.
func harmless(s string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// withExamples returns a description that ends with examples. A test runs them.
func withExamples(description string, examples ...string) string {
	heading := "Example:"
	if len(examples) > 1 {
		heading = "Examples:"
	}
	return description + "\n\n" + heading + "\n  " + strings.Join(examples, "\n  ")
}
