// Command planted plants known defects in the library, one at a time, and reports what finds each
// of them, and after how long. This is how the tests themselves are tested.
//
//	go run ./internal/test/planted                              # each: three minutes of the default torture at most
//	go run ./internal/test/planted -duration 1m -only renewal   # those with "renewal" in their names
//	go run ./internal/test/planted -directed                    # with the faults and primitives that find it
//	go run ./internal/test/planted -sim                         # each defect: a minute of simulation at most
//	go run ./internal/test/planted -list
//
// The defects are in catalogue.go. They are built with an overlay: the tree is not changed. The
// exit code is 1 if something was not found, or cannot be built. What torture does not find, a test
// suite must find, or the simulation.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

type options struct {
	duration time.Duration
	only     string
	topology string
	directed bool
	keep     string        // directory for timelines and logs
	share    [2]int        // the defects whose number leaves the first, divided by the second
	from     int           // the number of the first
	parallel int           // how many run at a time
	simulate bool          // by simulation, in place of torture
	cpu      time.Duration // processor time for each defect, of the simulation
}

func main() {
	var o options
	var share string
	flag.DurationVar(&o.duration, "duration", 3*time.Minute, "how long torture looks for each defect")
	flag.StringVar(&o.only, "only", "", "plant the defects with one of these `TEXTS` in their names, separated by |")
	flag.StringVar(&o.topology, "topology", "single", "topology of the servers")
	flag.BoolVar(&o.directed, "directed", false, "run torture with the faults and primitives that find the defect")
	flag.StringVar(&o.keep, "timelines", "", "directory for timelines and logs (default: none are kept)")
	flag.StringVar(&share, "share", "0/1", "plant every n-th defect from the i-th: `i/n`")
	flag.IntVar(&o.from, "from", 0, "leave out the defects before this one, counted from 0")
	flag.IntVar(&o.parallel, "parallel", 1, "how many defects run at a time: torture mostly waits")
	flag.BoolVar(&o.simulate, "sim", false, "look with the simulation")
	flag.DurationVar(&o.cpu, "cpu", time.Minute, "processor time that the simulation may use for each defect")
	list := flag.Bool("list", false, "list the defects")
	flag.Parse()
	if *list {
		for _, d := range Catalogue {
			fmt.Printf("%-26s %s\n", d.Promise, d.Name)
		}
		return
	}
	if _, err := fmt.Sscanf(share, "%d/%d", &o.share[0], &o.share[1]); err != nil || o.share[1] < 1 || o.parallel < 1 {
		fmt.Fprintf(os.Stderr, "planted: -share %q: want i/n; -parallel %d: want 1 or more\n", share, o.parallel)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "planted:", err)
		os.Exit(1)
	}
}

