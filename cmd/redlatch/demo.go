package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/locktest"
)

// scene is one part of the demo: it shows one thing and checks it. Each has a file of its own, scene_<name>.go.
type scene struct {
	name  string // as in --only
	shows string
	run   func(ctx context.Context, s *stage) error // an error ends the scene and fails the demo
}

// scenes are all of them, in the order in which they are shown.
func scenes() []scene {
	return []scene{
		lockScene, crashScene, cutoffScene,
		fairScene, fencedScene, rwlockScene, multiScene, redScene,
		semaphoreScene, permitsScene, latchScene, stripedScene,
	}
}

func sceneNames() []string {
	var names []string
	for _, s := range scenes() {
		names = append(names, s.name)
	}
	return names
}

// connectLimit is how long Redis has to answer at all.
const connectLimit = 3 * time.Second

func demoCommand() *cli.Command {
	return &cli.Command{
		Name:  "demo",
		Usage: "show the locks at work, in a few seconds, and check what they promise",
		Description: "Several clients contend for locks, semaphores and latches; some crash, some are cut off from\n" +
			"Redis. What is shown is checked; a table at the end says what, and the exit code is 1 if a\n" +
			"check failed.\n\n" +
			"Scenes:\n" + sceneList() + "\n" +
			"Without --redis everything happens on a server inside this process. On a real Redis the demo\n" +
			"uses names of its own and removes its keys.",
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name: "redis", Sources: cli.EnvVars("REDLATCH_REDIS"), HideDefault: true,
				Usage: "`URL` of a Redis to use, such as redis://:password@localhost:6379/0 (default: one inside this process)",
			},
			&cli.StringFlag{Name: "only", Usage: "comma-separated `SCENES` to show", HideDefault: true},
			&cli.StringFlag{Name: "key-prefix", Value: "redlatch-demo", Usage: "what the names of all keys begin with; a run adds an id of its own"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return badUsage("demo takes no arguments, only flags: %q (see redlatch demo --help)", c.Args().First())
			}
			chosen, err := choose(c.String("only"))
			if err != nil {
				return err
			}
			if c.String("key-prefix") == "" {
				return badUsage("--key-prefix is empty")
			}
			return demo(ctx, newReport(c.Root().Writer), c.String("redis"), c.String("key-prefix"), chosen)
		},
	}
}

func sceneList() string {
	var b strings.Builder
	for _, s := range scenes() {
		fmt.Fprintf(&b, "  %-10s %s\n", s.name, s.shows)
	}
	return b.String()
}

// choose is the scenes that --only names; all if it names none.
func choose(only string) ([]scene, error) {
	if only == "" {
		return scenes(), nil
	}
	var chosen []scene
	for name := range strings.SplitSeq(only, ",") {
		all := scenes()
		i := slices.IndexFunc(all, func(s scene) bool { return s.name == strings.TrimSpace(name) })
		if i < 0 {
			return nil, badUsage("--only: no scene %q; there are %s", strings.TrimSpace(name), strings.Join(sceneNames(), ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// demo shows the chosen scenes. All of them are shown, whatever fails.
func demo(ctx context.Context, r *report, address, prefix string, chosen []scene) (err error) {
	nodes, where, end, err := servers(ctx, address)
	if err != nil {
		return err
	}
	defer end()
	r.printf("redlatch demo on %s\n", where)
	for i, sc := range chosen {
		r.printf("\n%d. %s: %s\n\n", i+1, sc.name, sc.shows)
		if err := show(ctx, r, nodes, prefix, sc); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("interrupted in scene %s", sc.name)
			}
			r.fail(sc.name, err)
		}
	}
	return r.summary()
}

// sceneLimit is many times what a scene takes: one that does not end has failed.
const sceneLimit = 20 * time.Second

// show runs one scene and removes what it left.
func show(ctx context.Context, r *report, n nodes, prefix string, sc scene) (err error) {
	s := newStage(r, n, prefix, sc.name)
	defer func() { err = errors.Join(err, s.clear(ctx)) }()
	ctx, cancel := context.WithTimeoutCause(ctx, sceneLimit, fmt.Errorf("not ended after %v", sceneLimit))
	defer cancel()
	return sc.run(ctx, s)
}

// nodes are the options of clients of each server: of several, or several times of the only one.
type nodes []*redis.Options

// nodeCount is how many servers there are for scenes that want more than one.
const nodeCount = 3

// separate tells whether each node is a server of its own.
func (n nodes) separate() bool { return n[0] != n[1] }

// servers finds the server at address, or starts some in this process.
func servers(ctx context.Context, address string) (n nodes, where string, end func(), err error) {
	if address == "" {
		n, end = embedded()
		return n, "a server inside this process (for a real one: --redis redis://localhost:6379)", end, nil
	}
	o, err := redis.ParseURL(address)
	if err != nil {
		return nil, "", nil, badUsage("--redis: %w", withoutSecrets(err))
	}
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if err := answers(ctx, o); err != nil {
		return nil, "", nil, badUsage("no Redis that we can use at %s: %w", o.Addr, err)
	}
	return slices.Repeat(nodes{o}, nodeCount), "Redis at " + o.Addr, func() {}, nil
}

// embedded starts servers in this process.
func embedded() (n nodes, end func()) {
	var started []*locktest.Server
	for range nodeCount {
		s := locktest.Start()
		started, n = append(started, s), append(n, s.Options())
	}
	return n, func() {
		for _, s := range started {
			s.Close()
		}
	}
}

// withoutSecrets is a parser's error without the address, which may hold a password.
func withoutSecrets(err error) error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return fmt.Errorf("bad URL: %w", u.Err)
	}
	return err
}

// answers asks the server at o for a sign of life.
func answers(ctx context.Context, o *redis.Options) error {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	try := *o
	try.MaxRetries, try.DialerRetries, try.ContextTimeoutEnabled = -1, 1, true
	rdb := redis.NewClient(&try)
	defer func() { _ = rdb.Close() }()
	return rdb.Ping(ctx).Err()
}
