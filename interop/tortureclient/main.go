// Command tortureclient is a client process of redlatch torture that uses Redisson in place of
// redlatch:
//
//	go build -o /tmp/redisson-client ./interop/tortureclient
//	redlatch torture --other /tmp/redisson-client
//
// It needs Java, and Maven when it runs for the first time.
package main

import (
	"fmt"
	"os"

	"github.com/redlatch/redlatch/internal/torture"
)

func main() {
	if len(os.Args) != 2 || os.Args[1] != "torture-client" {
		fmt.Fprintln(os.Stderr, "usage: redlatch torture --other", os.Args[0])
		os.Exit(2)
	}
	if err := torture.LibraryWorker(os.Stdin, os.Stdout, open); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
