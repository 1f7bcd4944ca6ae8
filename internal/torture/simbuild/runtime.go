package simbuild

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

// insertion is what is added to a file of Go.
type insertion struct {
	file   string // below GOROOT/src
	anchor string // text that exists once
	text   string // takes its place
}

var insertions = []insertion{
	{"runtime/runtime2.go", "	labels          unsafe.Pointer // profiler labels\n",
		"	labels          unsafe.Pointer // profiler labels\n	simGroup        int32\n"},
	{"runtime/proc.go", "	gp.labels = nil\n", "	gp.labels = nil\n	gp.simGroup = 0\n"},
	{"runtime/proc.go", "			newg.labels = mp.curg.labels\n",
		"			newg.labels = mp.curg.labels\n			newg.simGroup = mp.curg.simGroup\n"},
	{"runtime/proc.go", "		resetspinning()\n	}\n\n	if sched.disable.user",
		"		resetspinning()\n	}\n\n	if simHolds(gp) {\n		goto top\n	}\n	if sched.disable.user"},
	{"time/sleep.go", "	return newTimer(when(d), 0, goFunc, f, nil)\n",
		"	return newTimer(when(d), 0, goFunc, simInherit(f), nil)\n"},
}

// addedFiles are new files, below GOROOT/src.
var addedFiles = map[string]string{
	"runtime/sim_groups.go": `package runtime

import _ "unsafe"

// simGroups is how many groups of goroutines can be stopped.
const simGroups = 1 << 12

var (
	simStopped [simGroups]bool
	simHeld    gQueue // runnable goroutines of groups that are stopped
)

// simHolds reports whether gp, which is to run, must wait.
func simHolds(gp *g) bool {
	if !simStopped[gp.simGroup] {
		return false
	}
	simHeld.pushBack(gp)
	return true
}

//go:linkname simStop
func simStop(group int32, on bool) {
	simStopped[group] = on
	if on {
		return
	}
	systemstack(func() {
		var left gQueue
		for !simHeld.empty() {
			gp := simHeld.pop()
			if simStopped[gp.simGroup] {
				left.pushBack(gp)
			} else {
				runqput(getg().m.p.ptr(), gp, false)
			}
		}
		simHeld = left
	})
}

//go:linkname simJoin
func simJoin(group int32) (former int32) {
	gp := getg()
	former, gp.simGroup = gp.simGroup, group
	if simStopped[group] {
		Gosched()
	}
	return former
}

//go:linkname simGroup
func simGroup() int32 { return getg().simGroup }
`,
	"time/sim_groups.go": `package time

import _ "unsafe"

//go:linkname simJoin runtime.simJoin
func simJoin(group int32) int32

//go:linkname simGroup runtime.simGroup
func simGroup() int32

// simInherit returns f for the group of the caller.
func simInherit(f func()) func() {
	group := simGroup()
	if group == 0 {
		return f
	}
	return func() {
		simJoin(group)
		f()
	}
}
`,
}

// overlay writes the files of the changed runtime into dir, and returns the file for go build
// -overlay. also is such a file for other packages; "" if there is none.
func overlay(goroot, dir, also string) (string, error) {
	texts := map[string]string{}
	for _, i := range insertions {
		text, ok := texts[i.file]
		if !ok {
			data, err := os.ReadFile(filepath.Join(goroot, "src", i.file))
			if err != nil {
				return "", err
			}
			text = string(data)
		}
		if n := strings.Count(text, i.anchor); n != 1 {
			return "", fmt.Errorf("%s of this version of Go has %q %d times, and simbuild/runtime.go expects it once",
				i.file, strings.TrimSpace(i.anchor), n)
		}
		texts[i.file] = strings.Replace(text, i.anchor, i.text, 1)
	}
	maps.Copy(texts, addedFiles)
	replace := map[string]string{}
	if also != "" {
		data, err := os.ReadFile(also)
		if err != nil {
			return "", err
		}
		if err := json.Unmarshal(data, &struct{ Replace *map[string]string }{&replace}); err != nil {
			return "", fmt.Errorf("%s: %w", also, err)
		}
	}
	for file, text := range texts {
		own := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(own, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(goroot, "src", file)] = own
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, list, 0o600)
}
