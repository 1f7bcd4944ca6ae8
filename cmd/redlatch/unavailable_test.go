package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
)

// If Redis does not answer, run exits with 3, not with 75: also if it falls silent while run waits. Its end
// comes no later than a second after the wait.
func TestRunSaysThatRedisDoesNotAnswer(t *testing.T) {
	t.Parallel()
	silent := redistest.ServeSilence(t)
	s := redistest.Redis(t)
	p := s.Proxy(t)
	name := redistest.Name(t)
	_, err := client(t, s).Lock(name).Acquire(t.Context())
	require.NoError(t, err)
	for what, tt := range map[string]struct {
		url   string
		fault func()
	}{
		"silent from the start": {silent, func() {}},
		"refused":               {"127.0.0.1:1", func() {}},
		"silent while it waits": {p.Addr(), func() { p.BlackHole(true) }},
	} {
		t.Run(what, func(t *testing.T) {
			began := time.Now()
			args := append([]string{"run", "--json", "-w", "1500ms", name}, childArgs(t, "exit", "0")...)
			run := start(t, "redis://"+tt.url, args...)
			time.AfterFunc(700*time.Millisecond, tt.fault)
			require.Equal(t, exitUnreachable, run.wait(), run.errs)
			requireError(t, run.errs.String(), exitUnreachable)
			require.Less(t, time.Since(began), soon)
		})
	}
}

// The message of exit code 75 names the holder and its client.
func TestRunNamesTheHolder(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	c := client(t, s)
	hold, err := c.Lock(name).Acquire(t.Context())
	require.NoError(t, err)
	redistest.WaitFor(t, soon, func() bool { // its name is announced in the background
		info, err := c.Lock(name).Info(t.Context())
		return err == nil && len(info.Holders) == 1 && info.Holders[0].Client != ""
	}, "the holder has a name")
	info, err := c.Lock(name).Info(t.Context())
	require.NoError(t, err)
	run := start(t, "redis://"+s.Addr(), append([]string{"run", "-n", name}, childArgs(t, "exit", "0")...)...)
	require.Equal(t, exitNotAcquired, run.wait(), run.errs)
	require.Contains(t, run.errs.String(), "now held by "+hold.ID()+" of "+info.Holders[0].Client)
}
