package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/redlatch/redlatch/internal/torture"
)

// shrinking is the reduction of a plan: parts are left out while the same check still fails.
type shrinking struct {
	guest *guest
	check string
	plan  *torture.Plan
	runs  int
	end   time.Duration // of processor time; 0: none
}

// shrink leaves out what does not matter for the violation of a seed, and prints what is left.
func shrink(ctx context.Context, g *guest, o options, out io.Writer) (int, error) {
	plan := torture.MakePlan(o.first)
	result := g.result(ctx, request{Plan: plan})
	if len(result.Violations) == 0 {
		fmt.Fprintf(out, "seed %d has no violation\nsim: 1 seeds, 0 violations\n", o.first)
		return 0, nil
	}
	s := &shrinking{guest: g, check: result.Violations[0].Check, plan: plan}
	if o.cpu > 0 {
		s.end = processorTime() + o.cpu
	}
	for before := -1; before != s.size() && ctx.Err() == nil; {
		before = s.size()
		s.faults(ctx)
		s.sessions(ctx)
		s.steps(ctx)
	}
	result = g.result(ctx, request{Plan: s.plan, Page: o.html != ""})
	for _, line := range result.Story {
		fmt.Fprintln(out, line)
	}
	for _, v := range result.Violations[:min(len(result.Violations), 2)] {
		printViolation(out, o.first, &v)
	}
	if o.html != "" {
		if err := os.WriteFile(o.html, []byte(result.Page), 0o600); err != nil {
			return 0, err
		}
	}
	fmt.Fprintf(out, "%d steps and %d faults are left after %d runs\n", s.countSteps(), len(s.plan.Faults), s.runs)
	fmt.Fprintf(out, "sim: 1 seeds, %d violations\n", len(result.Violations))
	return len(result.Violations), nil
}

func (s *shrinking) countSteps() (n int) {
	for _, p := range s.plan.Processes {
		for _, steps := range p.Sessions {
			n += len(steps)
		}
	}
	return n
}

// size is how much is left.
func (s *shrinking) size() int { return s.countSteps() + len(s.plan.Faults) }

// fails reports whether a plan still fails, and takes it over if it does.
func (s *shrinking) fails(ctx context.Context, p *torture.Plan) bool {
	if ctx.Err() != nil || s.end > 0 && processorTime() > s.end {
		return false
	}
	s.runs++
	result := s.guest.result(ctx, request{Plan: p})
	same := slices.ContainsFunc(result.Violations, func(v torture.Violation) bool { return v.Check == s.check })
	if same {
		s.plan = p
	}
	return same
}

// faults leaves out faults.
func (s *shrinking) faults(ctx context.Context) {
	reduce(len(s.plan.Faults), func(leave []bool) bool {
		p := *s.plan
		p.Faults = without(s.plan.Faults, leave)
		return s.fails(ctx, &p)
	})
}

// sessions leaves out all steps of a session. The session itself stays: the numbers of the others
// do not change.
func (s *shrinking) sessions(ctx context.Context) {
	n := 0
	for _, p := range s.plan.Processes {
		for _, steps := range p.Sessions {
			if len(steps) > 0 {
				n++
			}
		}
	}
	reduce(n, func(leave []bool) bool {
		at := -1
		return s.fails(ctx, s.edited(func(steps []torture.Step) []torture.Step {
			if len(steps) == 0 {
				return nil
			}
			at++
			if leave[at] {
				return nil
			}
			return steps
		}))
	})
}

// steps leaves out single steps.
func (s *shrinking) steps(ctx context.Context) {
	reduce(s.countSteps(), func(leave []bool) bool {
		at := 0
		return s.fails(ctx, s.edited(func(steps []torture.Step) []torture.Step {
			part := leave[at : at+len(steps)]
			at += len(steps)
			return without(steps, part)
		}))
	})
}

// edited returns the plan with other steps in each session.
func (s *shrinking) edited(edit func([]torture.Step) []torture.Step) *torture.Plan {
	p := *s.plan
	p.Processes = slices.Clone(p.Processes)
	for i := range p.Processes {
		p.Processes[i].Sessions = slices.Clone(p.Processes[i].Sessions)
		for j, steps := range p.Processes[i].Sessions {
			p.Processes[i].Sessions[j] = edit(steps)
		}
	}
	return &p
}

func without[T any](all []T, leave []bool) (out []T) {
	for i, each := range all {
		if !leave[i] {
			out = append(out, each)
		}
	}
	return out
}

// reduce tries to leave out parts of n: half of them at a time at first, and single ones in the
// end. try is called with the parts to leave out of those that are left; if it returns true, they
// are gone.
func reduce(n int, try func(leave []bool) bool) {
	for size := max(1, n/2); n > 0; size /= 2 {
		for from := 0; from < n; {
			leave := make([]bool, n)
			for i := from; i < min(n, from+size); i++ {
				leave[i] = true
			}
			if try(leave) {
				n -= min(n, from+size) - from
			} else {
				from += size
			}
		}
		if size <= 1 {
			return
		}
	}
}
