package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/examples/internal/readme"
)

// The command of the page prints what the page shows.
func TestCommandOfThePage(t *testing.T) {
	const command = "go run -C examples/sqlite ."
	for _, c := range readme.Commands(t, "../README.md") {
		if c.Line == command {
			readme.Check(t, "../..", command, c.Output)
			return
		}
	}
	require.Fail(t, "the page has no command", command)
}
