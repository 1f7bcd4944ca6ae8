package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// seedsOfCI are the seeds that CI runs.
const seedsOfCI = "1-500"

// simulation is the program in sim.
type simulation struct {
	program string
	goCache string
}

// buildSimulation builds the program. remove deletes it.
func buildSimulation(ctx context.Context, root string) (s *simulation, remove func(), err error) {
	dir, err := os.MkdirTemp("", "redlatch-planted-")
	if err != nil {
		return nil, nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	cache, err := exec.CommandContext(ctx, "go", "env", "GOCACHE").Output()
	if err != nil {
		remove()
		return nil, nil, err
	}
	s = &simulation{filepath.Join(dir, "sim"), strings.TrimSpace(string(cache))}
	build := exec.CommandContext(ctx, "go", "build", "-o", s.program, ".")
	build.Dir = filepath.Join(root, "sim")
	if out, err := build.CombinedOutput(); err != nil {
		remove()
		return nil, nil, fmt.Errorf("%w: %s", err, out)
	}
	return s, remove, nil
}

// The lines of the program that matter here.
var (
	violationLine = regexp.MustCompile(`(?m)^seed \d+: ([a-z -]+?)(?: of |: )`)
	firstLine     = regexp.MustCompile(`(?m)^seed (\d+) failed after (.*) of processor time$`)
)

// simulated is what has found a defect.
type simulated struct{ checks, seed, took string }

// look returns the cells of the table that say what has found a defect: the simulation, or else its
// suite. They are "" if nothing has.
func (s *simulation) look(ctx context.Context, root string, d Defect, o options) (cells string, err error) {
	if d.Unsimulated != "" {
		return "cannot be found: " + d.Unsimulated + " | | ", nil
	}
	found, err := s.find(ctx, root, d, o)
	switch {
	case err != nil:
		return "", err
	case found != nil:
		return fmt.Sprintf("%s | %s | %s", found.checks, found.seed, found.took), nil
	case d.Suite[0] != "":
		return fmt.Sprintf("not within %v; `%s` of `%s` finds it | | ", o.cpu, d.Suite[1], d.Suite[0]), nil
	}
	return "", nil
}

// find plants one defect, and returns what has found it; nil if nothing has.
func (s *simulation) find(ctx context.Context, root string, d Defect, o options) (*simulated, error) {
	dir, description, err := prepare(root, d)
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd := exec.CommandContext(ctx, s.program, "--seeds", seedsOfCI, "--cpu", o.cpu.String(), "--fail-fast",
		"--library", root, "--parallel", "1")
	// Nobody needs the machine code again, which is large: it does not go to the user's cache.
	cmd.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+description),
		"GOCACHE="+s.goCache, "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	first := firstLine.FindStringSubmatch(string(out))
	if first == nil {
		return nil, nil
	}
	var checks []string
	for _, v := range violationLine.FindAllStringSubmatch(string(out), -1) {
		checks = append(checks, v[1])
	}
	slices.Sort(checks)
	return &simulated{strings.Join(slices.Compact(checks), ", "), first[1], first[2]}, nil
}
