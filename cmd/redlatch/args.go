package main

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/names"
)

// arguments checks that c has exactly the arguments that its ArgsUsage names, such as "NAME [N]",
// and returns them. A missing optional one is "".
func arguments(c *cli.Command) ([]string, error) {
	wanted := strings.Fields(c.ArgsUsage)
	given := c.Args().Slice()
	for i, name := range wanted {
		switch {
		case i < len(given):
		case strings.HasPrefix(name, "["):
			given = append(given, "")
		default:
			return nil, badUsage("%s is missing (see %s --help)", name, c.FullName())
		}
	}
	if len(given) > len(wanted) {
		return nil, badUsage("unexpected argument %q (see %s --help)", given[len(wanted)], c.FullName())
	}
	return given, nil
}

// base64Flag makes a command take NAME in base64.
func base64Flag() cli.Flag {
	return &cli.BoolFlag{Name: "base64", Usage: "NAME is in base64, as name_base64 of ls --json"}
}

// named is arguments for a command with base64Flag, whose first argument is NAME.
func named(c *cli.Command) ([]string, error) {
	args, err := arguments(c)
	if err != nil || !c.Bool("base64") {
		return args, err
	}
	if args[0], err = names.FromBase64(args[0]); err != nil {
		return nil, badUsage("NAME: %w", err)
	}
	return args, nil
}

// number parses the argument N.
func number(arg string) (int, error) {
	n, err := strconv.ParseInt(arg, 10, 64)
	if err != nil {
		return 0, badUsage("N is not a whole number: %q", arg)
	}
	return int(n), nil
}

// attachedWait matches -w with its value attached, alone or after short flags without a value. A
// value such as -1s, which is refused later, belongs to it, too.
var attachedWait = regexp.MustCompile(`^(-[A-Za-z]*w)(-?[0-9.].*)$`)

// detachWait makes two arguments of -w1s, which the parser would take for a cluster of short flags.
// It changes nothing after --, where the command of run stands.
func detachWait(args []string) []string {
	var out []string
	for i, arg := range args {
		if arg == "--" {
			return append(out, args[i:]...)
		}
		if match := attachedWait.FindStringSubmatch(arg); match != nil {
			out = append(out, match[1:]...)
		} else {
			out = append(out, arg)
		}
	}
	return out
}
