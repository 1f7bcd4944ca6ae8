package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// module is the library: primitives and its imports from this module, without tests.
type module struct {
	Path, Dir string
	fset      *token.FileSet
	packages  []*pkg // each after its imports
}

type pkg struct {
	name  string               // relative to the module, such as "internal/engine"
	files map[string]*ast.File // by base name
	types *types.Package
	info  *types.Info
}

// loadModule parses and type-checks the library. Packages of other modules come from export data.
func loadModule(ctx context.Context) (*module, error) {
	m := &module{fset: token.NewFileSet()}
	out, err := command(ctx, "", "go", "list", "-m", "-json")
	if err == nil {
		err = json.Unmarshal(out, m)
	}
	if err != nil {
		return nil, err
	}
	out, err = command(ctx, m.Dir, "go", "list", "-deps", "-export", "-json=ImportPath,Dir,GoFiles,Export", "./primitives")
	if err != nil {
		return nil, err
	}
	exports := map[string]string{}
	others := importer.ForCompiler(m.fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	imports := importerFunc(func(path string) (*types.Package, error) {
		if p := m.find(strings.TrimPrefix(path, m.Path+"/")); p != nil {
			return p.types, nil
		}
		return others.Import(path)
	})
	for list := json.NewDecoder(bytes.NewReader(out)); ; { // go list puts imports first
		var listed struct {
			ImportPath, Dir, Export string
			GoFiles                 []string
		}
		if err := list.Decode(&listed); errors.Is(err, io.EOF) {
			return m, nil
		} else if err != nil {
			return nil, err
		}
		name, ours := strings.CutPrefix(listed.ImportPath, m.Path+"/")
		if !ours {
			exports[listed.ImportPath] = listed.Export
		} else if err := m.add(name, listed.Dir, listed.GoFiles, imports); err != nil {
			return nil, err
		}
	}
}

type importerFunc func(path string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }

// add parses and type-checks one package.
func (m *module) add(name, dir string, fileNames []string, imports types.Importer) (err error) {
	p := &pkg{
		name: name, files: map[string]*ast.File{},
		info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}},
	}
	var files []*ast.File
	for _, name := range fileNames {
		f, err := parser.ParseFile(m.fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		p.files[name] = f
		files = append(files, f)
	}
	config := types.Config{Importer: imports}
	p.types, err = config.Check(m.Path+"/"+name, m.fset, files, p.info)
	m.packages = append(m.packages, p)
	return err
}

// find returns the package of that name, nil if the library has none.
func (m *module) find(name string) *pkg {
	for _, p := range m.packages {
		if p.name == name {
			return p
		}
	}
	return nil
}

// designed returns the packages covered by the code and layer figures.
func (m *module) designed() []*pkg {
	list := []*pkg{m.find("primitives"), m.find("internal/joint"), m.find("internal/engine"), m.find("internal/waitq"),
		m.find("internal/presence"), m.find("internal/duty")}
	return slices.DeleteFunc(list, func(p *pkg) bool { return p == nil })
}

// command runs a command in dir and returns its output. An error contains its stderr.
func command(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), "GOCOVERDIR=") // the worker decides where its counters go
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return out, nil
}
