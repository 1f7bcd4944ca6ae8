// Package tasks_test runs the programs of doc/tasks.md.
package tasks_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/examples/internal/readme"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable()
	os.Exit(redistest.Main(m))
}

const root = "../.."

// oneProgram stands for all programs, unless all tests run: linking a program takes longer than
// running it.
const oneProgram = "cron"

// Each program prints what its first comment says, on the server inside it and on a real one.
func TestProgramsPrintWhatTheirCommentsSay(t *testing.T) {
	t.Parallel()
	programs := []string{oneProgram}
	if redistest.Full() {
		programs = tasks(t)
	}
	dir := build(t, programs)
	for _, name := range programs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Run("inside", func(t *testing.T) { check(t, dir, name, "") })
			t.Run("redis", func(t *testing.T) {
				addr := redistest.Redis(t).Addr()
				if name == "redlock" {
					addr += "," + redistest.Fresh(t).Addr()
				}
				check(t, dir, name, addr)
			})
		})
	}
}

// build links all programs into one, which takes much less time than a program each. The sources
// that it compiles are those of the programs, as packages with a function Main, in a folder that
// exists in the build only. It returns a folder with the file "all", whose argument is the name of
// a program, and with the command redlatch.
func build(t *testing.T, programs []string) (dir string) {
	dir = t.TempDir()
	folder, err := filepath.Abs(".")
	require.NoError(t, err)
	replaced := map[string]string{} // files of the build, by the paths where go sees them
	write := func(path, text string) {
		file := filepath.Join(dir, strconv.Itoa(len(replaced))+".go")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		replaced[filepath.Join(folder, path)] = file
	}
	imports, cases := "", ""
	for _, name := range programs {
		source, err := os.ReadFile(filepath.Join(name, "main.go"))
		require.NoError(t, err)
		text := strings.Replace(string(source), "\npackage main\n", "\npackage "+name+"\n", 1)
		write(filepath.Join("all", name, "main.go"), strings.Replace(text, "\nfunc main() {\n", "\nfunc Main() {\n", 1))
		imports += fmt.Sprintf("import task_%s \"github.com/redlatch/redlatch/examples/tasks/all/%s\"\n", name, name)
		cases += fmt.Sprintf("case %q: task_%s.Main()\n", name, name)
	}
	write("all/main.go", "package main\n\nimport \"os\"\n"+imports+
		"func main() {\nswitch os.Args[1] {\n"+cases+"default: panic(os.Args[1])\n}\n}\n")
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	command := fmt.Sprintf("go build -ldflags='-s -w' -overlay %s/overlay.json -o %s/ ./examples/tasks/all", dir, dir)
	if slices.Contains(programs, "timeline") {
		command += " ./cmd/redlatch"
	}
	output, err := readme.Shell(t, root, command).CombinedOutput()
	require.NoError(t, err, "%s", output)
	return dir
}

var madeFolder = regexp.MustCompile(`locks-\d+`) // by os.MkdirTemp

// check runs a program of dir, and the command that it prints, if any.
func check(t *testing.T, dir, name, redisAddr string) {
	temporary := t.TempDir()
	program := exec.CommandContext(t.Context(), filepath.Join(dir, "all"), name)
	program.Env = append(os.Environ(), "REDIS_ADDR="+redisAddr, "TMPDIR="+temporary)
	var stderr strings.Builder // go-redis reports there that a server is down
	program.Stderr = &stderr
	output, err := program.Output()
	require.NoError(t, err, "%s%s", output, &stderr)
	got := strings.ReplaceAll(string(output), temporary, "/tmp")
	require.Equal(t, promised(t, name), madeFolder.ReplaceAllString(got, "locks-123"))

	_, arguments, printsCommand := strings.Cut(string(output), "go run ./cmd/redlatch ")
	if printsCommand {
		command := filepath.Join(dir, "redlatch") + " " + arguments
		output, err := readme.Shell(t, root, command).CombinedOutput()
		require.NoError(t, err, "%s", output)
		require.Contains(t, string(output), "holds: 1")
	}
}

// promised returns what the comment of a program says that the program prints.
func promised(t *testing.T, name string) (output string) {
	source, err := os.ReadFile(filepath.Join(name, "main.go"))
	require.NoError(t, err)
	_, comment, found := strings.Cut(string(source), "// Output:\n//\n")
	require.True(t, found, name)
	comment, _, found = strings.Cut(comment, "package main\n")
	require.True(t, found, name)
	for line := range strings.Lines(comment) {
		text, isOutput := strings.CutPrefix(line, "//\t")
		require.True(t, isOutput, line)
		output += text
	}
	return output
}

// tasks returns the names of the programs.
func tasks(t *testing.T) (names []string) {
	files, err := filepath.Glob("*/main.go")
	require.NoError(t, err)
	for _, file := range files {
		names = append(names, filepath.Dir(file))
	}
	require.Len(t, names, 20)
	return names
}

// A reader reaches each program by one link, from the README, from the page of tasks, and from
// llms.txt.
func TestPagesLinkEachProgram(t *testing.T) {
	t.Parallel()
	for page, folder := range map[string]string{
		"README.md": "examples/tasks/", "doc/tasks.md": "../examples/tasks/", "llms.txt": "examples/tasks/",
	} {
		text, err := os.ReadFile(filepath.Join(root, page))
		require.NoError(t, err)
		for _, name := range tasks(t) {
			require.Contains(t, string(text), "]("+folder+name+"/main.go)", page)
		}
	}
}

// A program can be copied: it imports only public packages, and begins with what it does.
func TestProgramsCanBeCopied(t *testing.T) {
	t.Parallel()
	for _, name := range tasks(t) {
		file := filepath.Join(name, "main.go")
		readme.ImportsPublicPackagesOnly(t, file)
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(source), "// Command "+name+" "), file)
	}
}
