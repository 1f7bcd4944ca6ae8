package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/locktest"
)

// scene is one part of the demo. It shows one behaviour and checks it. Each scene has its own file,
// scene_<name>.go.
type scene struct {
	name  string // the name for --only
	shows string // one line of help
	// run runs the scene. An error ends the scene and fails the demo.
	run func(ctx context.Context, s *stage) error
}

// scenes returns all scenes in the order in which the demo runs them.
func scenes() []scene {
	return []scene{
		lockScene, crashScene, cutoffScene,
		fairScene, fencedScene, cohortScene, rwlockScene, multiScene, redScene,
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

// connectTimeout bounds the first PING to the server that --redis names.
const connectTimeout = 3 * time.Second

func demoCommand() *cli.Command {
	return &cli.Command{
		Name:  "demo",
		Usage: "run locks, semaphores and latches for a few seconds and check the results",
		Description: "Several clients contend for locks, semaphores and latches. Some clients crash, some are cut\n" +
			"off from Redis. Each scene checks its results. A table at the end lists all checks. The exit\n" +
			"code is 1 if a check failed, and 2 if the demo could not start.\n\n" +
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
			&cli.StringFlag{Name: "only", Usage: "comma-separated list of `SCENES` to run (default: all)", HideDefault: true},
			&cli.StringFlag{
				Name: "key-prefix", Value: "redlatch-demo",
				Usage: "`PREFIX` of all key names; each run appends a random id",
			},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return badUsage("demo takes no arguments: %q (see redlatch demo --help)", c.Args().First())
			}
			for _, flag := range c.Root().Flags {
				if name := flag.Names()[0]; c.Root().IsSet(name) || name != "redis" && c.IsSet(name) {
					return badUsage("demo has no flag --%s (see redlatch demo --help)", name)
				}
			}
			selected, err := selectScenes(c.String("only"))
			if err != nil {
				return err
			}
			if c.String("key-prefix") == "" {
				return badUsage("--key-prefix is empty")
			}
			return demo(ctx, newReport(c.Root().Writer), c.String("redis"), c.String("key-prefix"), selected)
		},
	}
}

// helpWithoutGlobalOptions is the help of a command that refuses the flags of the root.
func helpWithoutGlobalOptions() string {
	help, _, _ := strings.Cut(cli.CommandHelpTemplate, "{{if .VisiblePersistentFlags}}")
	return help + "\n"
}

func sceneList() string {
	var b strings.Builder
	for _, s := range scenes() {
		fmt.Fprintf(&b, "  %-10s %s\n", s.name, s.shows)
	}
	return b.String()
}

// selectScenes returns the scenes that --only lists, in that order; all scenes if only is empty.
func selectScenes(only string) ([]scene, error) {
	if only == "" {
		return scenes(), nil
	}
	var selected []scene
	for name := range strings.SplitSeq(only, ",") {
		all := scenes()
		i := slices.IndexFunc(all, func(s scene) bool { return s.name == strings.TrimSpace(name) })
		if i < 0 {
			return nil, badUsage("--only: no scene %q; scenes are %s", strings.TrimSpace(name), strings.Join(sceneNames(), ", "))
		}
		selected = append(selected, all[i])
	}
	return selected, nil
}

// demo runs the selected scenes. A failed scene does not stop the others.
func demo(ctx context.Context, r *report, address, prefix string, selected []scene) (err error) {
	nodes, where, closeServers, err := servers(ctx, address)
	if err != nil {
		return err
	}
	defer closeServers()
	r.printf("redlatch demo on %s\n", where)
	for i, sc := range selected {
		r.printf("\n%d. %s: %s\n\n", i+1, sc.name, sc.shows)
		if err := runScene(ctx, r, nodes, prefix, sc); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("interrupted in scene %s", sc.name)
			}
			r.fail(sc.name, err)
		}
	}
	return r.summary()
}

// sceneTimeout is many times the duration of a scene, so a scene that exceeds it has failed.
const sceneTimeout = 20 * time.Second

// runScene runs one scene and removes its keys.
func runScene(ctx context.Context, r *report, n nodes, prefix string, sc scene) (err error) {
	s := newStage(r, n, prefix, sc.name)
	defer func() { err = errors.Join(err, s.cleanUp(ctx)) }()
	ctx, cancel := context.WithTimeoutCause(ctx, sceneTimeout, fmt.Errorf("timed out after %v", sceneTimeout))
	defer cancel()
	return sc.run(ctx, s)
}

// nodes holds client options for nodeCount servers. All are the same pointer if there is one server.
type nodes []*redis.Options

// nodeCount is the number of servers for scenes that use more than one.
const nodeCount = 3

// separate reports whether each node is a different server.
func (n nodes) separate() bool { return n[0] != n[1] }

// servers returns the server at address, or starts servers in this process if address is empty.
func servers(ctx context.Context, address string) (n nodes, where string, closeAll func(), err error) {
	if address == "" {
		n, closeAll = embedded()
		return n, "a server inside this process (for a real one: --redis redis://localhost:6379)", closeAll, nil
	}
	o, err := parseURL("--redis", address)
	if err != nil {
		return nil, "", nil, err
	}
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if err := ping(ctx, o); err != nil {
		return nil, "", nil, badUsage("cannot use Redis at %s: %w", o.Addr, err)
	}
	return slices.Repeat(nodes{o}, nodeCount), "Redis at " + o.Addr, func() {}, nil
}

// embedded starts nodeCount servers in this process.
func embedded() (n nodes, closeAll func()) {
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

// ping checks that the server answers within connectTimeout. It does not retry.
func ping(ctx context.Context, o *redis.Options) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	try := *o
	try.MaxRetries, try.DialerRetries, try.ContextTimeoutEnabled = -1, 1, true
	rdb := redis.NewClient(&try)
	defer func() { _ = rdb.Close() }()
	return rdb.Ping(ctx).Err()
}
