package main

import (
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/torture"
)

// A stopped process does nothing, while the others go on. Later, it goes on, too.
func TestOneProcessStandsStill(t *testing.T) {
	g := newGuest(t)
	plan := torture.MakePlan(4)
	plan.Topology, plan.Length, plan.TTL = torture.Single, 20*time.Second, 600*time.Millisecond
	plan.Names, plan.Primitives, plan.Long, plan.Processes = 1, []string{"lock"}, 1000, nil
	plan.Faults = []torture.PlannedFault{{Kind: "stop", At: time.Second, Length: 2 * time.Second}}
	for p := range 2 {
		var steps []torture.Step
		for i := range 200 {
			steps = append(steps, torture.Step{
				At: time.Duration(i) * 25 * time.Millisecond, Primitive: "lock", Seed: uint64(1000*p + i),
			})
		}
		plan.Processes = append(plan.Processes, torture.PlannedProcess{Sessions: [][]torture.Step{steps}})
	}
	r := g.result(t.Context(), request{Plan: plan, Log: true})
	require.Empty(t, r.Violations)
	// Of each process: how many operations began before the stop, in it and after it. The log tells
	// what ends a stop.
	counts := [2][3]int{}
	begins := regexp.MustCompile(`(?m)^([0-9.]+) s to [0-9.]+ s: process ([01])\.`)
	for _, m := range begins.FindAllStringSubmatch(r.Log, -1) {
		at, err := time.ParseDuration(m[1] + "s")
		require.NoError(t, err)
		when := 0
		switch {
		case at > 3010*time.Millisecond:
			when = 2
		case at > 1010*time.Millisecond && at < 2990*time.Millisecond:
			when = 1
		}
		counts[int(m[2][0]-'0')][when]++
	}
	t.Log(counts)
	require.Zero(t, counts[0][1])
	for _, n := range []int{counts[0][0], counts[0][2], counts[1][0], counts[1][1], counts[1][2]} {
		require.Greater(t, n, 10)
	}
}
