package torture

// advance lets virtual time pass for this whole program. The program that runs the simulation
// provides it.
//
//go:wasmimport sim advance
func advance(ns int64)
