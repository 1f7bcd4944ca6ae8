// Command sim simulates rounds of client processes that use redlatch, each decided by its seed.
// README.md describes it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"time"
)

const usage = `sim simulates rounds of client processes that use redlatch. A seed decides everything in its round:
what the processes do and when, the network, the servers and the faults. The same seed gives the same round,
to the last byte.

  go run . --seeds 1-500              # these seeds; the exit code is 1 if a promise was broken
  go run . --seed 4711                # one seed, with its log
  go run . --shrink 4711              # what is left of it when all that does not matter is left out
  go run . --seeds 1-500 --cpu 60s    # until 60 s of processor time are used
  go run . --seeds 1-500 --library ~/other/redlatch
  go run . --seed 4711 --replay 100   # 100 times more: all hashes must be equal

The last line is "sim: N seeds, M violations". It runs in the folder sim, and needs only Go.

`

// options are what the user wants.
type options struct {
	first, last uint64
	single      bool // --seed: print the log
	shrink      bool
	twice       bool
	replay      int
	failFast    bool
	library     string
	html        string
	cpu         time.Duration
	parallel    int
}

// Exit codes.
const (
	exitClean     = 0
	exitViolation = 1
	exitUsage     = 2
)

var errUsage = errors.New("see --help")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	o, err := parse(args, errs)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitClean
	case err != nil:
		fmt.Fprintf(errs, "sim: %v\n", err)
		return exitUsage
	}
	violations, err := simulate(ctx, o, out)
	switch {
	case err != nil:
		fmt.Fprintf(errs, "sim: %v\n", err)
		return exitUsage
	case violations > 0:
		return exitViolation
	}
	return exitClean
}

// parse reads the flags.
func parse(args []string, errs io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("sim", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	seeds := flags.String("seeds", "1-100", "`RANGE` of seeds, such as 1-500")
	seed := flags.String("seed", "", "one `SEED`: print all that happens in its round, too")
	shrink := flags.String("shrink", "", "leave out what does not matter for the failure of a `SEED`, and print the rest")
	flags.StringVar(&o.library, "library", "..", "`DIRECTORY` of the checkout whose library is tested")
	flags.DurationVar(&o.cpu, "cpu", 0, "end after so much processor time, a `DURATION` such as 60s (default: no limit)")
	flags.BoolVar(&o.twice, "twice", false, "run each seed twice, and compare: a difference is a violation")
	flags.IntVar(&o.replay, "replay", 0, "run each seed with a violation `N` times more, and count the equal hashes")
	flags.BoolVar(&o.failFast, "fail-fast", false, "stop after the first seed with a violation")
	flags.StringVar(&o.html, "html", "", "`FILE` for a page with the timelines of a single seed, for a browser")
	flags.IntVar(&o.parallel, "parallel", runtime.NumCPU(), "how many seeds run at the same time")
	err = flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(errs, usage)
		flags.SetOutput(errs)
		flags.PrintDefaults()
		return o, err
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	ways := 0
	for _, name := range []string{"seeds", "seed", "shrink"} {
		if given[name] {
			ways++
		}
	}
	switch {
	case err != nil:
		return o, fmt.Errorf("%w; %w", err, errUsage)
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q; %w", flags.Arg(0), errUsage)
	case ways > 1:
		return o, fmt.Errorf("--seeds, --seed and --shrink exclude each other; %w", errUsage)
	case o.cpu < 0:
		return o, fmt.Errorf("--cpu %v: must not be negative", o.cpu)
	case o.replay < 0:
		return o, fmt.Errorf("--replay %d: must not be negative", o.replay)
	case o.parallel < 1:
		return o, fmt.Errorf("--parallel %d: must be 1 or more", o.parallel)
	case o.html != "" && !given["seed"] && !given["shrink"]:
		return o, fmt.Errorf("--html needs --seed or --shrink; %w", errUsage)
	}
	o.single, o.shrink = given["seed"], given["shrink"]
	switch {
	case o.single:
		o.first, err = parseSeed("--seed", *seed)
		o.last = o.first
	case o.shrink:
		o.first, err = parseSeed("--shrink", *shrink)
		o.last = o.first
	default:
		o.first, o.last, err = parseSeeds(*seeds)
	}
	return o, err
}

func parseSeed(name, text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s %q: a seed is a number from 0 on", name, text)
	}
	return n, nil
}

func parseSeeds(text string) (first, last uint64, err error) {
	from, to, found := strings.Cut(text, "-")
	if !found {
		to = from
	}
	first, err1 := strconv.ParseUint(from, 10, 64)
	last, err2 := strconv.ParseUint(to, 10, 64)
	if err1 != nil || err2 != nil || first > last {
		return 0, 0, fmt.Errorf("--seeds %q: want a range such as 1-500", text)
	}
	return first, last, nil
}
