package eventlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// linesOf returns the records of a file.
func linesOf(t *testing.T, path string) (records []record) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for line := range bytes.Lines(text) {
		var r record
		require.NoError(t, json.Unmarshal(line, &r), string(line))
		require.True(t, bytes.HasSuffix(line, []byte("\n")))
		records = append(records, r)
	}
	return records
}

func pathOf(t *testing.T) string { return filepath.Join(t.TempDir(), "events.jsonl") }

func TestFileRecordsEvents(t *testing.T) {
	path := pathOf(t)
	w, err := Open(path, WithProcess("shop@one"))
	require.NoError(t, err)
	s := locktest.NewServer(t)
	client, err := primitives.New(s.Client(t), primitives.WithObserver(w.Observe))
	require.NoError(t, err)
	first, err := client.Lock("orders\xff").Acquire(t.Context())
	require.NoError(t, err)
	_, err = client.Lock("orders\xff").Acquire(t.Context(), primitives.WithWait(20*time.Millisecond))
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	require.NoError(t, first.Release(t.Context()))
	lost, err := client.FencedLock("other").Acquire(t.Context())
	require.NoError(t, err)
	s.LoseName(t, "other")
	<-lost.Context().Done()
	require.NoError(t, client.Close(t.Context()))
	require.NoError(t, w.Close())

	var told []string
	var waiter string
	for _, r := range linesOf(t, path) {
		require.Equal(t, "shop@one", r.Process)
		require.WithinDuration(t, time.Now(), r.At, time.Minute)
		if r.Event == primitives.EventWait {
			waiter = r.ID
		}
		if r.Event == primitives.EventLost {
			require.Contains(t, []string{"gone", "forced"}, r.Reason)
			r.Reason = "lost"
		}
		told = append(told, strings.TrimSpace(fmt.Sprintln(r.Event, r.Kind, r.Name, r.Base64, r.ID, r.Outcome, r.Reason)))
		switch r.Event {
		case primitives.EventNotAcquired:
			require.GreaterOrEqual(t, r.Waited, 20.0)
			require.Contains(t, r.Err, "not acquired")
		case primitives.EventReleased, primitives.EventLost:
			require.Positive(t, r.Held)
		default:
		}
	}
	const name = "orders\ufffd b3JkZXJz/w== "
	require.Equal(t, []string{
		"opened",
		"acquired lock " + name + first.ID() + " acquired",
		"wait lock " + name + waiter,
		"not-acquired lock " + name + " busy",
		"released lock " + name + first.ID(),
		"acquired fenced other  " + lost.ID() + " acquired",
		"lost fenced other  " + lost.ID() + "  lost",
	}, told)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "names may be confidential")
}

// However many events there are, the files take no more space than was allowed, and the latest
// events are in them.
func TestFilesAreBounded(t *testing.T) {
	for _, files := range []int{1, 3} {
		t.Run(fmt.Sprint(files), func(t *testing.T) {
			path := pathOf(t)
			w, err := Open(path, WithProcess("p"), WithMaxSize(minSize), WithFiles(files))
			require.NoError(t, err)
			const count = 1000
			for i := range count {
				w.Observe(primitives.Event{Kind: primitives.EventReleased, Name: fmt.Sprint("name ", i)})
			}
			require.NoError(t, w.Close())
			require.Zero(t, w.Dropped())
			found, err := os.ReadDir(filepath.Dir(path))
			require.NoError(t, err)
			require.Len(t, found, files)
			next := count - 1
			for i := range files {
				name := path
				if i > 0 {
					name += fmt.Sprint(".", i)
				}
				info, err := os.Stat(name)
				require.NoError(t, err)
				require.LessOrEqual(t, info.Size(), int64(minSize))
				records := linesOf(t, name)
				require.Equal(t, eventOpened, records[0].Event)
				for k := len(records) - 1; k > 0; k-- {
					require.Equal(t, fmt.Sprint("name ", next), records[k].Name)
					next--
				}
			}
		})
	}
}

// A process that is restarted goes on in its file, even after an incomplete line.
func TestFileGoesOnAfterACrash(t *testing.T) {
	path := pathOf(t)
	require.NoError(t, os.WriteFile(path, []byte("{\"event\":\"released\"}\n{\"event\":\"acq"), 0o600))
	w, err := Open(path)
	require.NoError(t, err)
	w.Observe(primitives.Event{Kind: primitives.EventLost, Err: errors.New("gone")})
	require.NoError(t, w.Close())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.Split(string(text), "\n")
	require.Len(t, lines, 5)
	require.True(t, strings.HasSuffix(lines[1], `"acq`))
	require.Contains(t, lines[2], `"event":"opened"`)
	require.Contains(t, lines[3], `"err":"gone"`)
}

// Renewals are left out, and what comes after Close is dropped.
func TestWhatIsNotWritten(t *testing.T) {
	path := pathOf(t)
	w, err := Open(path)
	require.NoError(t, err)
	w.Observe(primitives.Event{Kind: primitives.EventRenewed})
	require.NoError(t, w.Close())
	require.NoError(t, w.Close(), "a second one does nothing")
	require.Zero(t, w.Dropped())
	w.Observe(primitives.Event{Kind: primitives.EventAcquired, Ctx: context.Background()})
	require.EqualValues(t, 1, w.Dropped())
	require.Len(t, linesOf(t, path), 1)
}

// If the file cannot be made again, events are lost, and Close says so. Once it can be made, it
// reports how many are missing.
func TestFailuresAreTold(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	require.NoError(t, os.Mkdir(dir, 0o700))
	w, err := Open(filepath.Join(dir, "events.jsonl"), WithMaxSize(minSize))
	require.NoError(t, err)
	require.NoError(t, os.Rename(dir, dir+".gone"))
	for range 50 {
		w.Observe(primitives.Event{Kind: primitives.EventReleased, Name: strings.Repeat("x", 100)})
	}
	require.Eventually(t, func() bool { return w.Dropped() > 0 && len(w.queue) == 0 }, 10*time.Second, time.Millisecond)
	require.NoError(t, os.Rename(dir+".gone", dir))
	w.Observe(primitives.Event{Kind: primitives.EventReleased, Name: "last"})
	require.ErrorIs(t, w.Close(), os.ErrNotExist)
	records := linesOf(t, filepath.Join(dir, "events.jsonl"))
	last := records[len(records)-2:]
	require.Equal(t, eventDropped, last[0].Event)
	require.Equal(t, w.Dropped(), last[0].Count)
	require.Equal(t, "last", last[1].Name)
}

func TestOpenRefusesWhatCannotWork(t *testing.T) {
	for name, opt := range map[string]Option{
		"size":    WithMaxSize(minSize - 1),
		"files":   WithFiles(0),
		"process": WithProcess(""),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(pathOf(t), opt)
			require.ErrorContains(t, err, name)
		})
	}
	_, err := Open(t.TempDir())
	require.Error(t, err, "a folder")
}
