package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/primitives"
)

// The command run: acquire, run a child process, release. The order in which things happen at its
// end:
//
//	the child exits       its status is kept
//	the group is empty    only waited for after a loss: SIGTERM, and SIGKILL when the grace is over
//	the lock is released  so nobody else holds it while a process of the group may still work
//
// A hold that ends by time is lost a tenth of its TTL before its key expires. That time is for
// SIGTERM to be of use. SIGKILL comes before it is over, whatever the grace.

func runCommand(args []string) *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "run a command while a lock is held",
		ArgsUsage: "NAME -- CMD [ARG...]",
		Description: withExamples(
			"Acquires NAME, runs CMD in a process group of its own, and releases NAME when CMD exits.\n"+
				"The exit code is CMD's, or 128+n if signal n ended CMD. CMD gets REDLATCH_NAME, REDLATCH_KIND, REDLATCH_ID and,\n"+
				"with --kind fenced, REDLATCH_TOKEN.\n\n"+
				"SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the group. While redlatch still\n"+
				"waits for NAME, they end it.\n\n"+
				"If NAME is lost, the group gets SIGTERM, and SIGKILL after --grace. If its TTL is about to end, SIGKILL\n"+
				"comes before anybody else can acquire NAME. The exit code is then 76.\n\n"+
				"With --min-hold NAME stays held for that long after it was acquired, however soon CMD ends: a job that\n"+
				"several hosts start runs once, although their clocks differ. redlatch does not wait for it.",
			"redlatch run orders:42 -- echo shipped",
			"redlatch run -nqE 0 --min-hold 10m nightly -- echo 'on one host only'",
			"redlatch run -n --kind fenced ledger -- sh -c 'echo token $REDLATCH_TOKEN'",
			"redlatch run --wait 10s --max-hold 1h reports -- echo report"),
		StopOnNthArg: new(1), // flags of CMD are not ours
		Flags: append(requestFlags(runKinds),
			&cli.DurationFlag{
				Name: "lease", HideDefault: true,
				Usage: "hold NAME for `DURATION` at most, without renewals",
			},
			&cli.DurationFlag{
				Name: "watchdog", Value: defaultTTL,
				Usage: "TTL of NAME, renewed every third of `DURATION`; if redlatch dies, NAME is free when it ends",
			},
			&cli.DurationFlag{
				Name: "max-hold", HideDefault: true,
				Usage: "end the hold after `DURATION`, even if it could be renewed (default: no limit)",
			},
			&cli.DurationFlag{
				Name: "min-hold", HideDefault: true,
				Usage: "NAME stays held for `DURATION` after it was acquired, even if CMD ends sooner (default: it does not)",
			},
			&cli.StringFlag{
				Name:  "on-wanted",
				Usage: "send `SIGNAL`, such as USR1, to CMD once when somebody waits for NAME (default: none)",
			},
			&cli.DurationFlag{Name: "grace", Value: 5 * time.Second, Usage: "`DURATION` from SIGTERM to SIGKILL, at most"},
			&cli.BoolFlag{
				Name: "verbose", Aliases: []string{"v"},
				Usage: "say on standard error who holds NAME while redlatch waits, and when it is acquired and released",
			}),
		Action: func(ctx context.Context, c *cli.Command) error {
			j, err := newJob(c, args)
			if err != nil {
				return err
			}
			return withSession(ctx, c, j.check, func(s *session) error { return j.run(ctx, s) },
				primitives.WithSafetyMargin(j.margin()))
		},
	}
}

// defaultTTL is the library's default for a renewed hold.
const defaultTTL = 30 * time.Second

// job is one use of the command run.
type job struct {
	request
	path string // of CMD
	argv []string
	// onWanted is the signal for CMD when somebody waits; 0: none.
	onWanted syscall.Signal
	ttl      time.Duration // of the key in Redis when it was last written, at least
	grace    time.Duration
}

