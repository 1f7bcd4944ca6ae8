package main

import (
	"context"
	"fmt"
	"strings"
	"unicode"

	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/acl"
)

// The command acl prints the rights that doc/operations.md lists, for any prefix. A test keeps the
// two equal, and the tests of the library run with exactly these rights.

func aclCommand() *cli.Command {
	return &cli.Command{
		Name:  "acl",
		Usage: "print the Redis rights that a service needs",
		Description: withExamples(
			"Prints one ACL SETUSER command, on one line, for redis-cli. It gives a user the rights that a service\n"+
				"needs for the names that begin with --prefix, and no others. It takes away what the user could do\n"+
				"before, and leaves its passwords. Set a password for a new user: ACL SETUSER USER >PASSWORD.\n"+
				"With --cluster, the rights for a cluster are included. It needs no Redis.",
			"redlatch acl --prefix orders: --user shop",
			"redlatch acl --prefix orders: --user shop --cluster"),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "user", Value: "locks", Usage: "`USER` of Redis that the service logs in as"},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			if _, err := arguments(c); err != nil {
				return err
			}
			user, prefix := c.String("user"), c.String("prefix")
			if user == "" {
				return badUsage("--user is empty")
			}
			for flag, value := range map[string]string{"--user": user, "--prefix": prefix} {
				if strings.ContainsFunc(value, cannotBePasted) {
					return badUsage("%s %q: a blank, a quote or a control character cannot stand in a rule", flag, value)
				}
			}
			line := "ACL SETUSER " + user + " " + strings.Join(acl.Rules(prefix, c.Bool("cluster")), " ")
			if c.Bool("json") {
				return printJSON(c, map[string]string{"command": line})
			}
			_, err := fmt.Fprintln(c.Root().Writer, line)
			return err
		},
	}
}

// cannotBePasted reports whether r would end or change a word of redis-cli.
func cannotBePasted(r rune) bool {
	return unicode.IsSpace(r) || unicode.IsControl(r) || r == '"' || r == '\''
}
