// Package readme runs the commands of examples/README.md, for the tests of the examples.
package readme

import (
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Command is a command of the page.
type Command struct {
	Line   string
	Output string // the block after the command; "" if there is none
}

// Commands returns the commands of the page at path, in their order.
func Commands(t testing.TB, path string) []Command {
	t.Helper()
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	var commands []Command
	for _, block := range strings.Split(string(page), "\n```sh\n")[1:] {
		lines, rest, _ := strings.Cut(block, "```\n")
		for line := range strings.Lines(lines) {
			commands = append(commands, Command{Line: strings.TrimSpace(line)})
		}
		if output, found := strings.CutPrefix(rest, "\n```text\n"); found {
			commands[len(commands)-1].Output, _, _ = strings.Cut(output, "```\n")
		}
	}
	return commands
}

// Shell prepares a line of shell, to be run in dir. Under the race detector, go uses it too.
func Shell(t testing.TB, dir, line string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.Dir = dir
	if raceDetector() {
		cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -race")
	}
	return cmd
}

// Check runs a line in dir, and compares its output with what the page shows. Numbers may differ.
func Check(t testing.TB, dir, line, want string) {
	t.Helper()
	output, err := Shell(t, dir, line).CombinedOutput()
	require.NoError(t, err, "%s\n%s", line, output)
	require.Equal(t, WithoutNumbers(want), WithoutNumbers(string(output)), "%s\n%s", line, output)
}

var number = regexp.MustCompile(`\d+`)

// WithoutNumbers replaces each number by N.
func WithoutNumbers(text string) string { return number.ReplaceAllString(text, "N") }

// ImportsPublicPackagesOnly checks that a reader can copy the file: it imports nothing that only
// this module may use.
func ImportsPublicPackagesOnly(t testing.TB, file string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	require.NoError(t, err)
	for _, i := range parsed.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		require.NoError(t, err)
		require.NotContains(t, strings.Split(path, "/"), "internal", "%s imports %s", file, path)
	}
}

func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
