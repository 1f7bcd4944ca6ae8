//go:build unix

package main

import (
	"encoding/json"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// Away from a terminal watch prints a line a second, with locks as ls shows them, until SIGINT.
func TestWatchPrintsLinesUntilSIGINT(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	prefix := redistest.Name(t) + ":"
	c := client(t, s, primitives.WithPrefix(prefix), primitives.WithClientName("me"))
	for _, lock := range []*primitives.Lock{
		c.Lock("plain"), c.FairLock("fair"), c.FencedLock("fenced"), c.RWLock("rw").Reader(),
	} {
		hold := fixture.Acquire(t, t.Context(), lock)
		defer func() { _ = hold.Release(t.Context()) }() // a hold that nobody refers to is not renewed
	}
	redistest.WaitFor(t, soon, func() bool { // the client's name is written in the background
		_, stdout, _ := on(t, s, "inspect", "--json", "--prefix", prefix, "plain")
		return strings.Contains(stdout, `"client":"me"`)
	}, "the client's name")
	_, listed, _ := on(t, s, "ls", "--json", "--prefix", prefix)
	p := start(t, "redis://"+s.Addr(), "watch", "--prefix", prefix, "f*")
	for range 2 {
		var got struct {
			At        time.Time
			Held      []fields
			Waiting   *int
			AcquiredS *float64 `json:"acquired_s"`
			LostS     *float64 `json:"lost_s"`
		}
		line := p.line()
		require.NoError(t, json.Unmarshal([]byte(line), &got), line)
		require.WithinDuration(t, time.Now(), got.At, soon)
		require.NotNil(t, got.Waiting)
		require.NotNil(t, got.AcquiredS)
		require.NotNil(t, got.LostS)
		require.Len(t, got.Held, 2, line)
		for _, held := range got.Held {
			found := false
			for line := range strings.Lines(listed) {
				var want fields
				require.NoError(t, json.Unmarshal([]byte(line), &want))
				if want["name"] == held["name"] {
					found = true
					withoutTTLs(want)
					withoutTTLs(held)
					require.Equal(t, want, held)
				}
			}
			require.True(t, found, "%v is not in %s", held, listed)
		}
	}
	p.signal(syscall.SIGINT)
	require.Zero(t, p.wait())
	require.Empty(t, p.errs.String())
}

// withoutTTLs removes what changes with time.
func withoutTTLs(lock fields) {
	delete(lock, "ttl_ms")
	for _, h := range lock["holders"].([]any) {
		delete(h.(fields), "ttl_ms")
		delete(h.(fields), "held_ms")
	}
}

// watch starts while Redis is out of reach, and says so. Another signal than SIGINT shows in the
// exit code.
func TestWatchWithoutRedis(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]string{
		"--json=false": "redlatch: no answer from Redis, trying again: ",
		"--json":       `{"event":"silent","message":"no answer from Redis, trying again: `,
	} {
		p := start(t, "redis://127.0.0.1:1", "watch", "--timeout", "1s", flag)
		for range 2 {
			require.Contains(t, p.line(), `"held":[],"waiting":0,"acquired_s":0,"lost_s":0,"error":"`)
		}
		p.signal(syscall.SIGTERM)
		require.Equal(t, exitSignal+int(syscall.SIGTERM), p.wait())
		require.Contains(t, p.errs.String(), want)
	}
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	stdout, stderr := exitsOn(t, 0, s, "doctor", "--prefix", "orders:")
	require.Empty(t, stderr)
	require.Regexp(t, `(?m)^ok    pubsub            PUBLISH: a message arrives after `, stdout)
	require.NotContains(t, stdout, "\x1b")
	require.Empty(t, redistest.Keys(t, s, "*"))

	rdb := s.Client(t)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "100mb").Err())
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	stdout, _ = exitsOn(t, exitFailed, s, "doctor")
	require.Regexp(t, `(?m)^FAIL  maxmemory-policy  allkeys-lru: .*\n +fix: CONFIG SET maxmemory-policy noeviction`,
		stdout)

	stdout, stderr = exitsOn(t, exitFailed, s, "doctor", "--json")
	require.Regexp(t, `^{"error":"maxmemory-policy: allkeys-lru: .*","code":1}\n$`, stderr)
	statuses := map[string]int{}
	for line := range strings.Lines(stdout) {
		var r fields
		require.NoError(t, json.Unmarshal([]byte(line), &r), line)
		require.Len(t, r, 4, line)
		require.Contains(t, r, "check")
		require.Contains(t, r, "detail")
		require.Contains(t, r, "fix")
		statuses[r["status"].(string)]++
	}
	require.Equal(t, 1, statuses["FAIL"], stdout)
	require.Len(t, statuses, 3, stdout)
}