// newJob reads the flags and arguments. args is the command line as it was given.
func newJob(c *cli.Command, args []string) (*job, error) {
	name, argv, err := splitCommand(c, args)
	if err != nil {
		return nil, err
	}
	r, err := newRequest(c, name)
	if err != nil {
		return nil, err
	}
	r.minHold = c.Duration("min-hold")
	j := &job{request: r, argv: argv, ttl: c.Duration("watchdog"), grace: c.Duration("grace")}
	if c.IsSet("on-wanted") {
		j.onWanted, err = signalNamed(c.String("on-wanted"))
		if err != nil {
			return nil, err
		}
	}
	for _, flag := range []string{"lease", "watchdog", "max-hold", "min-hold"} {
		switch d := c.Duration(flag); {
		case !c.IsSet(flag):
		case d < time.Millisecond:
			return nil, badUsage("--%s %v: at least 1ms", flag, d)
		case j.kind == kindSemaphore:
			return nil, badUsage("--%s: a %s has no TTL; take --kind %s", flag, j.kind, kindPermits)
		}
	}
	switch {
	case c.IsSet("lease") && c.IsSet("watchdog"):
		return nil, badUsage("--lease and --watchdog exclude each other")
	case c.IsSet("lease") && j.minHold > c.Duration("lease"):
		return nil, badUsage("--min-hold %v is longer than --lease %v", j.minHold, c.Duration("lease"))
	case c.IsSet("max-hold") && j.minHold > c.Duration("max-hold"):
		return nil, badUsage("--min-hold %v is longer than --max-hold %v", j.minHold, c.Duration("max-hold"))
	case j.grace < 0:
		return nil, badUsage("--grace %v is negative", j.grace)
	}
	setTTL := primitives.WithWatchdog
	if c.IsSet("lease") {
		j.ttl, setTTL = c.Duration("lease"), primitives.WithLease
	}
	if c.IsSet("max-hold") {
		j.options = append(j.options, primitives.WithMaxHold(c.Duration("max-hold")))
		j.ttl = min(j.ttl, c.Duration("max-hold")) // the library limits renewals only, not a lease
	}
	j.options = append(j.options, setTTL(j.ttl))
	j.options = append(j.options, primitives.WithMinHold(j.minHold))
	j.path, err = find(argv[0])
	return j, err
}

// splitCommand splits the arguments of run or elect at "--", which the parser has removed. Without
// it CMD could not be told from a flag that was written after NAME.
func splitCommand(c *cli.Command, args []string) (name string, argv []string, err error) {
	rest := c.Args().Slice()
	switch n := len(rest); {
	case n > 2 && rest[1] == "--": // run -- NAME -- CMD, for a NAME that begins with a dash
		return rest[0], rest[2:], nil
	case n > 1 && args[len(args)-n] == "--":
		return rest[0], rest[1:], nil
	case n == 0 || args[len(args)-n-1] == "--": // run -- CMD
		return "", nil, badUsage("NAME is missing: %s NAME -- %s", c.FullName(), cmp.Or(strings.Join(rest, " "), "CMD"))
	case n > 1:
		return "", nil, badUsage("%s takes -- before the command, and its flags before NAME (see %s --help)",
			c.Name, c.FullName())
	}
	return "", nil, badUsage("the command is missing: %s %s -- CMD", c.FullName(), rest[0])
}

// find returns the path of CMD. It looks before the lock is acquired: a wait would be in vain.
func find(cmd string) (string, error) {
	path, err := exec.LookPath(cmd)
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return "", notStarted(cmd, err)
	}
	return path, nil
}

// notStarted is the error of a CMD that cannot be started.
func notStarted(cmd string, err error) error {
	code := exitNotExecutable
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitNotFound
	}
	if reason := errors.Unwrap(err); reason != nil {
		err = reason
	}
	return &codedError{code, fmt.Errorf("cannot run %s: %w", cmd, err)}
}

// margin is how long before the end of its TTL the hold is lost: a tenth, so that SIGTERM is of
// use.
func (j *job) margin() time.Duration { return max(j.ttl/10, j.ttl/100+2*time.Millisecond) }

// run acquires, runs the child, and releases.
func (j *job) run(ctx context.Context, s *session) error {
	// A message that nobody reads must not end redlatch. To ignore the signal would change CMD,
	// which inherits that.
	catch(make(chan os.Signal, 1), []os.Signal{syscall.SIGPIPE})
	signals := make(chan os.Signal, 16)
	catch(signals, endingSignals)
	defer stopSoon(signals)
	hold, err := j.acquire(ctx, s, signals)
	if err != nil {
		return err
	}
	began := time.Now()
	code, err := j.supervise(hold, signals)
	lost := j.release(s, hold, began)
	switch {
	case err != nil:
		return err
	case lost != nil:
		return &codedError{exitLost, fmt.Errorf("%w; %s was running", lost, j.argv[0])}
	case code != 0:
		return &codedError{code: code}
	}
	return nil
}

