package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/watch"
)

func watchCommand() *cli.Command {
	return &cli.Command{
		Name:      "watch",
		Usage:     "show holders, waiters and rates, live",
		ArgsUsage: "[PATTERN]",
		Description: withExamples("Shows the held locks whose names match PATTERN, a glob of Redis.\n\n"+watch.Help,
			"redlatch watch 'orders:*'"),
		Action: func(ctx context.Context, c *cli.Command) error {
			args, err := arguments(c)
			if err != nil {
				return err
			}
			// Not withSession: watch goes on while Redis is out of reach, also at the start.
			s, err := open(c)
			if err != nil {
				return err
			}
			defer s.close(nil)
			// SIGINT ends it also as a background job of a script, which starts with SIGINT ignored.
			ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
			defer stop()
			err = watch.Run(ctx, watch.Config{
				Redis: s.rdb, Prefix: s.prefix, Pattern: args[0], Where: where(s.rdb), Timeout: c.Duration("timeout"),
				In: os.Stdin, Out: c.Root().Writer, Errs: c.Root().ErrWriter,
				JSON: c.Bool("json"), Color: colours(c.Root().Writer),
			})
			ended, ok := errors.AsType[*signalError](context.Cause(ctx))
			if err == nil && ok && ended.signal != syscall.SIGINT {
				return ended
			}
			return err
		},
	}
}

// failoverAddr is what go-redis has for an address if Sentinels know it.
const failoverAddr = "FailoverClient"

// where names the Redis of a client, for people.
func where(rdb redis.UniversalClient) string {
	switch c := rdb.(type) {
	case *redis.ClusterClient:
		return "the cluster " + strings.Join(c.Options().Addrs, ",")
	case *redis.Client:
		if c.Options().Addr == failoverAddr {
			return "the Sentinels' master"
		}
		if db := c.Options().DB; db != 0 {
			return c.Options().Addr + "/" + strconv.Itoa(db)
		}
		return c.Options().Addr
	}
	return "Redis"
}
