package demo

import (
	"bytes"
	"context"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestServersAreSeparateUnlessOneIsGiven(t *testing.T) {
	embedded, closeAll := servers(nil)
	defer closeAll()
	require.Len(t, embedded, nodeCount)
	require.True(t, embedded.separate())
	one, closeAll := servers(&redis.Options{})
	defer closeAll()
	require.Len(t, one, nodeCount)
	require.False(t, one.separate())
}

func TestOccupancyCountsViolations(t *testing.T) {
	o := occupancy{limit: 2}
	require.EqualValues(t, 1, o.enter())
	require.EqualValues(t, 2, o.enter())
	require.Zero(t, o.violations.Load())
	o.leave()
	require.EqualValues(t, 3, o.enter())
	require.Zero(t, o.violations.Load())
	require.EqualValues(t, 4, o.enter())
	require.EqualValues(t, 1, o.violations.Load())
	require.EqualValues(t, 3, o.peak.Load())
}

func TestStoreRejectsOldTokens(t *testing.T) {
	st := &store{}
	require.NoError(t, st.write(7, "seven"))
	require.NoError(t, st.write(7, "again"))
	require.EqualError(t, st.write(6, "six"), "token 6 is older than 7")
	require.Equal(t, "again", st.text)
	require.True(t, increasing([]int64{1, 2, 9}))
	require.False(t, increasing([]int64{1, 2, 2}))
}

func TestSelectKeepsTheOrderGiven(t *testing.T) {
	selected, err := Select("cutoff, lock")
	require.NoError(t, err)
	require.Equal(t, []string{"cutoff", "lock"}, []string{selected[0].Name, selected[1].Name})
}

// A failed check and a scene's error both fail the demo. The remaining scenes still run.
func TestFailedSceneDoesNotStopTheOthers(t *testing.T) {
	scenes := []Scene{
		{"wrong", "a check fails", func(_ context.Context, s *stage) error { s.equal("overlaps", 1, 0); return nil }},
		{"broken", "the scene fails", func(context.Context, *stage) error { return errors.New("broken scene") }},
		{"right", "all checks pass", func(_ context.Context, s *stage) error { s.equal("overlaps", 0, 0); return nil }},
	}
	var out bytes.Buffer
	err := Run(t.Context(), Config{Out: &out, Prefix: "x", Scenes: scenes})
	require.EqualError(t, err, "2 of 3 checks failed")
	require.Contains(t, out.String(), "\n  wrong: FAILED  overlaps: 1 (wanted: 0)\n")
	require.Contains(t, out.String(), "\n  broken: FAILED  scene completed: no (wanted: yes)\n")
	require.Contains(t, out.String(), "broken scene")
	require.Contains(t, out.String(), "\n  ok  overlaps: 0\n")
}

// bar is a bar of a page: its class, and from where to where it goes, in percent.
type bar struct {
	class       string
	left, right float64
}

// drawScene runs a scene and returns its page.
func drawScene(t *testing.T, sc Scene) string {
	t.Helper()
	var page bytes.Buffer
	require.NoError(t, Run(t.Context(), Config{Out: io.Discard, Prefix: "x", Scenes: []Scene{sc}, Page: &page}))
	return page.String()
}

var barPattern = regexp.MustCompile(`<i class="([a-z ]+)" style="left:([\d.]+)%;width:([\d.]+)%"`)

// barsOf returns the bars of a process on a page, and their classes.
func barsOf(t *testing.T, page, process string) (all []bar, classes []string) {
	t.Helper()
	_, row, found := strings.Cut(page, `<div class="label">`+process+`</div>`)
	require.True(t, found)
	row, _, _ = strings.Cut(row, "</div>")
	for _, match := range barPattern.FindAllStringSubmatch(row, -1) {
		left, err := strconv.ParseFloat(match[2], 64)
		require.NoError(t, err)
		width, err := strconv.ParseFloat(match[3], 64)
		require.NoError(t, err)
		all = append(all, bar{match[1], left, left + width})
		classes = append(classes, match[1])
	}
	return all, classes
}

// The page shows why the late host is refused: the lock is kept by then.
func TestPageOfCronShowsTheMinimumHold(t *testing.T) {
	t.Parallel()
	page := drawScene(t, cronScene)
	require.Contains(t, page, "<span>kept by WithMinHold</span>")
	first, classes := barsOf(t, page, "host-1")
	require.Equal(t, []string{"hold", "stay", "hold", "stay"}, classes)
	tries, classes := barsOf(t, page, "host-2")
	require.Equal(t, []string{"refused", "refused"}, classes)
	for i, try := range tries {
		kept := first[2*i+1]
		require.Greater(t, try.left, kept.left)
		require.Less(t, try.left, kept.right)
	}
}

// On a machine that stands still until the minimum hold is over, both hosts may run the job. Such a
// night is repeated, a few times, and the scene says so: nothing is wrong with the lock.
func TestCronRepeatsNightsOfAMachineThatStoodStill(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		slow  int // tries during which it stands still
		error string
	}{
		{"once", 1, ""},
		{
			"in each try", cronTries,
			"this machine is too slow: it stood still for longer than 600ms in each of 3 tries of night 1",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tries := 0
			late := func(ctx context.Context, host *process, first time.Time) error {
				tries++
				if tries <= tt.slow {
					return awaitFree(ctx, host)
				}
				wait(ctx, time.Until(first.Add(cronLate)))
				return nil
			}
			var scene error
			sc := Scene{"cron", "it is slow", func(ctx context.Context, s *stage) error {
				scene = runNights(ctx, s, late)
				return scene
			}}
			var text bytes.Buffer
			err := Run(t.Context(), Config{Out: &text, Prefix: "x", Scenes: []Scene{sc}})
			out := text.String()
			require.GreaterOrEqual(t, strings.Count(out, "this machine stood still"), tt.slow, out)
			firsts := regexp.MustCompile(`host-1  night \d: runs the job`).FindAllString(out, -1)
			require.Len(t, firsts, tries, "each try begins when the lock is free: %s", out)
			if tt.error == "" {
				require.NoError(t, err, out)
				require.GreaterOrEqual(t, tries, cronCount+tt.slow)
				return
			}
			require.Error(t, err)
			require.EqualError(t, scene, tt.error)
			require.Contains(t, out, "FAILED  scene completed: no")
		})
	}
}

// The page shows when the holder died. Its lock stays taken until the next one holds it, visibly.
func TestPageOfCrashShowsTheDeath(t *testing.T) {
	t.Parallel()
	page := drawScene(t, crashScene)
	require.NotContains(t, page, "lost: expired")
	require.Contains(t, page, "<span>left to its lease</span>")
	require.Contains(t, page, "died after it had held it for")
	dead, classes := barsOf(t, page, "anna")
	require.Equal(t, []string{"hold killed", "stay"}, classes)
	next, classes := barsOf(t, page, "ben")
	require.Equal(t, []string{"wait", "hold"}, classes)
	died, stays := dead[0], dead[1]
	require.InDelta(t, died.right, stays.left, 0.1)
	require.InDelta(t, stays.right, next[1].left, 25, "the next holder acquires when the lease is over")
	require.Greater(t, next[1].right, next[1].left+2)
}
