package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/browser"
)

// visitor uses the page in a browser.
type visitor struct {
	*browser.Page

	t *testing.T
}

// press presses a button of a client, and waits until the page shows the client in a state.
func (v *visitor) press(client int, button, state string) {
	v.t.Helper()
	v.Await(fmt.Sprintf("!document.querySelector(%q).disabled", selector(client, button)))
	v.Click(selector(client, button))
	v.shows(client, state)
}

// shows waits until the page shows a client in a state.
func (v *visitor) shows(client int, state string) {
	v.t.Helper()
	v.Await(fmt.Sprintf("document.querySelector('#clients > :nth-child(%d)').classList.contains(%q)", client, state))
}

func selector(client int, button string) string {
	return fmt.Sprintf("#clients > :nth-child(%d) [data-button=%s]", client, button)
}

// log returns the lines of the page's log that contain one of the texts, the first one first.
func (v *visitor) log(texts ...string) (found []string) {
	v.t.Helper()
	var lines []string
	v.Eval(`[...document.querySelectorAll("#log tr")].reverse().map(
		row => [...row.children].slice(1).map(cell => cell.textContent).join(" "))`, &lines)
	for _, line := range lines {
		isWanted := func(text string) bool { return strings.Contains(line, text) }
		if slices.ContainsFunc(texts, isWanted) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// The page in a browser. Client 1 holds, client 2 waits, and then something happens to client 1.
func TestPageInABrowser(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, run(t.Context(), []string{"--out", dir}, io.Discard, io.Discard))
	server := httptest.NewServer(http.FileServerFS(os.DirFS(dir)))
	t.Cleanup(server.Close)
	info, err := os.Stat(filepath.Join(dir, "playground.wasm.gz"))
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(8_000_000), "visitors load it")

	t.Run("times", func(t *testing.T) { logTimes(t, server.URL) })
	for _, tt := range []struct {
		name string
		act  func(v *visitor)
		want []string // of the log, after both acquisitions
	}{
		{"its wire is cut: it is told before the other one acquires", func(v *visitor) {
			v.press(1, "wire", "idle")
			v.shows(2, "holding")
		}, []string{
			`^Client 1 lost: expired: no answer from Redis for `,
			`^Client 2 acquired the lock$`,
			`^Client 1 was told that it lost the lock \d+ ms before client 2 acquired it\.$`,
		}},
		{"it releases", func(v *visitor) {
			v.press(1, "lock", "idle")
			v.shows(2, "holding")
		}, []string{
			`^Client 2 acquired the lock$`, `^Client 2 acquired the lock \d+ ms after client 1 began to release it\.$`,
		}},
		{"it is killed: the other one acquires when the lease has ended", func(v *visitor) {
			v.press(1, "process", "killed")
			v.shows(2, "holding")
			v.press(1, "process", "idle") // a new process
			v.press(1, "lock", "waiting")
			v.press(2, "lock", "idle")
			v.shows(1, "holding")
		}, []string{
			`^Client 2 acquired the lock$`, `^Client 2 acquired the lock \d+ ms after client 1 was killed: its lease had`,
			`^Client 1 acquired the lock$`, `^Client 1 acquired the lock \d+ ms after client 2 began to release it\.$`,
		}},
		{"it stands still: it learns of the loss when it goes on", func(v *visitor) {
			v.press(1, "signal", "troubled")
			v.shows(2, "holding")
			v.shows(1, "holding") // it knows nothing
			v.press(1, "signal", "idle")
		}, []string{
			`^Client 2 acquired the lock$`, `^Client 1 stands still, so nobody can tell it\. `,
			`^Client 1 lost: paused: this process stood still for `, `^Client 1 stood still, so nobody could tell it\. `,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := &visitor{browser.Open(t, server.URL), t}
			v.press(1, "lock", "holding")
			v.press(2, "lock", "waiting")
			v.Await("document.getElementById('log').textContent.includes('waits: somebody else')")
			tt.act(v)
			told := v.log("acquired the lock", "lost: ", "so nobody can", "so nobody could", "was told")
			require.Equal(t, "Client 1 acquired the lock", told[0])
			require.Len(t, told[1:], len(tt.want), "%q", told)
			for i, want := range tt.want {
				require.Regexp(t, want, told[1+i])
			}
			require.Empty(t, v.Troubles())
		})
	}
	t.Run("names are shown as they are", func(t *testing.T) { namesAreShown(t, server.URL) })
	t.Run("stories", func(t *testing.T) { storiesEnd(t, server.URL) })
}

// logTimes logs when the page is painted and when its buttons work, in ms since the visitor has
// asked for it.
func logTimes(t *testing.T, url string) {
	v := &visitor{browser.Open(t, url), t}
	v.Await("performance.getEntriesByName('ready').length > 0")
	v.Await("performance.getEntriesByName('first-contentful-paint').length > 0")
	for _, name := range []string{"first-contentful-paint", "ready"} {
		var at float64
		v.Eval(fmt.Sprintf("performance.getEntriesByName(%q)[0].startTime", name), &at)
		t.Logf("%s: %.0f ms", name, at)
	}
}

// namesAreShown checks that a name never becomes HTML.
func namesAreShown(t *testing.T, url string) {
	const name = `<img src=x onerror="document.title='bad'">&lt;`
	v := &visitor{browser.Open(t, url), t}
	v.Await("!document.querySelector('#settings button').disabled")
	quoted, err := json.Marshal(name)
	require.NoError(t, err)
	v.Eval(fmt.Sprintf("document.querySelector('[name=name]').value = %s", quoted), nil)
	v.Click("#settings button")
	v.Await(fmt.Sprintf("document.getElementById('name').textContent === %s", quoted))
	v.press(1, "lock", "holding")
	v.press(2, "lock", "waiting")
	v.press(2, "lock", "idle")
	require.NotEmpty(t, v.log("did not acquire the lock"))
	var images int
	v.Eval("document.images.length", &images)
	require.Zero(t, images)
	var title string
	v.Eval("document.title", &title)
	require.Equal(t, "redlatch: playground", title)
	require.Empty(t, v.Troubles())
}

// storiesEnd checks that the page can tell its stories by itself, on a phone, too, on which nothing
// is wider than the screen.
func storiesEnd(t *testing.T, url string) {
	v := &visitor{browser.Open(t, url), t}
	v.Call("Emulation.setDeviceMetricsOverride", map[string]any{
		"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": true,
	}, nil)
	for story, end := range map[string]string{"cut": "was told", "kill": "was killed", "stop": "could tell it"} {
		v.Await(fmt.Sprintf("!document.querySelector('[data-story=%s]').disabled", story))
		v.Click(fmt.Sprintf("[data-story=%s]", story))
		v.Await(fmt.Sprintf("document.getElementById('verdict').textContent.includes(%q)", end))
	}
	var width int
	v.Eval("document.documentElement.scrollWidth", &width)
	require.LessOrEqual(t, width, 360)
	require.Empty(t, v.Troubles())
}

func TestBadArguments(t *testing.T) {
	for args, want := range map[string]string{
		"lock":            "unexpected argument",
		"--nothing":       "not defined",
		"--out":           "needs an argument",
		"--listen x --no": "not defined",
	} {
		var errs bytes.Buffer
		require.ErrorContains(t, run(context.Background(), strings.Fields(args), io.Discard, &errs), want, args)
	}
}
