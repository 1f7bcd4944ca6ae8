package examples_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each exported type has an example in its documentation, which runs: of itself, of one of its
// functions, or of one of its methods.
func TestExportedTypesHaveExamples(t *testing.T) {
	t.Parallel()
	for _, pkg := range []string{"primitives", "locktest"} {
		t.Run(pkg, func(t *testing.T) {
			t.Parallel()
			types := documentation(t, pkg).Types
			require.NotEmpty(t, types)
			for _, typ := range types {
				examples := typ.Examples
				for _, f := range append(typ.Funcs, typ.Methods...) {
					examples = append(examples, f.Examples...)
				}
				require.NotEmpty(t, examples, "%s.%s has no example", pkg, typ.Name)
				for _, e := range examples {
					require.NotEmpty(t, e.Output, "%s: Example%s has no output, so it does not run", pkg, e.Name)
				}
			}
		})
	}
}

// documentation reads the files of a package and of its tests.
func documentation(t *testing.T, pkg string) *doc.Package {
	paths, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
	require.NoError(t, err)
	fileSet := token.NewFileSet()
	var files []*ast.File
	for _, path := range paths {
		file, err := parser.ParseFile(fileSet, path, nil, parser.ParseComments)
		require.NoError(t, err)
		files = append(files, file)
	}
	parsed, err := doc.NewFromFiles(fileSet, files, "github.com/redlatch/redlatch/"+pkg)
	require.NoError(t, err)
	return parsed
}
