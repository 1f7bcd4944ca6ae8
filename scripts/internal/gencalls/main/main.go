// Command main writes calls.go of package scripts. "go generate ./scripts" runs it in that folder.
package main

import (
	"fmt"
	"os"

	"github.com/redlatch/redlatch/scripts/internal/gencalls"
)

func main() {
	text, err := gencalls.Generate(os.DirFS("."))
	if err == nil {
		err = os.WriteFile("calls.go", text, 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gencalls:", err)
		os.Exit(1)
	}
}
