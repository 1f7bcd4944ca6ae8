package main

import (
	"bytes"
	"go/ast"
	"go/scanner"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"
)

// codeFigures are the figures of one package.
type codeFigures struct {
	Package    string         `json:"package"`
	Files      int            `json:"files"`
	Functions  int            `json:"functions"`
	Code       int            `json:"codeLines"`
	Comments   int            `json:"commentLines"`
	Interfaces map[string]int `json:"interfaces"` // looked for by type assertion or type switch: how often
	Assertions int            `json:"assertions"` // their sum
}

// CommentShare is the share of comment lines in %.
func (f codeFigures) CommentShare() float64 {
	return 100 * float64(f.Comments) / float64(max(f.Code+f.Comments, 1))
}

func measureCode(m *module, p *pkg) (codeFigures, error) {
	f := codeFigures{Package: p.name, Files: len(p.files), Interfaces: map[string]int{}}
	for _, file := range p.files {
		src, err := os.ReadFile(m.fset.Position(file.Pos()).Filename)
		if err != nil {
			return f, err
		}
		code, comments := countLines(src)
		f.Code += code
		f.Comments += comments
		f.Functions += len(functionsOf(file))
		for _, t := range assertedInterfaces(file, p.info) {
			f.Interfaces[types.TypeString(t, types.RelativeTo(p.types))]++
			f.Assertions++
		}
	}
	return f, nil
}

func functionsOf(file *ast.File) []*ast.FuncDecl {
	var list []*ast.FuncDecl
	for _, decl := range file.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok {
			list = append(list, fn)
		}
	}
	return list
}

// countLines counts code lines and comment-only lines.
func countLines(src []byte) (code, comments int) {
	fset := token.NewFileSet()
	file := fset.AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, scanner.ScanComments)
	isCode := map[int]bool{} // by line; false: a comment so far
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			break
		}
		if tok == token.SEMICOLON && lit == "\n" {
			continue // inserted by the scanner
		}
		first := file.Line(pos)
		for line := first; line <= first+strings.Count(lit, "\n"); line++ {
			isCode[line] = isCode[line] || tok != token.COMMENT
		}
	}
	for _, hasCode := range isCode {
		if hasCode {
			code++
		} else {
			comments++
		}
	}
	return code, comments
}

// assertedInterfaces returns the interface of each type assertion and of each case of a type switch.
// Concrete types and type parameters do not count.
func assertedInterfaces(file *ast.File, info *types.Info) []types.Type {
	var list []types.Type
	add := func(expr ast.Expr) {
		t := info.TypeOf(expr)
		if _, parameter := t.(*types.TypeParam); t != nil && !parameter && types.IsInterface(t) {
			list = append(list, t)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.TypeAssertExpr:
			if n.Type != nil { // nil: the x.(type) of a type switch
				add(n.Type)
			}
		case *ast.TypeSwitchStmt:
			for _, clause := range n.Body.List {
				for _, expr := range clause.(*ast.CaseClause).List {
					add(expr)
				}
			}
		}
		return true
	})
	return list
}

// lineLimit is the greatest length of a line that the project allows.
const lineLimit = 120

// lineFigures are about all Go files of the repository, tests and other modules included.
type lineFigures struct {
	Longest int    `json:"longest"` // in characters
	Where   string `json:"where"`   // file:line
	TooLong int    `json:"tooLong"` // lines over lineLimit
}

func measureLines(root string) (lineFigures, error) {
	var f lineFigures
	files := os.DirFS(root)
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".git":
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		src, err := fs.ReadFile(files, name)
		number := 0
		for line := range bytes.Lines(src) {
			number++
			length := utf8.RuneCount(bytes.TrimRight(line, "\r\n"))
			if length > lineLimit {
				f.TooLong++
			}
			if length > f.Longest {
				f.Longest, f.Where = length, name+":"+strconv.Itoa(number)
			}
		}
		return err
	})
	return f, err
}
