package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v3"
)

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:        "version",
		Usage:       "print the version",
		Description: withExamples("Prints the version of redlatch and of Go, and the platform.", "redlatch version"),
		Action: func(_ context.Context, c *cli.Command) error {
			if _, err := arguments(c); err != nil {
				return err
			}
			if c.Bool("json") {
				return printJSON(c, map[string]string{
					"version": moduleVersion(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
				})
			}
			_, err := fmt.Fprintln(c.Root().Writer, "redlatch version", version())
			return err
		},
	}
}

// version returns the version of the module and of Go, and the platform.
func version() string {
	return fmt.Sprintf("%s %s %s/%s", moduleVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func moduleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
