package examples_test

import (
	"bufio"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/examples/internal/readme"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/interop/redisson"
)

func TestMain(m *testing.M) {
	logging.Disable()
	os.Exit(redistest.Main(m))
}

const (
	root      = ".."
	anyServer = "redis://localhost:6379" // the page's; the tests replace it by their own
	goJava    = "go run ./examples/java --redis " + anyServer
	mvnJava   = "mvn -q -f examples/java compile exec:java -Dexec.args=" + anyServer
	goSqlite  = "go run -C examples/sqlite ." // its own module tests it
)

// oneProgram stands for all programs of the page, unless all tests run: linking a program takes
// longer than running it.
const oneProgram = "go run ./examples/leader"

// The commands of the page print what the page shows, and those without a server do so on a real
// one, too.
func TestCommandsOfThePage(t *testing.T) {
	t.Parallel()
	outputs, tested := map[string]string{}, map[string]bool{goJava: true, mvnJava: true, goSqlite: true}
	commands := readme.Commands(t, "README.md")
	for _, c := range commands {
		if c.Output == "" || c.Line == goSqlite {
			continue
		}
		tested[c.Line], tested[c.Line+" --redis "+anyServer] = true, true
		if !redistest.Full() && c.Line != oneProgram {
			continue
		}
		outputs[c.Line] = c.Output
		if !strings.Contains(c.Line, anyServer) {
			outputs[c.Line+" --redis "+anyServer] = c.Output
		}
	}
	programs := build(t, slices.Collect(maps.Keys(outputs)))
	for line, output := range outputs {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			line := programs.Replace(line)
			if strings.Contains(line, anyServer) {
				line = strings.ReplaceAll(line, anyServer, "redis://"+redistest.Redis(t).Addr())
			}
			readme.Check(t, root, line, output)
		})
	}
	for _, c := range commands {
		require.True(t, tested[c.Line], "no test runs %q", c.Line)
	}
}

// build builds the programs that lines of the page run, all by one command: go run would link a
// program once for each line. It returns what replaces "go run <program>" in a line.
func build(t testing.TB, lines []string) *strings.Replacer {
	t.Helper()
	dir := t.TempDir()
	command := "go build -ldflags='-s -w' -o " + dir + "/"
	var replace []string
	for _, line := range lines {
		program, found := strings.CutPrefix(line, "go run ")
		require.True(t, found, line)
		program, _, _ = strings.Cut(program, " ")
		command += " " + program
		replace = append(replace, "go run "+program, filepath.Join(dir, filepath.Base(program)))
	}
	output, err := readme.Shell(t, root, command).CombinedOutput()
	require.NoError(t, err, "%s", output)
	return strings.NewReplacer(replace...)
}

// Each program finds that no deposit of the other one was lost.
func TestGoAndJavaShareALock(t *testing.T) {
	t.Parallel()
	if !redistest.Required(t, redistest.NeedRedisson) {
		redistest.NeedFull(t, "Java")
	}
	for _, command := range []string{"mvn", "java"} {
		if _, err := exec.LookPath(command); err != nil {
			redistest.Missing(t, redistest.NeedRedisson, err.Error())
		}
	}
	url := "redis://" + redistest.Redis(t).Addr()
	unlock, err := redisson.LockMaven()
	require.NoError(t, err)
	defer unlock()

	goSide := readme.Shell(t, root, strings.ReplaceAll(goJava, anyServer, url))
	goSide.Stderr = os.Stderr
	stdout, err := goSide.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, goSide.Start())
	output := bufio.NewReader(stdout)
	_, err = output.ReadString('\n')
	require.NoError(t, err)
	command, err := output.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, strings.ReplaceAll(mvnJava, anyServer, url), strings.TrimSpace(command))

	javaOutput, err := readme.Shell(t, root, command).CombinedOutput()
	require.NoError(t, err, "%s", javaOutput)
	require.Contains(t, string(javaOutput), "Java makes its deposit 10:")
	goOutput, err := io.ReadAll(output)
	require.NoError(t, err)
	require.NoError(t, goSide.Wait(), "%s", goOutput)
	require.Contains(t, string(goOutput), "The balance is 20, and no deposit was lost.")
}

// A reader can copy an example, and finds it on the page.
func TestExamplesImportPublicPackagesOnly(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*/main.go")
	require.NoError(t, err)
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, file := range files {
		require.Contains(t, string(page), "]("+file+")")
		readme.ImportsPublicPackagesOnly(t, file)
	}
}