// run plants the defects and prints a table of what finds them, a line as soon as it is known.
func run(ctx context.Context, o options) error {
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	var chosen []Defect
	for i, d := range Catalogue {
		isMeant := slices.ContainsFunc(strings.Split(o.only, "|"), func(text string) bool {
			return strings.Contains(d.Name, text)
		})
		if isMeant && i >= o.from && i%o.share[1] == o.share[0] {
			chosen = append(chosen, d)
		}
	}
	sim, remove, err := buildSimulation(ctx, root)
	if err != nil {
		return err
	}
	defer remove()
	look := func(ctx context.Context, d Defect) (string, error) { return find(ctx, root, d, o, sim) }
	if o.simulate {
		look = func(ctx context.Context, d Defect) (string, error) { return sim.look(ctx, root, d, o) }
		fmt.Println("| Planted | Promise | Found by | Seed | Processor time |\n|---|---|---|---|---|")
	} else {
		fmt.Println("| Planted | Promise | Found by | After |\n|---|---|---|---|")
	}
	var mu sync.Mutex
	var missed []string
	var all sync.WaitGroup
	running := make(chan struct{}, o.parallel)
	for _, d := range chosen {
		running <- struct{}{}
		all.Go(func() {
			defer func() { <-running }()
			cells, err := look(ctx, d)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				cells = "error: " + strings.ReplaceAll(err.Error(), "\n", " ")
				missed = append(missed, d.Name)
			case cells == "":
				cells = "**missed**"
				missed = append(missed, d.Name)
			}
			fmt.Printf("| %s | %s | %s |\n", d.Name, d.Promise, cells)
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	fmt.Printf("\n%d of %d were missed\n", len(missed), len(chosen))
	if len(missed) > 0 {
		return fmt.Errorf("not found: %s", strings.Join(missed, "; "))
	}
	return nil
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	return strings.TrimSpace(string(out)), err
}

// prepare plants one defect, for builds with the overlay that description names. The caller removes
// dir.
func prepare(root string, d Defect) (dir, description string, err error) {
	planted := &overlay{root: root}
	if err := planted.plant(d); err != nil {
		return "", "", err
	}
	dir, err = os.MkdirTemp("", "redlatch-planted-")
	if err != nil {
		return "", "", err
	}
	description, err = planted.write(dir)
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", "", err
	}
	return dir, description, nil
}

// find plants one defect and returns the cells of the table that say what has found it: torture, or
// else its suite, or else the simulation. They are "" if nothing has.
func find(ctx context.Context, root string, d Defect, o options, sim *simulation) (cells string, err error) {
	dir, description, err := prepare(root, d)
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program := filepath.Join(dir, "redlatch")
	build := exec.CommandContext(ctx, "go", "build", "-overlay", description, "-o", program, "./cmd/redlatch")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	began := time.Now()
	by, err := torture(ctx, program, dir, d, o)
	if by != "" || err != nil {
		return foundBy(by, began), err
	}
	began = time.Now()
	if d.Suite[0] != "" && suite(ctx, root, description, d) {
		return foundBy("tests "+d.Suite[1]+" of "+d.Suite[0], began), nil
	}
	if d.Unsimulated != "" {
		return "", nil
	}
	began = time.Now()
	found, err := sim.find(ctx, root, d, o)
	if found == nil || err != nil {
		return "", err
	}
	return foundBy("simulation, seed "+found.seed+": "+found.checks, began), nil
}

// suite reports whether the suite of a defect has found it.
func suite(ctx context.Context, root, description string, d Defect) bool {
	test := exec.CommandContext(ctx, "go", "test", "-overlay", description, "-count=1", "-timeout", "2m",
		"-run", d.Suite[1], d.Suite[0])
	test.Dir = root
	out, err := test.CombinedOutput()
	// A test that waits for what the defect prevents ends with the timeout.
	hasFailed := bytes.Contains(out, []byte("--- FAIL")) || bytes.Contains(out, []byte("panic: test timed out"))
	return err != nil && hasFailed
}

// foundBy returns the cells of the table for something that began then.
func foundBy(what string, began time.Time) string {
	return fmt.Sprintf("%s | %v", what, time.Since(began).Round(100*time.Millisecond))
}

// torture runs torture until the first round with a violation, and returns the checks that failed.
func torture(ctx context.Context, program, dir string, d Defect, o options) (string, error) {
	if o.keep != "" {
		dir = filepath.Join(o.keep, strings.ReplaceAll(d.Name, " ", "-"))
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return "", err
		}
	}
	args := []string{
		"torture", "--json", "--fail-fast", "--duration", o.duration.String(), "--topology", o.topology, "--timelines", dir,
	}
	if o.directed {
		args = append(args, d.Find...)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", err
	}
	var result struct {
		Violations []struct {
			Check string `json:"check"`
		} `json:"violations"`
	}
	if jsonErr := json.Unmarshal(out, &result); jsonErr != nil {
		// Without a result, torture itself could not go on with this library.
		return "", fmt.Errorf("torture: %w: %s", errors.Join(err, jsonErr), exit.Stderr)
	}
	var checks []string
	for _, v := range result.Violations {
		checks = append(checks, v.Check)
	}
	slices.Sort(checks)
	return strings.Join(slices.Compact(checks), ", "), nil
}
