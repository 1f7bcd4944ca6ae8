// Command sim runs rounds of simulated client processes, each decided by its seed: see doc/simulation.md.
package main

import (
	"context"
	"fmt"
	"os"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

var _ = fmt.Sprint
