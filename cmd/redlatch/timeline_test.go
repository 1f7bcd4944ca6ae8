package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/eventlog"
	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// eventFiles are the files that the examples of the help text and of doc/timeline.md read.
var eventFiles = map[string]string{
	"shop.jsonl": eventLine(0, "shop", "acquired", `"id":"a:1"`) + eventLine(4000, "shop", "released", `"id":"a:1"`) +
		eventLine(8000, "shop", "not-acquired", `"waited_ms":2000,"outcome":"busy"`),
	"billing.jsonl": eventLine(1000, "billing", "wait", `"id":"b:1"`) +
		eventLine(4002, "billing", "acquired", `"id":"b:1","waited_ms":3002`) +
		eventLine(9000, "billing", "lost", `"id":"b:1","reason":"paused"`) +
		eventLine(9000, "billing", "wait", `"id":"b:2"`) +
		eventLine(10000, "billing", "link-lost", `"err":"gone"`),
}

func eventLine(ms int, process, event, more string) string {
	at := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC).Add(time.Duration(ms) * time.Millisecond)
	return fmt.Sprintf(`{"at":%q,"process":%q,"event":%q,"kind":"lock","name":"orders",%s}`+"\n",
		at.Format(time.RFC3339Nano), process, event, more)
}

// The page shows what the command prints.
func TestTimelineOfThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../doc/timeline.md")
	require.NoError(t, err)
	_, want, _ := strings.Cut(string(page), "```text\n")
	want, _, _ = strings.Cut(want, "```")
	code, output := shell(t, "")("redlatch timeline --text shop.jsonl billing.jsonl")
	require.Zero(t, code)
	require.Equal(t, want, output)
}

func TestTimelineSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	good := eventFiles["shop.jsonl"]
	broken := file("broken", good+strings.Repeat("hello\n", 12))
	for name, tt := range map[string]struct {
		args       []string
		code       int
		out, error string
	}{
		"no file":               {nil, exitUsage, "", "which FILE?"},
		"a file that is not":    {[]string{dir + "/none"}, exitUsage, "", "no such file"},
		"a folder":              {[]string{dir}, exitUsage, "", "directory"},
		"a bad shift":           {[]string{"--shift", "a", broken}, exitUsage, "", "want PROCESS=DURATION"},
		"a bad duration":        {[]string{"--shift", "a=1", broken}, exitUsage, "", "missing unit"},
		"nobody's shift":        {[]string{"--shift", "nobody=1s", broken}, exitUsage, "", `"nobody"`},
		"a bad glob":            {[]string{"--name", "[", broken}, exitUsage, "", "pattern"},
		"contradicting formats": {[]string{"--text", "--json", broken}, exitUsage, "", "contradict"},
		"nothing":               {[]string{file("empty", "")}, exitFailed, "", "there is no event to draw"},
		"a place to write":      {[]string{"-o", dir + "/none/x", file("good", good)}, exitFailed, "", "--output"},
		"broken lines":          {[]string{"--text", broken}, exitFailed, "orders (lock)", broken + ":4: no event"},
		"many":                  {[]string{"--text", broken}, exitFailed, "orders (lock)", "and 2 more lines"},
		"a torn line":           {[]string{"--text", file("torn", good+`{"at`)}, 0, "orders (lock)", "as after a crash: 1"},
		"a page":                {[]string{file("good", good)}, 0, "Timeline of locks</title>", ""},
		"lines of JSON":         {[]string{"--json", file("good", good)}, 0, `"what":"hold"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := redlatch(t.Context(), append([]string{"timeline"}, tt.args...)...)
			require.Equal(t, tt.code, code, stderr)
			require.Contains(t, stdout, tt.out)
			require.Contains(t, stderr, tt.error)
		})
	}
	page := filepath.Join(dir, "page")
	stdout, _ := exits(t, 0, "timeline", "-o", page, file("good", good))
	require.Empty(t, stdout)
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(text, []byte("<!DOCTYPE html>")))
}

// What clients write is what the command draws: a hand-over and a loss.
func TestTimelineOfClients(t *testing.T) {
	t.Parallel()
	s := redistest.Miniredis(t)
	var files []string
	waits := make(chan struct{}, 1)
	tell := func(e primitives.Event) {
		if e.Kind == primitives.EventWait {
			waits <- struct{}{}
		}
	}
	open := func(process string) (*primitives.Client, func()) {
		path := filepath.Join(t.TempDir(), process+".jsonl")
		files = append(files, path)
		events, err := eventlog.Open(path, eventlog.WithProcess(process))
		require.NoError(t, err)
		c := client(t, s, primitives.WithObserver(events.Observe), primitives.WithObserver(tell))
		return c, func() {
			require.NoError(t, c.Close(context.Background())) // its last events come until then
			require.NoError(t, events.Close())
		}
	}
	a, endA := open("process-a")
	b, endB := open("process-b")
	hold := fixture.Acquire(t, t.Context(), a.Lock("orders"))
	acquired := make(chan *primitives.Hold, 1)
	go func() {
		h, _ := b.Lock("orders").Acquire(t.Context())
		acquired <- h
	}()
	<-waits
	fixture.Release(t, hold)
	second := <-acquired
	require.NotNil(t, second)
	require.NoError(t, fixture.ErrOf(a.Lock("orders").ForceRelease(t.Context())))
	<-second.Context().Done()
	require.ErrorIs(t, second.Release(t.Context()), primitives.ErrLost)
	endA()
	endB()
	stdout, _ := exits(t, 0, append([]string{"timeline", "--text"}, files...)...)
	require.Contains(t, stdout, "holds: 2; waits: 1")
	require.Contains(t, stdout, "hand-overs: 1")
	require.Contains(t, stdout, "lost: 1")
	require.Contains(t, stdout, "process-b: orders lost it after")
	require.NotContains(t, stdout, "clocks differ")
}
