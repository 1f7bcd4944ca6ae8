package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// pathFigures are the figures of one path.
type pathFigures struct {
	Name      string   `json:"name"`
	Title     string   `json:"title"`
	Functions []string `json:"functions"`
	Files     []string `json:"files"`
	Stack     []string `json:"stack"` // the frames to the wire, the public method last
	Commands  int      `json:"commands"`
}

// measurePaths builds the worker and runs it once per path.
func measurePaths(ctx context.Context, m *module) ([]pathFigures, error) {
	tmp, err := os.MkdirTemp("", "pathreport")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	covered := []string{"./internal/pathreport"} // without coverage of main there are no counters to reset
	for _, p := range m.packages {
		covered = append(covered, "./"+p.name)
	}
	worker := filepath.Join(tmp, "worker")
	_, err = command(ctx, m.Dir, "go", "build", "-cover", "-covermode=atomic", "-coverpkg="+strings.Join(covered, ","),
		"-o", worker, "./internal/pathreport")
	if err != nil {
		return nil, err
	}
	index := indexFunctions(m)
	var list []pathFigures
	for _, s := range scenarios {
		f := pathFigures{Name: s.name, Title: s.title, Commands: s.commands}
		if err := f.measure(ctx, worker, filepath.Join(tmp, s.name), index); err != nil {
			return nil, fmt.Errorf("path %q: %w", s.title, err)
		}
		list = append(list, f)
	}
	return list, nil
}

// measure runs the worker and keeps the functions that most repetitions executed: on a busy machine, one repetition
// may take another path.
func (f *pathFigures) measure(ctx context.Context, worker, dir string, index map[string][]function) error {
	out, err := command(ctx, "", worker, "-worker", f.Name, "-out", dir)
	if err != nil {
		return err
	}
	var samples []sample
	if err := json.Unmarshal(out, &samples); err != nil {
		return err
	}
	executed := map[function]int{} // by how many repetitions
	for _, s := range samples {
		if f.Stack == nil || len(s.Stack) < len(f.Stack) {
			f.Stack = s.Stack
		}
		profile := filepath.Join(s.Dir, "profile")
		if _, err := command(ctx, "", "go", "tool", "covdata", "textfmt", "-i="+s.Dir, "-o="+profile); err != nil {
			return err
		}
		text, err := os.ReadFile(profile)
		if err != nil {
			return err
		}
		for fn := range executedFunctions(text, index) {
			executed[fn]++
		}
	}
	files := map[string]bool{}
	for fn, n := range executed {
		if n > len(samples)/2 {
			f.Functions = append(f.Functions, fn.name)
			files[fn.file] = true
		}
	}
	slices.Sort(f.Functions)
	f.Files = slices.Sorted(maps.Keys(files))
	return nil
}

// function is a function or method of the library.
type function struct {
	name        string // such as "primitives.(*Lock).Acquire"
	file        string // such as "primitives/lock.go"
	first, last int    // lines
}

// indexFunctions lists the library's functions by file, under the names that coverage profiles use.
func indexFunctions(m *module) map[string][]function {
	index := map[string][]function{}
	for _, p := range m.packages {
		for base, file := range p.files {
			name := path.Join(p.name, base)
			for _, decl := range functionsOf(file) {
				index[m.Path+"/"+name] = append(index[m.Path+"/"+name], function{
					functionName(p.name, decl), name, m.fset.Position(decl.Pos()).Line, m.fset.Position(decl.End()).Line,
				})
			}
		}
	}
	return index
}

func functionName(pkg string, decl *ast.FuncDecl) string {
	if decl.Recv == nil {
		return pkg + "." + decl.Name.Name
	}
	receiver := types.ExprString(decl.Recv.List[0].Type)
	if strings.HasPrefix(receiver, "*") {
		receiver = "(" + receiver + ")"
	}
	return pkg + "." + receiver + "." + decl.Name.Name
}

// block matches a line of a coverage profile: file:line.column,line.column statements count.
var block = regexp.MustCompile(`^(.+):(\d+)\.\d+,\d+\.\d+ \d+ [1-9]\d*$`)

// executedFunctions returns the functions with at least one block that the profile counts as
// executed.
func executedFunctions(profile []byte, index map[string][]function) map[function]bool {
	executed := map[function]bool{}
	for lines := bufio.NewScanner(bytes.NewReader(profile)); lines.Scan(); {
		match := block.FindStringSubmatch(lines.Text())
		if match == nil {
			continue
		}
		line, _ := strconv.Atoi(match[2])
		for _, fn := range index[match[1]] {
			if fn.first <= line && line <= fn.last {
				executed[fn] = true
			}
		}
	}
	return executed
}
