package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/names"
)

// asked is what ask prints as JSON.
type asked struct {
	Name   string `json:"name"`
	Base64 string `json:"name_base64,omitempty"`
	Kind   string `json:"kind"`
	Told   int    `json:"told"`
}

// asker is a kind whose holders can be told that somebody wants it.
type asker interface {
	Ask(ctx context.Context) (told int, err error)
}

func askCommand() *cli.Command {
	return &cli.Command{
		Name:      "ask",
		Usage:     "tell the holders of a name that somebody wants it",
		ArgsUsage: "NAME",
		Description: withExamples(
			"Tells the holders of NAME that somebody wants it, and prints how many clients were told. Nothing is taken\n"+
				"away: a holder that listens, such as \"redlatch run --on-wanted\", may give NAME back sooner. Clients of other\n"+
				"libraries do not hear it. The exit code is 1 if nobody holds NAME.",
			"redlatch ask orders:42"),
		Flags: []cli.Flag{kindFlag(heldKinds), base64Flag()},
		Action: func(ctx context.Context, c *cli.Command) error {
			args, err := named(c)
			if err != nil {
				return err
			}
			kind, err := kindGiven(c, heldKinds)
			if err != nil {
				return err
			}
			name, told := args[0], 0
			ask := func(ctx context.Context, s *session) (err error) {
				kind, err = s.heldKind(ctx, "ask", kind, name)
				if err != nil {
					return notOurs(err)
				}
				told, err = s.acquirer(kind, name).(asker).Ask(ctx)
				return notOurs(err)
			}
			return withSession(ctx, c, ask, func(s *session) error {
				if err := ask(ctx, s); err != nil {
					return err
				}
				if c.Bool("json") {
					return printJSON(c, asked{name, names.Base64(name), kind, told})
				}
				clients := "clients were"
				if told == 1 {
					clients = "client was"
				}
				_, err := fmt.Fprintf(c.Root().Writer, "%d %s told that somebody wants %s %q\n", told, clients, kind, plain(name))
				return err
			})
		},
	}
}
