// Command simguest simulates one round. It is compiled to WebAssembly and run by the program in
// sim, which gives it a virtual clock and seeded random numbers.
//
// It reads a request in JSON, and writes the result as one line of JSON.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/redlatch/redlatch/internal/torture"
)

// request is what the program in sim sends.
type request struct {
	Plan *torture.Plan `json:"plan"`
	Log  bool          `json:"log,omitempty"`
	Page bool          `json:"page,omitempty"`
}

func main() {
	var r request
	if err := json.NewDecoder(os.Stdin).Decode(&r); err != nil {
		fmt.Fprintln(os.Stderr, "simguest:", err)
		os.Exit(2)
	}
	result := torture.Simulate(r.Plan, torture.SimulationOptions{Log: r.Log, Page: r.Page})
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		fmt.Fprintln(os.Stderr, "simguest:", err)
		os.Exit(2)
	}
	os.Exit(0) // goroutines of processes that were killed do not end
}