// supervise starts the child, and returns its exit code when it has exited. After a loss it returns
// only when the whole group is gone or killed.
func (j *job) supervise(hold *primitives.Hold, signals <-chan os.Signal) (code int, err error) {
	child, err := startChild(j.path, j.argv, j.environment(hold), func() bool {
		until := hold.ValidUntil()
		return until.IsZero() || time.Now().Before(until)
	})
	if err != nil {
		return 0, notStarted(j.argv[0], err)
	}
	defer child.close()
	lost := hold.Context().Done()
	var wanted <-chan struct{}
	if j.onWanted != 0 {
		wanted = hold.Wanted() // only then, because listening costs commands
	}
	var kill <-chan time.Time
	var look <-chan time.Time // whether the group is gone, once its leader is
	exited := child.exited
	for {
		select {
		case sig := <-signals:
			child.signal(sig.(syscall.Signal))
		case <-wanted:
			wanted = nil // once
			child.signalLeader(j.onWanted)
		case <-lost:
			lost, wanted = nil, nil
			kill = time.After(time.Until(j.killAt(hold)))
			child.terminate()
		case code = <-exited:
			exited = nil
			if kill == nil {
				return code, nil
			}
			look = time.Tick(groupPoll)
		case <-look:
			if !child.groupExists() {
				return code, nil
			}
		case <-kill:
			child.kill()
			if exited != nil {
				code = <-exited
			}
			return code, nil
		}
	}
}

// groupPoll is how often to look whether a group without a leader is gone. No event tells of it.
const groupPoll = 5 * time.Millisecond

// killAt is when a group that has lost its lock must be dead.
func (j *job) killAt(hold *primitives.Hold) time.Time {
	now := time.Now()
	end := now.Add(j.grace)
	if until := hold.ValidUntil(); !now.Before(until.Add(-time.Millisecond)) {
		// Lost by time: the key expires a margin later. A kill takes some time, too.
		reserve := min(j.ttl/100+10*time.Millisecond, j.margin()/2)
		if expires := until.Add(j.margin() - reserve); expires.Before(end) {
			end = expires
		}
	}
	return end
}

// environment is redlatch's own, with the hold. An outer run's variables are replaced.
func (j *job) environment(hold *primitives.Hold) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{"REDLATCH_NAME", "REDLATCH_KIND", "REDLATCH_ID", "REDLATCH_TOKEN"}, name)
	})
	env = append(env, "REDLATCH_NAME="+j.name, "REDLATCH_KIND="+j.kind, "REDLATCH_ID="+hold.ID())
	if hold.Token() > 0 {
		env = append(env, "REDLATCH_TOKEN="+strconv.FormatInt(hold.Token(), 10))
	}
	return env
}

// release releases the hold. If the hold was lost, it returns the reason, and deletes whatever the
// hold left in Redis: the child is gone, so nobody needs to wait for the lease to expire. A minimum
// hold stays. A silent Redis delays the end by releaseTimeout at most.
func (j *job) release(s *session, hold *primitives.Hold, began time.Time) (lost error) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	if cause := context.Cause(hold.Context()); errors.Is(cause, primitives.ErrLost) {
		lost = cause
	}
	answered := make(chan error, 1)
	go func() {
		err := hold.Release(ctx)
		if errors.Is(err, primitives.ErrLost) && j.minHold == 0 {
			j.removeRest(ctx, s, hold)
		}
		answered <- err
	}()
	slow := time.AfterFunc(tellAfter, func() {
		signal.Reset(endingSignals...) // from here on a signal ends redlatch
		j.notes.note("warning", "Redis does not answer the release of %q: trying for another %v", j.name,
			releaseTimeout-tellAfter)
	})
	defer slow.Stop()
	var err error
	select {
	case err = <-answered:
	case <-ctx.Done():
		err = cmp.Or(lost, fmt.Errorf("release %s %q: no answer within %v", j.kind, j.name, releaseTimeout))
	}
	s.silent = ctx.Err() != nil || errors.Is(err, primitives.ErrUnavailable)
	held := time.Since(began)
	switch {
	case errors.Is(err, primitives.ErrLost):
		if loss, ok := errors.AsType[*primitives.LossError](err); ok {
			named := *loss
			named.Kind = j.kind
			return &named
		}
		return err
	case err != nil:
		rest := fmt.Sprintf("%q may stay held until its lease ends", j.name)
		if j.kind == kindSemaphore {
			rest = fmt.Sprintf("its permits may stay taken: redlatch semaphore add %s N brings them back", j.name)
		}
		j.notes.note("warning", "%v; %s", err, rest)
	case held < j.minHold:
		j.notes.verbose("released", "released %s %q, which stays held for another %v (--min-hold)",
			j.kind, j.name, shown(j.minHold-held))
	default:
		j.notes.verbose("released", "released %s %q, held for %v", j.kind, j.name, held.Round(time.Millisecond))
	}
	return nil
}

const (
	releaseTimeout = 5 * time.Second // how long the end of run waits for Redis
	tellAfter      = time.Second     // when it says so, and a signal ends it
)
