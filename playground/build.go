package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/redlatch/redlatch/internal/look"
	"github.com/redlatch/redlatch/internal/torture/simbuild"
)

//go:embed page
var page embed.FS

// policy lets the page use its own files only. The worker compiles the program.
const policy = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; connect-src 'self'; " +
	"worker-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"

// build writes the page to a folder.
func build(ctx context.Context, dir string) error {
	if _, err := os.Stat("guest"); err != nil {
		return fmt.Errorf("it runs in the folder playground of a clone of redlatch: %w", err)
	}
	files := map[string][]byte{}
	for _, name := range []string{"index.html", "page.css", "page.js", "worker.js"} {
		text, err := page.ReadFile("page/" + name)
		if err != nil {
			return err
		}
		files[name] = text
	}
	files["index.html"] = bytes.Replace(files["index.html"], []byte("{{POLICY}}"), []byte(policy), 1)
	files["page.css"] = append([]byte(look.Text()), files["page.css"]...)
	support, err := goSupport(ctx)
	if err != nil {
		return err
	}
	files["wasm_exec.js"] = support
	files["playground.wasm.gz"], err = compile(ctx)
	if err != nil {
		return err
	}
	err = os.MkdirAll(dir, 0o755) //nolint:gosec // a web server reads it
	if err != nil {
		return err
	}
	for name, text := range files {
		err := os.WriteFile(filepath.Join(dir, name), text, 0o644) //nolint:gosec // a web server reads it
		if err != nil {
			return err
		}
	}
	return nil
}

// goSupport returns the script with which the installed Go runs in browsers. It must be of the
// version that compiles.
func goSupport(ctx context.Context) ([]byte, error) {
	goroot, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	return os.ReadFile(filepath.Join(string(bytes.TrimSpace(goroot)), "lib", "wasm", "wasm_exec.js"))
}

// compile returns the program of the page, compressed.
func compile(ctx context.Context) ([]byte, error) {
	scratch, err := os.MkdirTemp("", "redlatch-playground-build-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	file := filepath.Join(scratch, "playground.wasm")
	err = simbuild.Build(ctx, simbuild.Program{Dir: ".", Package: "./guest", GOOS: "js", Small: true}, scratch, file)
	if err != nil {
		return nil, err
	}
	code, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var compressed bytes.Buffer
	w, err := gzip.NewWriterLevel(&compressed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	_, err = w.Write(code)
	if err != nil {
		return nil, err
	}
	err = w.Close()
	return compressed.Bytes(), err
}
