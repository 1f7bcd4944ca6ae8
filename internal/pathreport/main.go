// Command pathreport measures how much code a reader meets on each path of the library, so that two
// designs can be compared. Run it from anywhere in the module:
//
//	go run ./internal/pathreport         one Markdown table
//	go run ./internal/pathreport -json   the same figures with the functions, stacks and references behind them
//
// # Paths
//
// For each path, such as "acquire a free lock", the report counts the functions that run, the files
// that declare them, and the frames to the wire: the deepest stack of library functions at the moment
// a command is handed to go-redis. The library is primitives and all packages of this module that it
// imports. A function literal counts as part of the function that contains it, but as a frame of its
// own.
//
// The command builds itself a second time, with coverage of the library, and runs that worker once
// per path against an in-process miniredis. The worker warms up, then repeats the path. Each
// repetition resets the coverage counters before the path and writes them after it. A function
// counts if most repetitions executed it, which leaves out timers that fire now and then. The worker
// uses contexts that never end: the library then sends most commands in the caller's goroutine, so
// the stack reaches up to the public method. Commands of the pub/sub connection do not pass through
// go-redis and are not counted.
//
// # Code
//
// For each of primitives, internal/joint, internal/engine and internal/waitq, the report counts code lines
// (neither blank nor only a comment), the share of comment lines among code and comment lines, functions, and
// the interfaces that the package looks for by type assertion or type switch. Test files do not count.
// The longest line is that of all Go files in the repository, tests included. A tab is one character.
//
// # Layers
//
// The table in layers.go gives each file of these packages a layer, from general to particular. The
// report counts pairs of files in which the first refers to a package-level identifier or a method
// that the second declares, and how many of these pairs point from a general layer to a more
// particular one. Files without a layer are reported. A reference to another package follows an
// import, so it never counts as pointing against the layers.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// report is the result of a run.
type report struct {
	Paths    []pathFigures `json:"paths"`
	Packages []codeFigures `json:"packages"`
	Layers   layerFigures  `json:"layers"`
	Lines    lineFigures   `json:"lines"`
}

func main() {
	asJSON := flag.Bool("json", false, "print JSON with all details")
	path := flag.String("worker", "", "used by the command itself: run this path")
	out := flag.String("out", "", "used by the command itself: the folder for the worker's coverage data")
	flag.Parse()
	if err := run(context.Background(), *asJSON, *path, *out); err != nil {
		fmt.Fprintln(os.Stderr, "pathreport:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, asJSON bool, path, out string) error {
	if path != "" {
		return work(path, out, os.Stdout)
	}
	r, err := measure(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	r.markdown(os.Stdout)
	return nil
}

// limit bounds a run, in case a path never ends.
const limit = 10 * time.Minute

// measure makes the whole report.
func measure(ctx context.Context) (*report, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	m, err := loadModule(ctx)
	if err != nil {
		return nil, err
	}
	r := &report{}
	if r.Paths, err = measurePaths(ctx, m); err != nil {
		return nil, err
	}
	for _, p := range m.designed() {
		f, err := measureCode(m, p)
		if err != nil {
			return nil, err
		}
		r.Packages = append(r.Packages, f)
	}
	r.Layers = measureLayers(m)
	r.Lines, err = measureLines(m.Dir)
	return r, err
}

func (r *report) markdown(w io.Writer) {
	row := func(figure, format string, args ...any) {
		fmt.Fprintf(w, "| %s | %s |\n", figure, fmt.Sprintf(format, args...))
	}
	row("Figure", "Value")
	row("---", "---")
	for _, p := range r.Paths {
		row("Path: "+p.Title, "%d functions in %d files, %d frames to the wire (commands: %d)",
			len(p.Functions), len(p.Files), len(p.Stack), p.Commands)
	}
	for _, p := range r.Packages {
		row(p.Package, "%d code lines in %d files, %d functions, %.1f %% comments",
			p.Code, p.Files, p.Functions, p.CommentShare())
		if p.Assertions > 0 {
			row(p.Package+": interfaces found by type assertion", "%d in %d places", len(p.Interfaces), p.Assertions)
		}
	}
	row("References against the layers", "%d of %d file pairs", len(r.Layers.Against), r.Layers.Pairs)
	row("Files without a layer", "%d %s", len(r.Layers.Unknown), strings.Join(r.Layers.Unknown, " "))
	row("Longest line of Go", "%d characters, %s; %d lines over %d",
		r.Lines.Longest, r.Lines.Where, r.Lines.TooLong, lineLimit)
}
