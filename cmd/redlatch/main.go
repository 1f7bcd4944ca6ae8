// Command redlatch demonstrates locks, semaphores and latches on Redis.
//
//	redlatch demo                                 uses a server inside the process
//	redlatch demo --redis redis://localhost:6379  uses a real server
//
// The exit code is 0 on success, 1 if a check failed, and 2 if the command could not start, such as
// for a bad flag or an unreachable server.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"
)

// Exit codes.
const (
	exitFailed = 1 // a check failed, or the command was interrupted
	exitUsage  = 2 // the command could not start
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	redis.SetLogger(discard{}) // the demo cuts connections on purpose, and go-redis would log each
	code := run(ctx, os.Args, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// discard is a logger for go-redis that discards all messages.
type discard struct{}

func (discard) Printf(context.Context, string, ...any) {}

// run runs the command line args and returns the exit code. It prints an error as one line on stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := app(stdout, stderr).Run(ctx, args)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "redlatch:", oneLine(err))
	if usage := (*usageError)(nil); errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailed
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// usageError is an error that kept the command from starting. Its exit code is exitUsage.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func badUsage(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// app returns the definition of the command line.
func app(stdout, stderr io.Writer) *cli.Command {
	commands := []*cli.Command{demoCommand(), versionCommand()}
	for _, c := range commands {
		c.OnUsageError = wrongUsage
	}
	return &cli.Command{
		Name:            "redlatch",
		Usage:           "locks, semaphores and latches on Redis",
		Description:     "Start with \"redlatch demo\". It needs no Redis server.",
		Version:         version(),
		Commands:        commands,
		HideHelpCommand: true,
		Writer:          stdout,
		ErrWriter:       stderr,
		OnUsageError:    wrongUsage,
		ExitErrHandler:  func(context.Context, *cli.Command, error) {}, // run prints the error and sets the code
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return badUsage("no command %q (see redlatch --help)", c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
	}
}

func wrongUsage(_ context.Context, c *cli.Command, err error, _ bool) error {
	return badUsage("%w (see %s --help)", err, c.FullName())
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print the version",
		Action: func(_ context.Context, c *cli.Command) error {
			_, err := fmt.Fprintln(c.Root().Writer, "redlatch version", version())
			return err
		},
	}
}

// version returns the version of the module and of Go, and the platform.
func version() string {
	v := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v = info.Main.Version
	}
	return fmt.Sprintf("%s %s %s/%s", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
