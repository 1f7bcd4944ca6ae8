package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/primitives"
)

// The command elect: stand for election, and run a child process while this process leads. The
// child ends as that of run does: see run.go.

func electCommand(args []string) *cli.Command {
	return &cli.Command{
		Name:      "elect",
		Usage:     "run a command while this host is the leader",
		ArgsUsage: "NAME -- CMD [ARG...]",
		Description: withExamples(
			"Stands for election, and runs CMD while it leads. If the leadership is lost, CMD gets SIGTERM, and SIGKILL after\n"+
				"--grace, before anybody else leads. CMD starts again with the next term. An outage of Redis ends nothing.\n\n"+
				"It ends when CMD ends by itself, with CMD's exit code, and on SIGINT, SIGTERM or SIGHUP: CMD is stopped\n"+
				"first, and the leadership is given back. Then another host leads at once. CMD gets REDLATCH_NAME,\n"+
				"REDLATCH_KIND, REDLATCH_ID and REDLATCH_TOKEN, which rises with each term.",
			"redlatch elect shop:leader -- echo leads",
			"redlatch elect -v shop:leader -- sh -c 'echo token $REDLATCH_TOKEN'"),
		StopOnNthArg: new(1), // flags of CMD are not ours
		Flags: []cli.Flag{
			&cli.DurationFlag{
				Name: "watchdog", Value: defaultTTL,
				Usage: "renew the leadership every third of `DURATION`; if this host dies, another one leads when it ends",
			},
			&cli.DurationFlag{Name: "grace", Value: 5 * time.Second, Usage: "`DURATION` from SIGTERM to SIGKILL, at most"},
			&cli.BoolFlag{
				Name: "verbose", Aliases: []string{"v"},
				Usage: "say on standard error when this host leads, and when no longer",
			},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			j, err := newLeaderJob(c, args)
			if err != nil {
				return err
			}
			// Without withSession, which fails at once if Redis does not answer.
			s, err := open(c, primitives.WithSafetyMargin(j.margin()), primitives.WithObserver(outageNotes(j.notes)))
			if err != nil {
				return err
			}
			err = j.elect(ctx, s)
			s.close(err)
			return err
		},
	}
}

// newLeaderJob reads the flags and arguments of elect. args is the command line as it was given.
func newLeaderJob(c *cli.Command, args []string) (*job, error) {
	name, argv, err := splitCommand(c, args)
	if err != nil {
		return nil, err
	}
	j := &job{
		request: request{kind: kindFenced, name: name, notes: notesOf(c)},
		argv:    argv, ttl: c.Duration("watchdog"), grace: c.Duration("grace"),
	}
	switch {
	case j.ttl < time.Millisecond:
		return nil, badUsage("--watchdog %v: at least 1ms", j.ttl)
	case j.grace < 0:
		return nil, badUsage("--grace %v is negative", j.grace)
	}
	j.path, err = find(argv[0])
	return j, err
}

// outageNotes is an observer that tells once that Redis does not answer, until it does again.
func outageNotes(n notes) func(primitives.Event) {
	told := make(chan struct{}, 1)
	return func(e primitives.Event) {
		switch e.Outcome() {
		case primitives.OutcomeUnavailable:
			select {
			case told <- struct{}{}:
				n.note("warning", "%v; trying on", e.Err)
			default:
			}
		case primitives.OutcomeAcquired:
			select {
			case <-told:
			default:
			}
		default:
		}
	}
}

// electionSignals end elect. Other signals go to CMD.
var electionSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}

// elect stands for election until a signal ends it, or CMD ends by itself.
func (j *job) elect(ctx context.Context, s *session) error {
	catch(make(chan os.Signal, 1), []os.Signal{syscall.SIGPIPE}) // as in run
	received, passedOn := make(chan os.Signal, 16), make(chan os.Signal, 16)
	catch(received, endingSignals)
	defer stopSoon(received)
	candidacyCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	go func() {
		for {
			select {
			case <-candidacyCtx.Done():
				return
			case sig := <-received:
				if slices.Contains(electionSignals, sig) {
					cancel(&signalError{sig.(syscall.Signal)})
					return
				}
				select {
				case passedOn <- sig:
				default: // nobody leads, or CMD does not keep up
				}
			}
		}
	}()
	election := s.client.Election(j.name, primitives.WithWatchdog(j.ttl))
	err := election.Run(candidacyCtx, func(ctx context.Context, term primitives.Term) error {
		return j.term(ctx, term, passedOn)
	})
	if ended, ok := errors.AsType[*signalError](context.Cause(candidacyCtx)); ok {
		return &codedError{exitSignal + int(ended.signal), nil}
	}
	return err
}

// term runs CMD until it ends, or until ctx does. It returns CMD's exit code as an error, which
// ends the election.
func (j *job) term(ctx context.Context, term primitives.Term, signals <-chan os.Signal) error {
	for len(signals) > 0 {
		<-signals // they came before this term
	}
	j.notes.verbose("elected", "leads %q with token %s", j.name, strconv.FormatInt(term.Token, 10))
	code, err := j.supervise(term.Hold, signals)
	if err != nil {
		return err
	}
	if ctx.Err() != nil { // CMD was stopped
		j.notes.verbose("ended", "no longer leads %q: %v", j.name, context.Cause(ctx))
		return ctx.Err()
	}
	return &codedError{code: code}
}
