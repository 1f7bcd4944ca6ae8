// Command playground builds a page on which two clients of redlatch use one lock, in a browser. It
// serves the page on this machine, or writes it to a folder for any web server. README.md describes
// it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"
)

const usage = `playground shows two clients of redlatch and one lock, in a browser.

  go run .                  # builds the page, and serves it on this machine
  go run . --out DIR        # writes the page to a folder, for any web server

It runs in the folder playground, and needs only Go.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "playground:", err)
		os.Exit(2)
	}
}

func run(ctx context.Context, args []string, out, errs io.Writer) error {
	flags := flag.NewFlagSet("playground", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.Usage = func() {
		fmt.Fprint(errs, usage)
		flags.PrintDefaults()
	}
	dir := flags.String("out", "", "write the page to this `DIR`, and serve nothing")
	address := flags.String("listen", "127.0.0.1:8080", "serve the page at this `ADDRESS`; port 0 is any free port")
	err := flags.Parse(args)
	switch {
	case err != nil:
		return err
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q: see --help", flags.Arg(0))
	case *dir != "":
		return build(ctx, *dir)
	}
	temporary, err := os.MkdirTemp("", "redlatch-playground-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	err = build(ctx, temporary)
	if err != nil {
		return err
	}
	return serve(ctx, temporary, *address, out)
}

// serve serves a folder until ctx ends.
func serve(ctx context.Context, dir, address string, out io.Writer) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.FileServerFS(os.DirFS(dir)), ReadHeaderTimeout: 10 * time.Second}
	stopped := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stopped()
	fmt.Fprintf(out, "http://%s/\n", listener.Addr())
	err = server.Serve(listener)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
