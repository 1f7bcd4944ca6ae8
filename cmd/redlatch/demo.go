package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/demo"
)

func demoCommand() *cli.Command {
	return &cli.Command{
		Name:  "demo",
		Usage: "show for a few seconds what locks do, and check the results",
		Description: "Two scenes: a cron job on two hosts, and a holder that is cut off from Redis. With --all further\n" +
			"scenes show all primitives, and a crash. Each scene checks its results. The exit code is 1 if a\n" +
			"check failed, and 2 if the demo could not start.\n\n" +
			"Scenes:\n" + sceneList() + "\n" +
			"Without --redis the demo uses a server inside this process, whatever REDIS_URL says. On a real Redis\n" +
			"it uses unique key names and removes its keys afterwards.\n\n" +
			"Example:\n" +
			"  redlatch demo --redis redis://localhost:6379 --only lock,crash",
		CustomHelpTemplate: helpWithoutGlobalOptions(),
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name: "redis", Sources: cli.EnvVars("REDLATCH_REDIS"), HideDefault: true,
				Usage: "`URL` of the Redis server, such as redis://:password@localhost:6379/0 " +
					"(default: a server inside this process)",
			},
			&cli.BoolFlag{Name: "all", Usage: "run all scenes", HideDefault: true},
			&cli.StringFlag{Name: "only", Usage: "comma-separated list of `SCENES` to run", HideDefault: true},
			&cli.StringFlag{Name: "html", Usage: "also draw the scenes on a page, in this `FILE`"},
			&cli.StringFlag{
				Name: "key-prefix", Value: "redlatch-demo",
				Usage: "`PREFIX` of all key names; each run appends a random id",
			},
		},
		Action: runDemo,
	}
}

// helpWithoutGlobalOptions is the help of a command that refuses the flags of the root.
func helpWithoutGlobalOptions() string {
	help, _, _ := strings.Cut(cli.CommandHelpTemplate, "{{if .VisiblePersistentFlags}}")
	return help + "\n"
}

func sceneList() string {
	var b strings.Builder
	for _, s := range demo.Scenes() {
		fmt.Fprintf(&b, "  %-10s %s\n", s.Name, s.Shows)
	}
	return b.String()
}

// runDemo is the action of "redlatch demo".
func runDemo(ctx context.Context, c *cli.Command) error {
	if c.Args().Present() {
		return badUsage("demo takes no arguments: %q (see redlatch demo --help)", c.Args().First())
	}
	for _, flag := range c.Root().Flags {
		if name := flag.Names()[0]; c.Root().IsSet(name) || name != "redis" && c.IsSet(name) {
			return badUsage("demo has no flag --%s (see redlatch demo --help)", name)
		}
	}
	scenes := demo.Few()
	var err error
	switch {
	case c.Bool("all") && c.IsSet("only"):
		return badUsage("--all and --only contradict each other")
	case c.Bool("all"):
		scenes = demo.Scenes()
	case c.IsSet("only"):
		scenes, err = demo.Select(c.String("only"))
		if err != nil {
			return badUsage("--only: %w", err)
		}
	}
	cfg := demo.Config{
		Out: c.Root().Writer, Prefix: c.String("key-prefix"), Scenes: scenes,
		Where: "a server inside this process (for a real one: --redis redis://localhost:6379)",
	}
	if cfg.Prefix == "" {
		return badUsage("--key-prefix is empty")
	}
	if u := c.String("redis"); u != "" {
		if cfg.Redis, err = parseURL("--redis", u); err != nil {
			return err
		}
		cfg.Redis.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		cfg.Where = "Redis at " + cfg.Redis.Addr
		if err := ping(ctx, cfg.Redis); err != nil {
			return badUsage("cannot use Redis at %s: %w", cfg.Redis.Addr, err)
		}
	}
	if !c.IsSet("html") {
		err = demo.Run(ctx, cfg)
	} else {
		err = runDemoWithPage(ctx, c, cfg)
	}
	if err == nil {
		fmt.Fprintf(cfg.Out, "\n%s", nextSteps(c))
	}
	return err
}

// runDemoWithPage runs the demo, and writes its page to the file of --html. An interrupted demo has
// no page.
func runDemoWithPage(ctx context.Context, c *cli.Command, cfg demo.Config) error {
	name := c.String("html")
	file, err := os.Create(name) // before the demo, which takes time
	if err != nil {
		return badUsage("--html: %w", err)
	}
	var page bytes.Buffer
	cfg.Page = &page
	failed := demo.Run(ctx, cfg)
	_, err = file.Write(page.Bytes())
	err = errors.Join(err, file.Close())
	if err != nil {
		return errors.Join(failed, failure("--html: %w", err))
	}
	if page.Len() > 0 {
		notesOf(c).note("written", "the page is in %s", name)
	}
	return failed
}

// nextSteps says what to look at after the demo.
func nextSteps(c *cli.Command) string {
	text := "The code of the cron job: examples/tasks/cron/main.go\n"
	var flags []string
	if !c.Bool("all") {
		flags = append(flags, "All scenes: --all")
	}
	if !c.IsSet("html") {
		flags = append(flags, "A picture of them: --html FILE")
	}
	if len(flags) > 0 {
		text += strings.Join(flags, "   ") + "\n"
	}
	return text
}

// ping checks that the server answers within 3 seconds. It does not retry.
func ping(ctx context.Context, o *redis.Options) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	try := *o
	try.MaxRetries, try.DialerRetries, try.ContextTimeoutEnabled = -1, 1, true
	rdb := redis.NewClient(&try)
	defer func() { _ = rdb.Close() }()
	return rdb.Ping(ctx).Err()
}
