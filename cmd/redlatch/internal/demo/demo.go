// Package demo shows what locks, semaphores and latches do, and checks it.
//
// Each scene is one behaviour, in a file scene_<name>.go. A stage gives a scene its servers, the
// processes that it simulates, and the report to which it adds its checks.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/timeline"
	"github.com/redlatch/redlatch/locktest"
)

// Scene is one part of the demo. It shows one behaviour and checks it.
type Scene struct {
	Name  string // short, as users select it
	Shows string // one line of help
	// run runs the scene. An error ends the scene and fails the demo.
	run func(ctx context.Context, s *stage) error
}

// Scenes returns all scenes in the order in which the demo runs them.
func Scenes() []Scene {
	return []Scene{
		cronScene, cutoffScene,
		lockScene, crashScene,
		fairScene, fencedScene, cohortScene, rwlockScene, multiScene, redScene,
		semaphoreScene, permitsScene, latchScene, stripedScene, electionScene,
	}
}

// Few returns the scenes that run by default.
func Few() []Scene { return []Scene{cronScene, cutoffScene} }

// Select returns the scenes with the comma-separated names, in that order.
func Select(names string) ([]Scene, error) {
	all := Scenes()
	var selected []Scene
	for name := range strings.SplitSeq(names, ",") {
		name = strings.TrimSpace(name)
		i := slices.IndexFunc(all, func(s Scene) bool { return s.Name == name })
		if i < 0 {
			var known []string
			for _, s := range all {
				known = append(known, s.Name)
			}
			return nil, fmt.Errorf("no scene %q; scenes are %s", name, strings.Join(known, ", "))
		}
		selected = append(selected, all[i])
	}
	return selected, nil
}

// Config is what Run needs.
type Config struct {
	Out    io.Writer
	Redis  *redis.Options // the server; nil: servers inside this process
	Where  string         // names the server
	Prefix string         // of all key names; each scene appends a random id
	Scenes []Scene
	Page   io.Writer // gets a page that draws the scenes, if all could run; nil: none
}

// Run runs the scenes and prints their checks. A failed scene does not stop the others. The
// error says how many checks failed, or in which scene ctx ended.
func Run(ctx context.Context, cfg Config) error {
	nodes, closeServers := servers(cfg.Redis)
	defer closeServers()
	r := newReport(cfg.Out)
	r.printf("%s", wrap("", "redlatch demo on "+cfg.Where))
	r.printf("%s", wrap("", "Each name, such as anna, is a process. Times count from a scene's begin."))
	var parts []timeline.Part
	for i, sc := range cfg.Scenes {
		title := fmt.Sprintf("%d. %s: %s", i+1, sc.Name, sc.Shows)
		r.printf("\n%s\n", wrap("", title))
		stage := newStage(r, nodes, cfg.Prefix, sc.Name)
		err := runScene(ctx, stage, sc)
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("interrupted in scene %s", sc.Name)
		}
		if err != nil {
			r.fail(sc.Name, err)
		}
		r.printChecks(sc.Name)
		part, err := stage.part(title)
		if err != nil {
			return err
		}
		parts = append(parts, part)
	}
	if cfg.Page != nil {
		err := r.writePage(cfg.Page, cfg.Where, parts)
		if err != nil {
			return err
		}
	}
	return r.summary()
}

// sceneTimeout is many times the duration of a scene, so a scene that exceeds it has failed.
const sceneTimeout = 20 * time.Second

// runScene runs one scene on its stage and removes its keys.
func runScene(ctx context.Context, s *stage, sc Scene) (err error) {
	defer func() { err = errors.Join(err, s.cleanUp(ctx)) }()
	ctx, cancel := context.WithTimeoutCause(ctx, sceneTimeout, fmt.Errorf("timed out after %v", sceneTimeout))
	defer cancel()
	return sc.run(ctx, s)
}

// nodes holds client options for nodeCount servers. All are the same pointer if there is one
// server.
type nodes []*redis.Options

// nodeCount is the number of servers for scenes that use more than one.
const nodeCount = 3

// separate reports whether each node is a different server.
func (n nodes) separate() bool { return n[0] != n[1] }

// servers returns nodes on the given server, or on new servers in this process if it is nil.
func servers(one *redis.Options) (n nodes, closeAll func()) {
	if one != nil {
		return slices.Repeat(nodes{one}, nodeCount), func() {}
	}
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
