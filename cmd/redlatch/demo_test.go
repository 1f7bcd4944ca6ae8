package main

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/locktest"
)

// Each scene plays to its end on both kinds of server, alone, and leaves no key.
func TestScenes(t *testing.T) {
	for _, sc := range scenes() {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel() // they wait most of the time
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				prefix := redistest.Name(t)
				code, stdout, stderr := redlatch(t.Context(), "demo", "--redis", "redis://"+s.Addr(), "--only", sc.name, "--key-prefix", prefix)
				require.Zero(t, code, stdout)
				require.Empty(t, stderr)
				require.Contains(t, stdout, s.Addr())
				require.Contains(t, stdout, "1. "+sc.name+": ")
				require.Regexp(t, `All \d+ checks passed`, stdout)
				require.NotContains(t, stdout, "FAILED")
				require.Empty(t, redistest.Keys(t, s, "*"+prefix+"*"))
			})
		})
	}
}

// The whole of it, as somebody sees it who just types the command.
func TestDemo(t *testing.T) {
	t.Setenv("REDIS_URL", "redis://127.0.0.1:1") // somebody's own server, which nobody asked us to use
	code, stdout, stderr := redlatch(t.Context(), "demo")
	require.Zero(t, code, stdout)
	require.Empty(t, stderr)
	for _, line := range []string{
		`^redlatch demo on a server inside this process`,
		`^1\. lock: `,
		`s  (anna|ben|cleo)/\d +holds it; waiting: (\S+/\d ?)+$`,
		`s  anna +dies`,
		`s  ben +holds it, \d.* after the crash$`,
		`s  anna +is told: redlatch: hold lock "[^"]+": lost`,
		`^  SCENE +CHECK +MEASURED +WANTED$`,
		`^  lock +acquisitions +135 +135 +ok$`,
		`^  lock +overlaps +0 +0 +ok$`,
		`^  lock +lost updates +0 +0 +ok$`,
		`^  crash +time to take over after the crash +\S+ +at most 3s +ok$`,
		`^  cutoff +before another could have it, by +\S+ +more than 0s +ok$`,
		`s  all +served: cleo/1 ben/1 anna/1 cleo/2 ben/2 anna/2 anna$`,
		`^  fair +served in the order in which they came +yes +yes +ok$`,
		`s  anna +wakes up and writes, and hears: token 4 is older than 5$`,
		`^  fenced +tokens +\[1 2 3 4 5\] +rising +ok$`,
		`^  rwlock +readers at once +3 +3 +ok$`,
		`^  rwlock +after the downgrade others may read +yes +yes +ok$`,
		`^  multi +acquisitions of both +30 +30 +ok$`,
		`^  multi +and none kept +yes +yes +ok$`,
		`s  anna +holds it on all 3, for 800ms at a time$`,
		`^  red +valid beyond its TTL with one server cut off +yes +yes +ok$`,
		`^  semaphore +acquisitions +48 +48 +ok$`,
		`^  permits +time until its permit was back +\S+ +at most 2\.7s +ok$`,
		`^  latch +went on before all were done +0 +0 +ok$`,
		`^  striped +locks for all +4 +4 +ok$`,
		`^All \d+ checks passed, in `,
	} {
		require.Regexp(t, `(?m)`+line, stdout)
	}
	require.NotContains(t, stdout, "stand for three servers")
}

// A redlock wants servers of its own; where there is but one the demo says so.
func TestOneServerStandsForThree(t *testing.T) {
	s := locktest.NewServer(t)
	code, stdout, _ := redlatch(t.Context(), "demo", "--redis", "redis://"+s.Addr(), "--only", "red")
	require.Zero(t, code, stdout)
	require.Contains(t, stdout, "three names on one server stand for three servers")
}

func TestNodes(t *testing.T) {
	embedded, _, end, err := servers(t.Context(), "")
	require.NoError(t, err)
	defer end()
	require.Len(t, embedded, nodeCount)
	require.True(t, embedded.separate())
	one, _, end, err := servers(t.Context(), "redis://"+locktest.NewServer(t).Addr())
	require.NoError(t, err)
	defer end()
	require.Len(t, one, nodeCount)
	require.False(t, one.separate())
}

// What the scenes count by sees when too many are inside.
func TestCrowd(t *testing.T) {
	c := crowd{limit: 2}
	require.EqualValues(t, 1, c.enter())
	require.EqualValues(t, 2, c.enter())
	require.Zero(t, c.over.Load())
	c.leave()
	require.EqualValues(t, 3, c.enter())
	require.Zero(t, c.over.Load())
	require.EqualValues(t, 4, c.enter())
	require.EqualValues(t, 1, c.over.Load())
	require.EqualValues(t, 3, c.most.Load())
}

func TestStoreRefusesOldTokens(t *testing.T) {
	st := &store{}
	require.NoError(t, st.write(7, "seven"))
	require.NoError(t, st.write(7, "again"))
	require.EqualError(t, st.write(6, "six"), "token 6 is older than 7")
	require.Equal(t, "again", st.text)
	require.True(t, rising([]int64{1, 2, 9}))
	require.False(t, rising([]int64{1, 2, 2}))
}

func TestOnlyKeepsTheOrderGiven(t *testing.T) {
	chosen, err := choose("cutoff, lock")
	require.NoError(t, err)
	require.Equal(t, []string{"cutoff", "lock"}, []string{chosen[0].name, chosen[1].name})
}

// A check that fails, and a scene that cannot go on, fail the demo; the scenes after them are shown all the same.
func TestFailuresShow(t *testing.T) {
	scenes := []scene{
		{"wrong", "a check that fails", func(_ context.Context, s *stage) error { s.equal("overlaps", 1, 0); return nil }},
		{"broken", "an error", func(context.Context, *stage) error { return errors.New("no luck") }},
		{"right", "nothing wrong", func(_ context.Context, s *stage) error { s.equal("overlaps", 0, 0); return nil }},
	}
	var out bytes.Buffer
	err := demo(t.Context(), newReport(&out), "", "x", scenes)
	require.EqualError(t, err, "2 of 3 checks failed")
	require.Regexp(t, `wrong +overlaps +1 +0 +FAILED`, out.String())
	require.Regexp(t, `broken +played to its end +no +yes +FAILED`, out.String())
	require.Contains(t, out.String(), "no luck")
	require.Regexp(t, `right +overlaps +0 +0 +ok`, out.String())
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code, _, stderr := redlatch(ctx, "demo")
	require.Equal(t, exitFailed, code)
	require.Equal(t, "redlatch: interrupted in scene lock\n", stderr)
}
