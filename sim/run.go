package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/redlatch/redlatch/internal/torture"
)

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	wasm, err := build(ctx, "..", "/tmp")
	if err != nil {
		fmt.Fprintln(errs, err)
		return 2
	}
	g, err := compile(ctx, wasm)
	if err != nil {
		fmt.Fprintln(errs, err)
		return 2
	}
	a, _ := strconv.Atoi(args[0])
	b, _ := strconv.Atoi(args[1])
	for s := a; s <= b; s++ {
		began := time.Now()
		r, err := g.simulate(ctx, request{Plan: torture.MakePlan(uint64(s)), Log: len(args) > 2})
		if err != nil {
			fmt.Fprintln(out, err)
			continue
		}
		fmt.Fprintln(out, s, time.Since(began).Round(time.Millisecond), r.Hash, r.Operations, r.Virtual, r.Undecided, r.Error, r.Log)
		for _, v := range r.Violations {
			fmt.Fprintln(out, "   ", v.Check, v.Name, v.Detail)
		}
	}
	return 0
}
