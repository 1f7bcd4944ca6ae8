package interop_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/interop/redisson"
)

// situation is a line of the matrix.
type situation struct {
	name  string
	core  bool              // everywhere; else with the newest Redisson on one server only
	alone bool              // measures, or works hard: nothing runs beside it
	of    []string          // primitives whose own it is; nil: it concerns all
	na    map[string]string // primitive to the reason why it does not apply
	run   func(c *cell)
	start func(t *testing.T, w *world) (run func(c *cell)) // in place of run: with what the cells share
}

// primitives are those that a situation is tested with.
func (s *situation) primitives() []string {
	if s.of != nil {
		return s.of
	}
	return slices.DeleteFunc(primitiveNames(), func(p string) bool { return s.na[p] != "" })
}

// TestMatrix has Go and Java share each primitive in each situation. What came of it is printed at the end of the run; -matrix
// writes it into the documentation.
func TestMatrix(t *testing.T) {
	for _, setup := range setups {
		t.Run(short(setup.title), func(t *testing.T) {
			w := &world{title: setup.title, core: setup.core, driver: setup.java.Driver(t), config: redisson.Config{}}
			setup.open(t, w)
			w.java = w.driver.Client(t, w.config)
			brief := w.config
			brief.Watchdog = javaTTL
			w.brief = w.driver.Client(t, brief)
			for _, s := range situations() {
				if s.core || !setup.core {
					s.test(t, w)
				}
			}
		})
	}
}

func short(title string) string {
	return strings.Join(strings.FieldsFunc(title, func(r rune) bool { return r == ' ' || r == ',' })[:3], "_")
}

func (s *situation) test(t *testing.T, w *world) {
	outcome.open(w.title, s.name)
	for primitive, reason := range s.na {
		outcome.record(w.title, s.name, primitive, result{verdict: notApplicable, reason: reason})
	}
	t.Run(s.name, func(t *testing.T) {
		if !s.alone {
			t.Parallel()
		}
		run := s.run
		if s.start != nil {
			run = s.start(t, w)
		}
		for _, primitive := range s.primitives() {
			t.Run(primitive, func(t *testing.T) {
				c := &cell{woken: &woken{}}
				t.Cleanup(func() { outcome.record(w.title, s.name, primitive, result{verdict: verdict(t), woken: *c.woken}) })
				if !s.alone {
					t.Parallel()
				}
				c = newCell(t, w, primitive)
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

// situations are the lines of the matrix, in order.
func situations() []situation {
	return slices.Concat(commonSituations(), fairSituations(), fencedSituations(), rwSituations(), poolSituations(), latchSituations(), jointSituations())
}

// TestSituations: each either concerns a primitive or says why it does not.
func TestSituations(t *testing.T) {
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
