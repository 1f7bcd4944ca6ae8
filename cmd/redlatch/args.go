package main

import (
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"
)

// arguments checks that c has exactly the arguments that its ArgsUsage names, such as "NAME [N]", and
// returns them. A missing optional one is "".
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

// number parses the argument N.
func number(arg string) (int, error) {
	n, err := strconv.ParseInt(arg, 10, 64)
	if err != nil {
		return 0, badUsage("N is not a whole number: %q", arg)
	}
	return int(n), nil
}
