package simbuild

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// tag is the build tag of programs with the changed runtime. Package simstop looks at it.
const tag = "simruntime"

// Program is what is compiled.
type Program struct {
	Dir     string // where the go command runs
	Package string // such as ./guest
	GOOS    string // wasip1 or js
	Small   bool   // leave out the symbol table and debug information
}

// Build compiles a program, and writes it to a file. scratch is an empty folder for the files of
// the changed runtime. $GOFLAGS applies, except for -race. An overlay in it is merged with that of
// the runtime.
func Build(ctx context.Context, p Program, scratch, file string) error {
	find := exec.CommandContext(ctx, "go", "env", "GOROOT")
	find.Dir = p.Dir
	goroot, err := find.Output()
	if err != nil {
		return fmt.Errorf("go env GOROOT: %w", err)
	}
	var flags []string
	also := ""
	for flag := range strings.FieldsSeq(os.Getenv("GOFLAGS")) {
		other, isOverlay := strings.CutPrefix("-"+strings.TrimLeft(flag, "-"), "-overlay=")
		switch {
		case isOverlay:
			also = other
		case flag != "-race":
			flags = append(flags, flag)
		}
	}
	changed, err := overlay(string(bytes.TrimSpace(goroot)), scratch, also)
	if err != nil {
		return fmt.Errorf("the runtime of simulations: %w", err)
	}
	args := []string{"build", "-overlay", changed, "-tags", tag, "-o", file}
	if p.Small {
		args = append(args, "-trimpath", "-ldflags=-s -w")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, p.Package)...)
	cmd.Dir = p.Dir
	cmd.Env = append(os.Environ(), "GOOS="+p.GOOS, "GOARCH=wasm", "CGO_ENABLED=0", "GOWORK=off",
		"GOFLAGS="+strings.Join(flags, " "))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("building %s: %w\n%s", p.Package, err, bytes.TrimSpace(out))
	}
	return nil
}
