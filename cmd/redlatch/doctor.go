package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/doctor"
)

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "check whether a Redis server suits locks, and say what to fix",
		Description: withExamples("Checks the connection, the version, the configuration and the rights of the user, and\n"+
			"tries everything that the library does. Its test names begin with --prefix, and it leaves nothing behind.\n"+
			"Each line is ok, warn or FAIL, with what to do. A check that the server does not allow is a warning.\n\n"+
			"Exit codes: 0 nothing failed; 1 a check failed; 3 Redis is unreachable or refuses.",
			"redlatch doctor --redis redis://localhost:6379 --prefix orders:"),
		Action: func(ctx context.Context, c *cli.Command) error {
			if _, err := arguments(c); err != nil {
				return err
			}
			rdb, where, err := connect(c)
			if err != nil {
				return err
			}
			defer func() { _ = rdb.Close() }()
			out := c.Root().Writer
			report := func(r doctor.Result) { printResult(out, r) }
			unfit := func(code int) error { return &codedError{code: code} } // a line has said why
			if c.Bool("json") {
				var failures []string
				report = func(r doctor.Result) {
					_ = printJSON(c, r)
					if r.Status == doctor.Fail {
						failures = append(failures, r.Check+": "+r.Detail)
					}
				}
				unfit = func(code int) error { return &codedError{code, errors.New(strings.Join(failures, "; "))} }
			}
			failed, err := doctor.Run(ctx, doctor.Config{
				Redis: rdb, Where: where, Prefix: c.String("prefix"), Timeout: c.Duration("timeout"), Report: report,
			})
			switch {
			case errors.Is(err, doctor.ErrUnreachable):
				return unfit(exitUnreachable)
			case err != nil:
				return err
			case failed:
				return unfit(exitFailed)
			}
			return nil
		},
	}
}

// printResult prints one line, and a second one with what to do.
func printResult(out io.Writer, r doctor.Result) {
	status := fmt.Sprintf("%-4s", r.Status)
	if colours(out) {
		color := map[string]string{doctor.OK: "32", doctor.Warn: "33", doctor.Fail: "1;31"}[r.Status]
		status = "\x1b[" + color + "m" + status + "\x1b[0m"
	}
	fmt.Fprintf(out, "%s  %-16s  %s\n", status, r.Check, harmless(r.Detail))
	if r.Fix != "" && r.Status != doctor.OK {
		fmt.Fprintf(out, "%24sfix: %s\n", "", harmless(r.Fix))
	}
}
