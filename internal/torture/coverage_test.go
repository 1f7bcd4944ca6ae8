package torture

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/primitives"
)

// The table has a letter for each phase that a fault has met, and says what it never met.
func TestCoverage(t *testing.T) {
	h := newTestHistory(func(h *testHistory) {
		h.fault(faultSlow, 1, 10_400, 10_700)
		a := h.hold(0, 10_000, "a1") // another process: not disturbed
		h.release(0, a, 10_500, 10_501)
		b := h.holdOf("lock", 1, 10_100, 10_510, "b1")
		h.waits(1, b, 10_110)
		h.records[1] = append(h.records[1], record{Kind: kindRenew, At: 10_600 * ms, ID: "b1", Names: []string{"name"}})
		h.waits(0, h.holdOf("lock", 0, 10_550, 12_000, "a2"), 10_560)
		h.release(1, b, 10_650, 10_651)
		h.fault(faultKill, 2, 15_000, 15_000)
	})
	c := Coverage{}
	c.cover(h.history)
	require.Equal(t, Coverage{faultSlow: {"lock": {
		phaseWait: 1, phaseHold: 1, phaseRenew: 1, phaseRelease: 1, phaseHandOff: 1,
	}}}, c)
	var out bytes.Buffer
	require.NoError(t, c.print(&out, []string{faultSlow, faultKill}, []string{"lock", "latch"}))
	require.Contains(t, out.String(), ".w.hr.RH.")
	require.Contains(t, out.String(), "\nnever met:\n  slow and latch\n  kill at all\n")
}

// The tables fit on a terminal, whatever has met.
func TestCoverageFitsOnATerminal(t *testing.T) {
	c := Coverage{}
	var names []string
	for _, f := range faults() {
		names = append(names, f.name)
		c[f.name] = map[string]map[string]int{}
		for _, primitive := range Primitives {
			c[f.name][primitive] = map[string]int{}
			for _, p := range phaseLetters {
				c[f.name][primitive][p.phase] = 1
			}
		}
	}
	var out bytes.Buffer
	require.NoError(t, c.print(&out, names, Primitives))
	require.Contains(t, out.String(), "each fault has met each primitive")
	for line := range strings.Lines(out.String()) {
		require.LessOrEqual(t, len(line), 81, line)
	}
}

// Errors are told apart as callers do, by errors.Is.
func TestClasses(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want []string
	}{
		{nil, nil},
		{fmt.Errorf("x: %w: %w", primitives.ErrNotAcquired, context.DeadlineExceeded), []string{isNotAcquired, isEnded}},
		{primitives.ErrReleased, []string{isNotHeld, isReleased}},
		{&net.OpError{Op: "dial", Err: io.EOF}, []string{isTransport}},
		{io.ErrUnexpectedEOF, []string{isOther}},
	} {
		require.Equal(t, tt.want, classesOf(tt.err), "%v", tt.err)
	}
	lost := failure(&primitives.LossError{Reason: primitives.LossGone})
	require.Equal(t, outcomeLost, lost.Outcome)
	require.Equal(t, "gone", lost.Reason)
}
