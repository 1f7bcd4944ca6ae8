// Command redlatch shows and tries out locks on Redis.
//
//	redlatch demo                                 on a server inside the process
//	redlatch demo --redis redis://localhost:6379  on a real one
//
// It exits with 0 if all went well, with 1 if something that it checked does not hold, and with 2 if it could not begin: a bad flag, no Redis
// at the address.
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
	exitFailed = 1 // a check failed, or the work could not be ended
	exitUsage  = 2 // there was nothing to begin with
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	redis.SetLogger(silence{}) // connections are cut here on purpose, and go-redis would tell of each
	code := run(ctx, os.Args, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// silence is go-redis's logger.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// run does what args say and returns the exit code. An error is one line on stderr.
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

// usageError is an error of the caller: there was nothing to begin with.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func badUsage(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// app is the command line.
func app(stdout, stderr io.Writer) *cli.Command {
	commands := []*cli.Command{demoCommand(), versionCommand()}
	for _, c := range commands {
		c.OnUsageError = wrongUsage
	}
	return &cli.Command{
		Name:            "redlatch",
		Usage:           "locks, semaphores and latches on Redis",
		Description:     "Begin with \"redlatch demo\": it needs nothing but this program.",
		Version:         version(),
		Commands:        commands,
		HideHelpCommand: true,
		Writer:          stdout,
		ErrWriter:       stderr,
		OnUsageError:    wrongUsage,
		ExitErrHandler:  func(context.Context, *cli.Command, error) {}, // run prints and chooses the code
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

// version is what the build says of itself.
func version() string {
	v := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v = info.Main.Version
	}
	return fmt.Sprintf("%s %s %s/%s", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
