package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/primitives"
)

func lsCommand() *cli.Command {
	return &cli.Command{
		Name:      "ls",
		Usage:     "list what is held, and by whom",
		ArgsUsage: "[PATTERN]",
		Description: withExamples(
			"Lists the locks that are held, the shortest TTL first. PATTERN is a glob of Redis, such as\n"+
				"\"orders:*\".\n\n"+
				"With --all it also lists semaphores, permits and latches. In Redis they are plain numbers. The kind is\n"+
				"\"integer\" if a number may be a semaphore, permits that are all free, a latch, or a counter of another\n"+
				"program.\n\n"+
				"It walks through all keys with SCAN. That takes long on a large Redis, but does not block it.",
			"redlatch ls", "redlatch ls --all --json 'orders:*'"),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "also list semaphores, permits and latches"},
			&cli.StringFlag{
				Name: "kind", Usage: "only this `KIND`: " + strings.Join(allKinds, ", ") +
					"; --kind semaphore, permits or latch includes integers",
			},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			args, err := arguments(c)
			if err != nil {
				return err
			}
			kind, err := kindGiven(c, allKinds)
			if err != nil {
				return err
			}
			return withSession(ctx, c, nil, func(s *session) error {
				entries, err := s.list(ctx, cmp.Or(args[0], "*"), c.Bool("all"), kind)
				if err != nil {
					return err
				}
				if c.Bool("json") {
					for _, e := range entries {
						if err := printJSON(c, e); err != nil {
							return err
						}
					}
					return nil
				}
				if len(entries) == 0 {
					fmt.Fprintln(c.Root().ErrWriter, "nothing is held")
					return nil
				}
				printTable(c.Root().Writer, entries)
				return nil
			})
		},
	}
}

// list returns the entries of a kind, or of all kinds if it is "", sorted by TTL.
func (s *session) list(ctx context.Context, pattern string, all bool, kind string) ([]*entry, error) {
	var entries []*entry
	isLock := slices.Contains(lockKinds, kind)
	if kind == "" || isLock {
		for info, err := range s.client.Locks(ctx, pattern) {
			if err != nil {
				return nil, err
			}
			if kind != "" && kindOf(info.Kind) != kind {
				continue
			}
			if info.Kind == kindFair {
				if info, err = s.withWaiters(ctx, info); err != nil {
					return nil, err
				}
			}
			entries = append(entries, newEntry(info, kindOf(info.Kind)))
		}
	}
	if kind == "" && all || kind != "" && !isLock {
		for info, err := range s.client.Numbers(ctx, pattern) {
			if err != nil {
				return nil, err
			}
			if kind == "" || info.Kind == kind || info.Kind == kindInteger {
				entries = append(entries, newEntry(info, info.Kind))
			}
		}
	}
	slices.SortFunc(entries, byTTL)
	return entries, nil
}

// withWaiters adds the waiters of a fair lock. It keeps what was listed if nobody holds it any more.
func (s *session) withWaiters(ctx context.Context, listed primitives.Info) (primitives.Info, error) {
	info, err := s.client.FairLock(listed.Name).Info(ctx)
	if err != nil || len(info.Holders) == 0 {
		return listed, err
	}
	return info, nil
}
