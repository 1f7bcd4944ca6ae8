package main

import (
	"bytes"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// fullDisk is a standard output that takes nothing.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}
}

// Output that cannot be written is a failure, and none of Redis.
func TestOutputThatIsLostIsAFailure(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	hold := fixture.Acquire(t, t.Context(), client(t, s).Lock(name))
	for _, command := range []string{
		"ls", "ls --json", "inspect " + name, "inspect --json " + name, "latch count " + name + "-latch",
		"acquire " + name + "-other", "doctor", "doctor --json", "release " + name + " " + hold.ID(), "acl", "version",
		"completion bash", "ls --help",
	} {
		args := strings.Fields(command)
		verbs := 1
		if args[0] == "latch" || args[0] == "completion" {
			verbs = 2
		}
		args = slices.Insert(args, verbs, "--redis", "redis://"+s.Addr())
		var stderr bytes.Buffer
		code := run(t.Context(), append([]string{"redlatch"}, args...), fullDisk{}, &stderr)
		require.Equal(t, exitFailed, code, "%s: %s", command, &stderr)
		require.Contains(t, stderr.String(), "cannot write the output: write /dev/stdout: no space left on device", command)
	}
	exitsOn(t, exitFailed, s, "inspect", name+"-other")
}
