// Command redlatch uses and inspects locks, semaphores and latches on Redis.
//
//	redlatch run orders:42 -- ./ship.sh   runs a command while it holds a lock
//	redlatch ls                           lists what is held, and by whom
//	redlatch demo                         shows what locks do; needs no Redis
//
// The page doc/cli.md describes all commands, their output and their exit codes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/primitives"
)

func main() {
	redis.SetLogger(discard{}) // errors reach the user by exit codes and messages; the demo cuts connections on purpose
	os.Exit(run(untilSignal(context.Background(), endingSignals), os.Args, os.Stdout, os.Stderr))
}

// discard is a logger for go-redis that discards all messages.
type discard struct{}

func (discard) Printf(context.Context, string, ...any) {}

// run runs the command line args and returns the exit code. It prints an error on stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	args = detachWait(args)
	var out checkedWriter
	if f, ok := stdout.(*os.File); !ok || !isTerminal(f) { // commands look whether they write to a terminal
		out.w = stdout
		stdout = &out
	}
	err := app(args, stdout, stderr).Run(ctx, args)
	if err == nil {
		err = out.err
	}
	if failed, ok := errors.AsType[*primitives.Error](err); ok {
		failed.Kind = kindOf(failed.Kind) // as in flags
	}
	if len(args) > 1 {
		err = withAdvice(err, args[1])
	}
	return finish(ctx, err, wantsJSON(args), stderr)
}

// commands returns all commands, in the order of the help. Each has its own file. To add one, write
// a function that returns it, and list it here.
func commands(args []string) []*cli.Command {
	return []*cli.Command{
		runCommand(args), electCommand(args), acquireCommand(),
		lsCommand(), inspectCommand(), askCommand(), releaseCommand(), forceReleaseCommand(),
		semaphoreCommand(), permitsCommand(), latchCommand(),
		watchCommand(), doctorCommand(), aclCommand(), benchCommand(),
		timelineCommand(), tortureCommand(), tortureClientCommand(),
		demoCommand(),
		versionCommand(), helpCommand(),
	}
}

// app returns the definition of the command line.
func app(args []string, stdout, stderr io.Writer) *cli.Command {
	root := &cli.Command{
		Name:  "redlatch",
		Usage: "locks, semaphores and latches on Redis", UsageText: "redlatch COMMAND [options] [ARG...]",
		Description: withExamples("Start with \"redlatch demo\". It needs no Redis server.\n\n"+exitCodes,
			"redlatch run --redis redis://localhost:6379 orders:42 -- echo \"it is held\""),
		Version:                         version(),
		Commands:                        commands(args),
		Flags:                           connectionFlags(),
		HideHelpCommand:                 true,
		EnableShellCompletion:           true,
		ConfigureShellCompletionCommand: configureCompletion,
		Writer:                          stdout,
		ErrWriter:                       stderr,
		ExitErrHandler:                  func(context.Context, *cli.Command, error) {}, // finish prints it
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return noCommand(c, c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
	}
	_ = root.Walk(func(c *cli.Command) error {
		c.OnUsageError = wrongUsage
		c.DisableSliceFlagSeparator = true // a password may contain a comma
		c.UseShortOptionHandling = true    // -vw 1s
		if len(c.Commands) == 0 {
			c.CommandNotFound = helpBesideArguments
		}
		return nil
	})
	return root
}

// helpBesideArguments shows the help of c when --help comes with arguments: the parser takes the
// first argument for the name of a subcommand of c.
func helpBesideArguments(ctx context.Context, c *cli.Command, _ string) {
	_ = cli.ShowCommandHelp(ctx, c.Lineage()[1], c.Name) // c.Name is a command of the parent
}

func wrongUsage(_ context.Context, c *cli.Command, err error, _ bool) error {
	if name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: "); ok {
		err = fmt.Errorf("no flag %s", dashed(strings.TrimLeft(name, "-")))
	}
	if before, rest, ok := strings.Cut(err.Error(), " for flag -"); ok {
		name, reason, _ := strings.Cut(rest, ":")
		err = fmt.Errorf("%s for %s:%s", before, dashed(name), reason)
	}
	return badUsage("%w (see %s --help)", err, c.FullName())
}

// dashed is the name of a flag as users write it.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}
