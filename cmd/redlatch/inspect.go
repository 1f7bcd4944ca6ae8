package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/names"
	"github.com/redlatch/redlatch/primitives"
)

func inspectCommand() *cli.Command {
	return &cli.Command{
		Name:      "inspect",
		Usage:     "show one name: holders, waiters, TTL, fencing counter, permits",
		ArgsUsage: "NAME",
		Description: withExamples(
			"Shows what is in Redis under NAME. Without --kind it finds the kind by the keys, which do\n"+
				"not show every kind: a fair lock without waiters looks like a lock. The waiters of a fair lock come in order.\n"+
				"Of other kinds it shows which clients wait. To find them, it walks through all keys for a second at most.\n\n"+
				"The exit code is 1 if NAME does not exist, or if it holds data of another program.",
			"redlatch inspect orders:42", "redlatch inspect --kind fair --json printer"),
		Flags: []cli.Flag{kindFlag(allKinds), base64Flag()},
		Action: func(ctx context.Context, c *cli.Command) error {
			args, err := named(c)
			if err != nil {
				return err
			}
			kind, err := kindGiven(c, allKinds)
			if err != nil {
				return err
			}
			check := func(ctx context.Context, s *session) error {
				_, err := s.inspect(ctx, kind, args[0])
				return err
			}
			return withSession(ctx, c, check, func(s *session) error {
				e, err := s.inspect(ctx, kind, args[0])
				if err != nil {
					return notOurs(err)
				}
				search, cancel := context.WithTimeout(ctx, searchLimit)
				defer cancel()
				s.addWaiting(search, c, e)
				if e.isNothing() {
					return s.nothingHeld(ctx, kind, args[0])
				}
				if c.Bool("json") {
					return printJSON(c, e)
				}
				printEntry(c.Root().Writer, e)
				return nil
			})
		},
	}
}

// searchLimit bounds how long inspect searches for clients that wait.
const searchLimit = time.Second

func kindFlag(kinds []string) cli.Flag {
	return &cli.StringFlag{
		Name: "kind", HideDefault: true,
		Usage: "`KIND` of NAME: " + strings.Join(kinds, ", ") + " (default: found by its keys)",
	}
}

// kindGiven returns the kind that --kind names, or "".
func kindGiven(c *cli.Command, kinds []string) (string, error) {
	kind := c.String("kind")
	if c.IsSet("kind") && !slices.Contains(kinds, kind) {
		return "", badUsage("--kind %q: must be one of %s", kind, strings.Join(kinds, ", "))
	}
	return kind, nil
}

// inspect returns what is under name, as that kind. With kind "" the keys tell it.
func (s *session) inspect(ctx context.Context, kind, name string) (*entry, error) {
	if lock := s.lock(kind, name); lock != nil {
		info, err := lock.Info(ctx)
		if err != nil {
			return nil, err
		}
		return newEntry(info, kind), nil
	}
	info, err := s.client.Inspect(ctx, name)
	if err != nil {
		return nil, err
	}
	if kind == "" {
		kind = kindOf(info.Kind)
	}
	if isNumber := info.Kind == kindInteger || info.Kind == kindPermits; !isNumber && slices.Contains(numberKinds, kind) {
		return &entry{Name: name, Base64: names.Base64(name), Kind: kind}, nil
	}
	if kind == kindPermits && info.Kind == kindInteger {
		info.Holders = []primitives.Holder{}
	}
	return newEntry(info, kind), nil
}

// nothingHeld is the error for a name under which nothing of a kind was found; of any kind, if it
// is "". Then the key may be a hash that looks like a lock, but has no expiry. It is not listed,
// but acquisitions wait for it.
func (s *session) nothingHeld(ctx context.Context, kind, name string) error {
	if kind == "" {
		for _, kind = range []string{kindLock, kindWrite, kindRead} {
			switch info, err := s.lock(kind, name).Info(ctx); {
			case errors.Is(err, primitives.ErrUnavailable):
				return err
			case err == nil && len(info.Holders) > 0 && info.TTL < 0:
				return failure("%q: the key holds a hash without expiry, perhaps of another program; "+
					"to treat it as a lock: --kind %s", name, kind)
			}
		}
		return failure("%q: nothing is held", name)
	}
	return failure("%q: nothing is held (--kind %s)", name, kind)
}
