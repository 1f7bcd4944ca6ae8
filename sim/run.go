package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/torture"
)

// The checks of this program itself.
const (
	checkSame  = "determinism" // a seed gave two different rounds
	checkCrash = "crash"       // the program ended, or did not end
)

// prepare builds the simulation with a library.
func prepare(ctx context.Context, library string) (*guest, error) {
	library, err := filepath.Abs(library)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "redlatch-sim-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	wasm, err := build(ctx, library, dir)
	if err != nil {
		return nil, err
	}
	return compile(ctx, wasm)
}

// simulate runs the seeds and prints what they find. It returns the number of violations.
func simulate(ctx context.Context, o options, out io.Writer) (violations int, err error) {
	g, err := prepare(ctx, o.library)
	if err != nil {
		return 0, err
	}
	if o.shrink {
		return shrink(ctx, g, o, out)
	}
	r := &seeds{options: o, guest: g, next: o.first, began: processorTime()}
	var workers sync.WaitGroup
	for range o.parallel {
		workers.Go(func() { r.work(ctx, out) })
	}
	workers.Wait()
	if ctx.Err() != nil {
		fmt.Fprintln(out, "sim: interrupted")
	}
	if r.replays > 0 {
		fmt.Fprintf(out, "replays: %d of %d hashes were equal to the first of their seeds, of which there are %d\n", r.equal,
			r.replays, r.replayed)
	}
	fmt.Fprintf(out, "sim: %d seeds, %d violations\n", r.done, r.violations)
	return r.violations, r.err
}

// seeds is a run over many seeds.
type seeds struct {
	options

	guest *guest
	began time.Duration

	mu         sync.Mutex // guards the rest, and the output
	next       uint64
	over       bool
	done       int
	violations int
	replayed   int // seeds
	replays    int // their runs
	equal      int // runs with the hash of the first
	err        error
}

// take returns the next seed.
func (r *seeds) take(ctx context.Context) (seed uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	isLate := r.cpu > 0 && processorTime()-r.began >= r.cpu
	isEnough := r.failFast && r.violations > 0
	if r.over || isLate || isEnough || ctx.Err() != nil || r.err != nil {
		return 0, false
	}
	seed = r.next
	r.over = seed == r.last
	r.next++
	return seed, true
}

func (r *seeds) work(ctx context.Context, out io.Writer) {
	for {
		seed, ok := r.take(ctx)
		if !ok {
			return
		}
		result := r.run(ctx, seed)
		if r.twice {
			if hash, ok := r.hash(ctx, seed); ok {
				compare(result, hash)
			}
		}
		if len(result.Violations) > 0 && r.replay > 0 {
			r.repeat(ctx, seed, result)
		}
		if ctx.Err() != nil {
			return
		}
		r.report(result, out)
	}
}

func (r *seeds) run(ctx context.Context, seed uint64) *torture.Simulated {
	return r.guest.result(ctx, request{Plan: torture.MakePlan(seed), Log: r.single, Page: r.html != ""})
}

// hash runs a seed once more. It is not ok if the user interrupted it.
func (r *seeds) hash(ctx context.Context, seed uint64) (hash string, ok bool) {
	if ctx.Err() != nil {
		return "", false
	}
	hash = r.run(ctx, seed).Hash
	return hash, ctx.Err() == nil
}

// compare says whether another run of a seed gave the same round as the first one. If it did not,
// that is a violation.
func compare(first *torture.Simulated, hash string) (equal bool) {
	if hash == first.Hash {
		return true
	}
	first.Violations = append(first.Violations, torture.Violation{
		Check: checkSame, Seed: first.Seed, Detail: "the hashes of two runs are " + first.Hash + " and " + hash,
	})
	return false
}

// repeat runs a seed so many times more as the user wants, and counts the equal rounds. If it is
// interrupted, only the runs that were completed count.
func (r *seeds) repeat(ctx context.Context, seed uint64, first *torture.Simulated) {
	made, equal := 0, 0
	for range r.replay {
		hash, ok := r.hash(ctx, seed)
		if !ok {
			break
		}
		made++
		if compare(first, hash) {
			equal++
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.replayed++
	r.replays += made
	r.equal += equal
}

// report prints what a seed has found.
func (r *seeds) report(result *torture.Simulated, out io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failFast && r.violations > 0 {
		return // of a seed that ran beside the one that has failed
	}
	r.done++
	r.violations += len(result.Violations)
	if r.single {
		fmt.Fprintf(out, "%sseed %d: %d operations in %v of virtual time, hash %s\n", result.Log, result.Seed,
			result.Operations, time.Duration(result.Virtual)*time.Millisecond, result.Hash)
	}
	for _, v := range result.Violations {
		printViolation(out, result.Seed, &v)
	}
	if r.failFast && r.violations > 0 {
		took := (processorTime() - r.began).Seconds()
		fmt.Fprintf(out, "seed %d failed after %.1f s of processor time\n", result.Seed, took)
	}
	if r.html != "" {
		if err := os.WriteFile(r.html, []byte(result.Page), 0o600); err != nil {
			r.err = err
		}
	}
}

func printViolation(out io.Writer, seed uint64, v *torture.Violation) {
	fmt.Fprintf(out, "seed %d: %s", seed, v.Check)
	if v.Primitive != "" {
		fmt.Fprintf(out, " of %s %s", v.Primitive, v.Name)
	}
	fmt.Fprintf(out, ": %s\n", v.Detail)
}
