package main

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

func runApp(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	var o strings.Builder
	err = app(&o).Run(t.Context(), append([]string{"election"}, args...))
	return o.String(), err
}

func TestUsage(t *testing.T) {
	out, err := runApp(t, "--help")
	require.NoError(t, err)
	for _, want := range []string{"--elections", "--hand-overs", "--lease"} {
		require.Contains(t, out, want)
	}
	for _, args := range [][]string{{"now"}, {"-elections", "0"}, {"-hand-overs", "0"}, {"-lease", "1ms"}} {
		_, err := runApp(t, args...)
		require.Error(t, err, args)
	}
}

// Each contender has a row for each kind of end, and all ends are in it.
func TestElections(t *testing.T) {
	redistest.Require(t, redistest.NeedRedis)
	out, err := runApp(t, "-elections", "2", "-hand-overs", "1", "-lease", "500ms")
	require.NoError(t, err)
	rows := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, rows, 5)
	for i, want := range []string{"clean  polling", "clean  redlatch", "crash  polling", "crash  redlatch"} {
		require.Equal(t, strings.Fields(want), strings.Fields(rows[i+1])[:2])
		require.True(t, strings.HasSuffix(strings.TrimSpace(rows[i+1]), " 2"), rows[i+1])
	}
}

// The polling election keeps client-go's times: a successor waits for the lease after a crash, and
// for its own poll after a clean end.
func TestPollingKeepsTheTimesOfClientGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		began := make(chan time.Time, 10)
		stand := func(rdb *redis.Client, id string) (end context.CancelFunc) {
			ctx, end := context.WithCancel(t.Context())
			p := &polling{rdb: rdb, key: "leader", id: id, settings: settings{15 * time.Second}}
			go func() {
				_ = p.stand(ctx, func(ctx context.Context) {
					began <- time.Now()
					<-ctx.Done()
				})
			}()
			return end
		}
		link := s.Proxy(t)
		stand(link.Client(t), "a")
		<-began
		endB := stand(s.Client(t), "b")
		time.Sleep(time.Minute)
		link.BlackHole(true)
		crashed := time.Now()
		took := (<-began).Sub(crashed)
		require.Greater(t, took, 13*time.Second)
		require.Less(t, took, 15*time.Second+2*4400*time.Millisecond)
		stand(s.Client(t), "c")
		time.Sleep(time.Minute)
		ended := time.Now()
		endB()
		took = (<-began).Sub(ended)
		require.Less(t, took, 4500*time.Millisecond)
		link.Heal()
	})
}
