package interop_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/interop/redisson"
)

// situation is a line of the matrix. The documentation contains its name.
type situation struct {
	name  string
	core  bool              // runs in all environments; otherwise only with the newest Redisson on one server
	alone bool              // measures time or uses much CPU, so no other cell may run at the same time
	of    []string          // the primitives it applies to; nil: all except na
	na    map[string]string // primitive to the reason why the situation does not apply
	run   func(c *cell)
	// start replaces run if the cells share state. It makes the state and returns run.
	start func(t *testing.T, e *environment) (run func(c *cell))
}

// primitives returns the primitives that the situation is tested with.
func (s *situation) primitives() []string {
	if s.of != nil {
		return s.of
	}
	return slices.DeleteFunc(primitiveNames(), func(p string) bool { return s.na[p] != "" })
}

// TestMatrix shares each primitive between Go and Java in each situation. The results are printed
// at the end of the run. The flag -matrix writes them into a page, such as matrix.md.
func TestMatrix(t *testing.T) {
	for _, setup := range setups {
		t.Run(short(setup.title), func(t *testing.T) {
			e := &environment{title: setup.title, core: setup.core, driver: setup.java.Driver(t), config: redisson.Config{}}
			setup.open(t, e)
			e.java = e.driver.Client(t, e.config)
			shortTTL := e.config
			shortTTL.Watchdog = javaTTL
			e.javaShortTTL = e.driver.Client(t, shortTTL)
			for _, s := range situations() {
				if s.core || !setup.core {
					s.test(t, e)
				}
			}
		})
	}
}

// short returns the first three words of a title, for the name of a subtest.
func short(title string) string {
	return strings.Join(strings.FieldsFunc(title, func(r rune) bool { return r == ' ' || r == ',' })[:3], "_")
}

// test runs the situation for each of its primitives and records the results.
func (s *situation) test(t *testing.T, e *environment) {
	results.open(e.title, s.name)
	for primitive, reason := range s.na {
		results.record(e.title, s.name, primitive, result{verdict: notApplicable, reason: reason})
	}
	t.Run(s.name, func(t *testing.T) {
		if !s.alone {
			t.Parallel()
		}
		run := s.run
		if s.start != nil {
			run = s.start(t, e)
		}
		for _, primitive := range s.primitives() {
			t.Run(primitive, func(t *testing.T) {
				c := &cell{wakeUps: &wakeUps{}}
				t.Cleanup(func() {
					results.record(e.title, s.name, primitive, result{verdict: verdict(t), wakeUps: *c.wakeUps})
				})
				if !s.alone {
					t.Parallel()
				}
				c = newCell(t, e, primitive)
				run(c)
			})
		}
	})
}

func verdict(t *testing.T) string {
	switch {
	case t.Failed():
		return failed
	case t.Skipped():
		return skipped
	}
	return passed
}

// situations returns the lines of the matrix, in order.
func situations() []situation {
	return slices.Concat(
		commonSituations(), fairSituations(), fencedSituations(), rwSituations(),
		poolSituations(), latchSituations(), jointSituations(),
	)
}

// Each situation applies to at least one primitive and gives a reason for each one that it
// excludes.
func TestSituationsAreComplete(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, s := range situations() {
		require.False(t, seen[s.name], s.name)
		seen[s.name] = true
		require.NotEmpty(t, s.primitives(), s.name)
		require.NotEqual(t, s.run == nil, s.start == nil, s.name)
		require.Subset(t, primitiveNames(), s.primitives(), s.name)
		for primitive, reason := range s.na {
			require.Contains(t, primitiveNames(), primitive, s.name)
			require.NotEmpty(t, reason, s.name)
		}
	}
}
