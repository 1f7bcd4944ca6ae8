package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/coverage"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/redlatch/redlatch/primitives"
)

const (
	runs       = 5                     // repetitions of a path
	attempts   = 30                    // to get them
	idleAfter  = 3 * time.Millisecond  // the library is idle when it has sent nothing for so long
	leaveAfter = 15 * time.Millisecond // a channel without listeners is unsubscribed earlier
	awaitLimit = 10 * time.Second      // bounds each wait for an event
)

// worker runs a path in a process that was built with coverage. An error ends the process with a
// panic, which the command that started it prints.
type worker struct {
	mini          *miniredis.Miniredis
	hook          hook
	client, other *primitives.Client

	dir     string
	records int    // calls of record; numbers the names of locks and the folders
	last    sample // of the latest call of record
}

// sample is the result of one repetition.
type sample struct {
	Dir      string   // with the coverage data
	Stack    []string // the deepest at which a command was handed to go-redis
	Commands int
}

// work repeats the scenario of that name and writes its samples to out as JSON.
func work(name, dir string, out io.Writer) error {
	build, _ := debug.ReadBuildInfo()
	w := &worker{dir: dir, mini: must(miniredis.Run()), hook: hook{library: build.Main.Path + "/"}}
	rdb := redis.NewClient(&redis.Options{
		Addr:                     w.mini.Addr(),
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	rdb.AddHook(&w.hook)
	nameless := primitives.WithClientName("") // no names are written in the background
	w.client, w.other = must(primitives.New(rdb, nameless)), must(primitives.New(rdb, nameless))

	s := scenarios[slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })]
	s.run(w, "warm-up")
	var samples []sample
	for len(samples) < runs {
		s.run(w, "path"+strconv.Itoa(w.records))
		if w.last.Commands == s.commands { // else it took another path, as the machine was slow
			samples = append(samples, w.last)
		} else if w.records > attempts {
			return fmt.Errorf("%d commands, not %d: if that is intended, change the table of scenarios",
				w.last.Commands, s.commands)
		}
	}
	return json.NewEncoder(out).Encode(samples)
}

// record runs f, which is the path itself, and records what executes. Work that f leaves to the
// background belongs to the path, so record waits until the library is idle.
func (w *worker) record(f func()) {
	w.awaitIdle()
	w.last = sample{Dir: filepath.Join(w.dir, strconv.Itoa(w.records))}
	w.records++
	check(os.MkdirAll(w.last.Dir, 0o700))
	before, _ := w.hook.reset()
	check(coverage.ClearCounters())
	f()
	time.Sleep(leaveAfter)
	w.awaitIdle()
	check(coverage.WriteCountersDir(w.last.Dir))
	check(coverage.WriteMetaDir(w.last.Dir))
	after, stack := w.hook.reset()
	w.last.Commands, w.last.Stack = after-before, stack
}

// awaitIdle waits until every command has been answered and the library has sent none for a while.
func (w *worker) awaitIdle() {
	for before := -1; before != w.hook.count() || w.hook.pending.Load() > 0; time.Sleep(idleAfter) {
		before = w.hook.count()
	}
}

// await polls until done reports true.
func await(event string, done func() bool) {
	for limit := time.Now().Add(awaitLimit); !done(); time.Sleep(time.Millisecond / 2) {
		if time.Now().After(limit) {
			panic("timed out waiting for " + event)
		}
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

// hook is a go-redis hook. It counts the library's commands and keeps the deepest stack.
type hook struct {
	library string       // the prefix of the names of the library's functions
	pending atomic.Int32 // commands and pipelines without an answer yet

	mu       sync.Mutex
	commands int
	deepest  []string
}

func (h *hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.note(1)
		defer h.pending.Add(-1)
		return next(ctx, cmd)
	}
}

func (h *hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.note(len(cmds))
		defer h.pending.Add(-1)
		return next(ctx, cmds)
	}
}

// note counts commands, and keeps the library's frames of the stack if they are the most so far.
func (h *hook) note(commands int) {
	h.pending.Add(1)
	var pcs [512]uintptr
	var stack []string
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	for more := true; more; {
		var frame runtime.Frame
		frame, more = frames.Next()
		if name, ok := strings.CutPrefix(frame.Function, h.library); ok {
			stack = append(stack, name)
		}
	}
	if len(stack) == 0 {
		return // go-redis itself sends it, to set up a connection
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.commands += commands
	if len(stack) > len(h.deepest) {
		h.deepest = stack
	}
}

func (h *hook) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.commands
}

// reset returns the number of commands so far and the deepest stack since the last reset.
func (h *hook) reset() (commands int, deepest []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	deepest, h.deepest = h.deepest, nil
	return h.commands, deepest
}
