// Package browser lets tests use pages in a browser: chromium, without a window.
//
// It speaks the DevTools protocol with the browser through two pipes, and needs no library for
// that.
package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// answerLimit is how long the browser takes for an answer at most, on a busy machine.
const answerLimit = 2 * time.Minute

// Page is a page in a browser of its own. Both are closed when the test ends.
type Page struct {
	t       testing.TB
	out     io.WriteCloser
	session string // of the protocol, once there is one

	mu       sync.Mutex
	last     int // number of a command
	waiting  map[int]chan answer
	troubles []string
	ended    error // why there will be no more answers
}

// answer is what the browser answers to a command.
type answer struct {
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// message is what the browser sends: an answer, or an event.
type message struct {
	answer

	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// Open opens a page. Without chromium the test ends as described at [redistest.Missing].
func Open(t testing.TB, url string) *Page {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		redistest.Missing(t, redistest.NeedChromium, err.Error())
	}
	p := &Page{t: t, waiting: map[int]chan answer{}}
	p.start(path)
	var target struct {
		ID string `json:"targetId"`
	}
	p.Call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct {
		ID string `json:"sessionId"`
	}
	p.Call("Target.attachToTarget", map[string]any{"targetId": target.ID, "flatten": true}, &session)
	p.session = session.ID
	p.Call("Runtime.enable", nil, nil)
	p.Go(url)
	return p
}

// start starts the browser.
func (p *Page) start(path string) {
	commands, out, err := os.Pipe()
	require.NoError(p.t, err)
	in, answers, err := os.Pipe()
	require.NoError(p.t, err)
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, path, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
		"--no-first-run", "--user-data-dir="+p.t.TempDir(), "about:blank")
	cmd.ExtraFiles = []*os.File{commands, answers} // 3 and 4, as the browser expects
	require.NoError(p.t, cmd.Start())
	_ = commands.Close()
	_ = answers.Close()
	p.out = out
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		p.read(bufio.NewReader(in))
	}()
	p.t.Cleanup(func() {
		_ = out.Close() // the browser ends
		late := time.AfterFunc(10*time.Second, stop)
		_ = cmd.Wait()
		late.Stop()
		stop()
		<-reading
		_ = in.Close()
	})
}

// read takes what the browser sends, until it ends.
func (p *Page) read(in *bufio.Reader) {
	for {
		text, err := in.ReadBytes(0)
		var m message
		if err == nil {
			err = json.Unmarshal(text[:len(text)-1], &m)
		}
		p.mu.Lock()
		if err != nil {
			p.ended = fmt.Errorf("the browser has ended: %w", err)
			for _, waiting := range p.waiting {
				close(waiting)
			}
			p.waiting = nil
			p.mu.Unlock()
			return
		}
		waiting := p.waiting[m.ID]
		delete(p.waiting, m.ID)
		if m.Method == "Runtime.exceptionThrown" {
			p.troubles = append(p.troubles, trouble(m.Params))
		}
		p.mu.Unlock()
		if waiting != nil {
			waiting <- m.answer
		}
	}
}

// exception is what the browser tells of an exception.
type exception struct {
	Text      string `json:"text"`
	Exception struct {
		Description string `json:"description"`
	} `json:"exception"`
}

func (e *exception) String() string { return e.Text + " " + e.Exception.Description }

// trouble returns the text of an exception that nothing has caught.
func trouble(params json.RawMessage) string {
	var thrown struct {
		Details exception `json:"exceptionDetails"`
	}
	if err := json.Unmarshal(params, &thrown); err != nil {
		return string(params)
	}
	return thrown.Details.String()
}

// Call sends a command of the DevTools protocol, and reads the result.
func (p *Page) Call(method string, params, result any) {
	p.t.Helper()
	reply, err := p.call(method, params)
	require.NoError(p.t, err, method)
	if result != nil {
		require.NoError(p.t, json.Unmarshal(reply, result), "%s: %s", method, reply)
	}
}

func (p *Page) call(method string, params any) (json.RawMessage, error) {
	if params == nil {
		params = struct{}{}
	}
	replied := make(chan answer, 1)
	p.mu.Lock()
	if p.ended != nil {
		p.mu.Unlock()
		return nil, p.ended
	}
	p.last++
	id := p.last
	p.waiting[id] = replied
	p.mu.Unlock()
	command := map[string]any{"id": id, "method": method, "params": params}
	if p.session != "" {
		command["sessionId"] = p.session
	}
	text, err := json.Marshal(command)
	if err != nil {
		return nil, err
	}
	_, err = p.out.Write(append(text, 0))
	if err != nil {
		return nil, err
	}
	select {
	case reply, ok := <-replied:
		switch {
		case !ok:
			return nil, p.ended
		case reply.Error != nil:
			return nil, errors.New(reply.Error.Message)
		}
		return reply.Result, nil
	case <-time.After(answerLimit):
		return nil, fmt.Errorf("no answer within %v", answerLimit)
	}
}

// Go leads the page to an address, and waits until its document is there.
func (p *Page) Go(url string) {
	p.t.Helper()
	var result struct {
		Error string `json:"errorText"`
	}
	p.Call("Page.navigate", map[string]any{"url": url}, &result)
	require.Empty(p.t, result.Error, url)
	p.Await("document.readyState === 'complete'")
}

// Eval evaluates an expression of JavaScript, awaits it if it is a promise, and reads its value.
func (p *Page) Eval(expression string, value any) {
	p.t.Helper()
	var result struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *exception `json:"exceptionDetails"`
	}
	p.Call("Runtime.evaluate", map[string]any{
		"expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true,
	}, &result)
	if result.Exception != nil {
		p.t.Fatalf("%s: %v", expression, result.Exception)
	}
	if value != nil {
		require.NoError(p.t, json.Unmarshal(result.Result.Value, value), "%s is %s", expression, result.Result.Value)
	}
}

// Await waits until an expression is true.
func (p *Page) Await(condition string) {
	p.t.Helper()
	isSo := func() (so bool) {
		p.Eval("Boolean("+condition+")", &so)
		return so
	}
	redistest.WaitFor(p.t, answerLimit, isSo, condition)
}

// Text returns what the page shows.
func (p *Page) Text() (text string) {
	p.t.Helper()
	p.Eval("document.body.innerText", &text)
	return text
}

// Click clicks on the element that a selector finds.
func (p *Page) Click(selector string) {
	p.t.Helper()
	quoted, err := json.Marshal(selector)
	require.NoError(p.t, err)
	p.Eval("document.querySelector("+string(quoted)+").click()", nil)
}

// Troubles returns the exceptions that no script of the page has caught.
func (p *Page) Troubles() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.troubles...)
}
