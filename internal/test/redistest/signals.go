package redistest

import (
	"os"
	"os/exec"
	ossignal "os/signal"
	"syscall"
	"testing"
)

// inheritedWhenIgnored are the signals that a Go program keeps ignoring if its parent did. nohup
// ignores SIGHUP, and a shell ignores SIGINT in the background jobs of a script.
var inheritedWhenIgnored = []os.Signal{os.Interrupt, syscall.SIGHUP}

// startProgramsWithDefaultSignals makes programs that the tests start ignore no signal, even if
// this process ignores some. A signal that a Go program receives has its default effect in the
// programs that it starts. Nobody reads the channel, so this process itself keeps ignoring the
// signals.
func startProgramsWithDefaultSignals() {
	for _, sig := range inheritedWhenIgnored {
		if ossignal.Ignored(sig) {
			ossignal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

// IgnoringSignals returns a command that runs the program with SIGHUP and SIGINT ignored, as under
// nohup in the background of a script. It needs a shell.
func IgnoringSignals(t testing.TB, program string, args ...string) *exec.Cmd {
	t.Helper()
	args = append([]string{"-c", `trap '' HUP INT; exec "$0" "$@"`, program}, args...)
	return exec.CommandContext(t.Context(), "sh", args...)
}

// PassIgnoringSignals checks that tests of this test binary pass if it was started with SIGHUP and
// SIGINT ignored. run is a pattern for the flag -test.run.
func PassIgnoringSignals(t testing.TB, run string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := IgnoringSignals(t, self, "-test.count=1", "-test.timeout=1m", "-test.run", run).CombinedOutput()
	if err != nil {
		t.Fatalf("%v with ignored signals:\n%s", err, out)
	}
}