func TestDoctorWithoutRedis(t *testing.T) {
	t.Parallel()
	stdout, stderr := exits(t, exitUnreachable, "doctor", "--redis", "redis://127.0.0.1:1")
	require.Empty(t, stderr)
	require.Regexp(t, `^FAIL  connection .*127\.0\.0\.1:1.*\n +fix: .*\n$`, stdout)
	stdout, stderr = exits(t, exitUnreachable, "doctor", "--json", "--redis", "redis://127.0.0.1:1")
	require.Contains(t, stdout, `{"check":"connection","status":"FAIL"`)
	require.Regexp(t, `^{"error":"connection: .*127\.0\.0\.1:1.*","code":3}\n$`, stderr)
}

// doctor names the master that hangs, where Sentinels know it.
func TestDoctorNamesTheSilentMaster(t *testing.T) {
	t.Parallel()
	master := redistest.ServeSilence(t)
	host, port, err := net.SplitHostPort(master)
	require.NoError(t, err)
	sentinel := redistest.Miniredis(t)
	require.NoError(t, sentinel.Mini().Server().Register("SENTINEL", func(peer *server.Peer, _ string, args []string) {
		if !strings.EqualFold(args[0], "get-master-addr-by-name") {
			peer.WriteLen(0)
			return
		}
		peer.WriteStrings([]string{host, port})
	}))
	stdout, _ := exitsOn(t, exitUnreachable, sentinel, "doctor", "--sentinel-master", "m", "--timeout", "2s")
	require.Contains(t, stdout, "no answer from "+master+" (the master of the Sentinels) within 2s")
}

func TestBench(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	stdout, stderr := exitsOn(t, 0, s, "bench", "--seconds", "0.5")
	require.Empty(t, stderr)
	for _, row := range []string{"free lock", "contended lock, 8 waiters", "wake-up in another client"} {
		require.Regexp(t, `(?m)^`+row+` +\d+( +[\d.]+ [µm]s){4} +\d+\.\d\d$`, stdout)
	}
	stdout, _ = exitsOn(t, 0, s, "bench", "--seconds", "0.3", "--json")
	require.Equal(t, 3, strings.Count(stdout, "\n"))
	for line := range strings.Lines(stdout) {
		var r fields
		require.NoError(t, json.Unmarshal([]byte(line), &r), line)
		for _, field := range []string{
			"name", "per_s", "p50_us", "p99_us", "floor_p50_us", "floor_p99_us", "ratio", "floor",
		} {
			require.Contains(t, r, field)
		}
	}
	require.Empty(t, redistest.Keys(t, s, "*"))
	exits(t, exitUnreachable, "bench", "--redis", "redis://127.0.0.1:1")
}

func TestBadUseOfWatchDoctorAndBench(t *testing.T) {
	for _, args := range [][]string{
		{"watch", "a", "b"}, {"watch", "--all"}, {"doctor", "now"},
		{"bench", "--seconds", "0"}, {"bench", "--seconds", "NaN"}, {"bench", "--seconds", "x"}, {"bench", "lock"},
		{"watch", "--redis", "localhost"},
	} {
		stdout, stderr := exits(t, exitUsage, args...)
		require.Empty(t, stdout, args)
		require.NotEmpty(t, stderr, args)
	}
}
