package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/names"
	"github.com/redlatch/redlatch/primitives"
)

// heldKinds are the kinds whose holders Redis knows.
var heldKinds = append(slices.Clone(lockKinds), kindPermits)

// released is what release and force-release print as JSON.
type released struct {
	Name     string `json:"name"`
	Base64   string `json:"name_base64,omitempty"`
	Kind     string `json:"kind"`
	ID       string `json:"id,omitempty"`
	Released bool   `json:"released"`
}

func releaseCommand() *cli.Command {
	return &cli.Command{
		Name:      "release",
		Usage:     "release one count of a holder",
		ArgsUsage: "NAME ID",
		Description: withExamples(
			"Releases one count of the holder ID, which redlatch ls shows. If that was its last count,\n"+
				"NAME is free, and the holder is told that it has lost NAME. The exit code is 1 if ID holds nothing.",
			"redlatch release orders:42 0190b5a1-2f6e-4b1c-8a53-6f1f6d1e9c11:7"),
		Flags: []cli.Flag{kindFlag(heldKinds), base64Flag()},
		Action: func(ctx context.Context, c *cli.Command) error {
			args, err := named(c)
			if err != nil {
				return err
			}
			kind, err := kindGiven(c, heldKinds)
			if err != nil {
				return err
			}
			name, id := args[0], args[1]
			if id == "" {
				return badUsage("ID is empty")
			}
			free := func(ctx context.Context, s *session) (err error) {
				if kind, err = s.heldKind(ctx, "release", kind, name); err != nil {
					return notOurs(err)
				}
				return notOurs(s.releaseID(ctx, kind, name, id))
			}
			return withSession(ctx, c, free, func(s *session) error {
				if err := free(ctx, s); err != nil {
					return err
				}
				if c.Bool("json") {
					return printJSON(c, released{name, names.Base64(name), kind, id, true})
				}
				fmt.Fprintf(c.Root().Writer, "released %s %q of %s\n", kind, name, plain(id))
				return nil
			})
		},
	}
}

// releaseID releases one count of the holder id. The library calls an id that no holder can have
// invalid. A script has such an id from somewhere else, and needs to know only that it holds
// nothing.
func (s *session) releaseID(ctx context.Context, kind, name, id string) error {
	a := s.acquirer(kind, name)
	err := a.(releaser).ReleaseID(ctx, id)
	if !errors.Is(err, primitives.ErrInvalid) {
		return err
	}
	if _, err := a.Info(ctx); err != nil { // the name is invalid, or somebody else's
		return failedTo("release", err)
	}
	return failure("release %s %q: not held by %q", kind, name, id)
}

// heldKind returns kind, or what the keys tell if it is "". Errors name op, for which the kind is
// needed.
func (s *session) heldKind(ctx context.Context, op, kind, name string) (string, error) {
	if kind != "" {
		return kind, nil
	}
	info, err := s.client.Inspect(ctx, name)
	switch kind = kindOf(info.Kind); {
	case err != nil:
		return "", failedTo(op, err)
	case slices.Contains(heldKinds, kind):
		return kind, nil
	case kind == "":
		return "", s.nothingHeld(ctx, "", name)
	}
	return "", failure("%q is a number: it has no known holders (see redlatch semaphore --help)", name)
}

// failedTo makes an error of the library name op, for which the call was made.
func failedTo(op string, err error) error {
	if failed, ok := errors.AsType[*primitives.Error](err); ok {
		failed.Op = op
	}
	return err
}

func forceReleaseCommand() *cli.Command {
	return &cli.Command{
		Name:      "force-release",
		Usage:     "free a name, whoever holds it",
		ArgsUsage: "NAME",
		Description: withExamples(
			"Frees NAME. Its holders are told that they have lost it and should stop, but nothing makes\n"+
				"them stop. On a terminal it asks first; elsewhere it needs --yes. The exit code is 1 if nobody held NAME,\n"+
				"if it holds data of another program, which stays, or if you answer no.",
			"redlatch force-release --yes orders:42"),
		Flags: []cli.Flag{
			kindFlag(heldKinds),
			yesFlag(),
			base64Flag(),
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			args, err := named(c)
			if err != nil {
				return err
			}
			kind, err := kindGiven(c, heldKinds)
			if err != nil {
				return err
			}
			name := args[0]
			if err := mayAsk(c); err != nil {
				return err
			}
			check := func(ctx context.Context, s *session) error {
				_, err := s.inspect(ctx, kind, name)
				return failedTo("force release", err)
			}
			return withSession(ctx, c, check, func(s *session) error {
				if !c.Bool("yes") {
					e, err := s.inspect(ctx, kind, name)
					if err != nil {
						return notOurs(failedTo("force release", err))
					}
					if len(e.Holders) == 0 {
						return failure("%q: nobody holds it", name)
					}
					if err := confirm(ctx, c, e, "Free it?"); err != nil {
						return err
					}
				}
				kind, held, err := s.forceRelease(ctx, kind, name)
				if err != nil {
					return notOurs(err)
				}
				if !held {
					return failure("%s %q: nobody held it", kind, name)
				}
				if c.Bool("json") {
					return printJSON(c, released{Name: name, Base64: names.Base64(name), Kind: kind, Released: true})
				}
				fmt.Fprintf(c.Root().Writer, "released %s %q\n", kind, name)
				return nil
			})
		},
	}
}

func yesFlag() cli.Flag {
	return &cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask"}
}

// mayAsk returns an error if --yes is not given and there is nobody to ask.
func mayAsk(c *cli.Command) error {
	if !c.Bool("yes") && !isTerminal(os.Stdin) {
		return badUsage("%s needs --yes: standard input is not a terminal", strings.TrimPrefix(c.FullName(), "redlatch "))
	}
	return nil
}

// confirm shows what is there, and asks. The error says that the answer was no.
func confirm(ctx context.Context, c *cli.Command, e *entry, question string) error {
	out := c.Root().ErrWriter
	printEntry(out, e)
	fmt.Fprintf(out, "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() { // reading cannot be cancelled; a signal ends the process
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case line := <-answer:
		if line != "y" && line != "yes" {
			return failure("nothing was changed")
		}
		return nil
	case <-ctx.Done():
		fmt.Fprintln(out)
		return context.Cause(ctx)
	}
}

// forceRelease frees name as that kind. With kind "" it frees what the keys tell, both sides of a
// read-write lock included.
func (s *session) forceRelease(ctx context.Context, kind, name string) (freed string, held bool, err error) {
	both := kind == ""
	if kind, err = s.heldKind(ctx, "force release", kind, name); err != nil {
		return kind, false, err
	}
	if kind == kindPermits {
		held, err = s.releasePermits(ctx, name)
		return kind, held, err
	}
	held, err = s.lock(kind, name).ForceRelease(ctx)
	if other := map[string]string{kindRead: kindWrite, kindWrite: kindRead}[kind]; both && other != "" && err == nil {
		var more bool
		more, err = s.lock(other, name).ForceRelease(ctx)
		held = held || more
	}
	return kind, held, err
}

// releasePermits gives back all permits that are taken now.
func (s *session) releasePermits(ctx context.Context, name string) (held bool, err error) {
	permits := s.client.PermitExpirableSemaphore(name)
	info, err := permits.Info(ctx)
	if err != nil {
		return false, failedTo("force release", err)
	}
	for _, h := range info.Holders {
		switch err := permits.ReleaseID(ctx, h.ID); {
		case err == nil:
			held = true
		case !errors.Is(err, primitives.ErrNotHeld):
			return held, err
		}
	}
	return held, nil
}
