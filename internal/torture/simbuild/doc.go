// Package simbuild compiles programs to WebAssembly whose scheduler can stop groups of goroutines:
// see package simstop.
//
// Their runtime is that of the installed Go with a few added lines, which go build takes from an
// overlay. The library and its dependencies are compiled as they are.
package simbuild
