package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"
)

func lsCommand() *cli.Command {
	return &cli.Command{
		Name:      "ls",
		Usage:     "list what is held, and by whom",
		ArgsUsage: "[PATTERN]",
		Description: withExamples(
			"Lists the locks that are held, the shortest TTL first, and who waits for them. PATTERN is a glob of Redis,\n"+
				"such as \"orders:*\".\n\n"+
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
				s.addWaiting(ctx, c, entries...)
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

// addWaiting adds who waits. If the search for the clients that wait ends too soon, it says so on
// standard error.
func (s *session) addWaiting(ctx context.Context, c *cli.Command, entries ...*entry) {
	if len(entries) == 0 {
		return
	}
	waiting, err := s.client.Waiting(ctx)
	var ids []string // of the waiters of all fair locks
	for _, e := range entries {
		ids = append(ids, e.Waiters...)
	}
	clients := s.client.ClientNames(ctx, ids)
	for _, e := range entries {
		n := len(e.Waiters)
		e.addWaiting(clients[:n], waiting[e.Name])
		clients = clients[n:]
	}
	if err != nil {
		notesOf(c).note("waiting", "perhaps others wait, too: %v", err)
	}
}
