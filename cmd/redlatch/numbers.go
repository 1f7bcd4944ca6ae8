package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/primitives"
)

// The commands semaphore, permits and latch. Each verb is one call of the library.

// numberAnswer is what the verbs print as JSON: what applies.
type numberAnswer struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	Permits   *int   `json:"permits,omitempty"`
	Available *int   `json:"available,omitempty"`
	Count     *int   `json:"count,omitempty"`
	Created   *bool  `json:"created,omitempty"`
	Deleted   *bool  `json:"deleted,omitempty"`
	Drained   *int   `json:"drained,omitempty"`
}

// call is one use of a verb.
type call struct {
	ctx    context.Context //nolint:containedctx // of this one call
	c      *cli.Command
	s      *session
	kind   string
	name   string
	n      int // the argument N; 1 if it is optional and missing
	answer *numberAnswer
}

// verb is one verb of a kind. do does it, fills in the answer, and returns a line for people.
type verb struct {
	name, usage string
	args        string // such as "NAME N"
	example     string // arguments of an example
	flags       []cli.Flag
	asks        bool // before it does it, unless --yes is given
	do          func(*call) (text string, err error)
}

// group returns the command of a kind with its verbs.
func group(kind, usage, description string, verbs []verb) *cli.Command {
	g := &cli.Command{
		Name: kind, Usage: usage, UsageText: "redlatch " + kind + " COMMAND [options] NAME [N]",
		Description: withExamples(description, "redlatch "+kind+" "+verbs[0].name+" "+verbs[0].example),
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return badUsage("%s has no verb %q%s (see redlatch %s --help)", kind, c.Args().First(),
					suggestion(c, c.Args().First()), kind)
			}
			return badUsage("the verb is missing (see redlatch %s --help)", kind)
		},
	}
	for _, v := range verbs {
		g.Commands = append(g.Commands, v.command(kind))
	}
	return g
}

func (v verb) command(kind string) *cli.Command {
	if v.asks {
		v.flags = append(v.flags, yesFlag())
	}
	return &cli.Command{
		Name: v.name, Usage: v.usage, ArgsUsage: v.args, Flags: v.flags,
		Description: withExamples(exitOf(v.name), "redlatch "+kind+" "+v.name+" "+v.example),
		Action: func(ctx context.Context, c *cli.Command) error {
			args, err := arguments(c)
			if err != nil {
				return err
			}
			k := &call{ctx: ctx, c: c, kind: kind, name: args[0], n: 1, answer: &numberAnswer{Name: args[0], Kind: kind}}
			if len(args) > 1 && args[1] != "" {
				if k.n, err = number(args[1]); err != nil {
					return err
				}
			}
			if v.asks {
				if err := mayAsk(c); err != nil {
					return err
				}
			}
			check := func(ctx context.Context, s *session) error {
				k.ctx, k.s = ctx, s
				_, err := v.do(k)
				return err
			}
			return withSession(ctx, c, check, func(s *session) error {
				k.ctx, k.s = ctx, s
				text, err := v.do(k)
				if err != nil && k.answer.Created == nil {
					return notOurs(err)
				}
				// An init that finds a count prints its answer, too, and then fails.
				if c.Bool("json") {
					return errors.Join(printJSON(c, k.answer), err)
				}
				if err == nil {
					fmt.Fprintln(c.Root().Writer, text)
				}
				return err
			})
		},
	}
}

// exitOf is the description of a verb.
func exitOf(verb string) string {
	switch verb {
	case "init":
		return "Sets the number if there is none. If there is one, it stays unchanged, and the exit code is 1."
	case "info":
		return "The exit code is 1 if NAME does not exist."
	case "delete":
		return "On a terminal it asks first; elsewhere it needs --yes. The exit code is 1 if NAME does not exist, or if\n" +
			"you answer no. Holders are not told."
	case "wait":
		return "Waits until the count is 0, or there is no latch. The exit code is 75 if --wait ends first."
	case "count":
		return "Prints the count; 0 if there is no latch."
	case "add":
		return "Creates NAME if it does not exist. A negative N removes permits."
	case "drain":
		return "Removes all permits that are left, and prints how many there were. Use add to bring them back."
	case "resize":
		return "Sets the number of permits, free and taken. Holders keep theirs."
	}
	return "At 0 the latch opens and is deleted."
}

func semaphoreCommand() *cli.Command {
	return group(kindSemaphore, "set up a semaphore",
		"A semaphore is a number of permits without leases: Redis knows how many are left, but not who holds\n"+
			"the others. \"redlatch run --kind semaphore\" takes one while a command runs.",
		[]verb{
			{name: "init", usage: "set the number of permits", args: "NAME N", example: "workers 3", do: initialize},
			{name: "add", usage: "add permits", args: "NAME N", example: "workers 2", do: add},
			{name: "drain", usage: "remove all permits that are left", args: "NAME", example: "workers", do: drain},
			{name: "info", usage: "show how many permits are left", args: "NAME", example: "workers", do: showInfo},
			{name: "delete", usage: "delete the semaphore", args: "NAME", example: "--yes workers", asks: true,
				do: remove},
		})
}

func permitsCommand() *cli.Command {
	return group(kindPermits, "set up permits with leases",
		"Permits with leases: Redis knows who holds them, and those of a crashed process are freed.\n"+
			"\"redlatch run --kind permits\" takes one while a command runs.",
		[]verb{
			{name: "init", usage: "set the number of permits", args: "NAME N", example: "workers 3", do: initialize},
			{name: "add", usage: "add permits", args: "NAME N", example: "workers 2", do: add},
			{name: "resize", usage: "set the number of permits, free and taken", args: "NAME N", example: "workers 4",
				do: resize},
			{name: "info", usage: "show how many permits are free", args: "NAME", example: "workers", do: showInfo},
			{name: "delete", usage: "delete the permits", args: "NAME", example: "--yes workers", asks: true,
				do: remove},
		})
}

func latchCommand() *cli.Command {
	wait := &cli.DurationFlag{
		Name: "wait", Aliases: []string{"w"}, HideDefault: true,
		Usage: "exit with 75 after `DURATION` (default: wait for ever)",
	}
	return group(kindLatch, "set up, count down and wait for a latch",
		"A latch is a count. Waiters continue when it is 0.",
		[]verb{
			{name: "init", usage: "set the count", args: "NAME N", example: "ready 2", do: initialize},
			{name: "count-down", usage: "take one, or N, from the count", args: "NAME [N]", example: "ready", do: countDown},
			{name: "count", usage: "show the count", args: "NAME", example: "ready", do: showCount},
			{name: "wait", usage: "wait until the count is 0", args: "NAME", example: "--wait 10s ready",
				flags: []cli.Flag{wait}, do: waitForLatch},
			{name: "delete", usage: "delete the latch", args: "NAME", example: "--yes ready", asks: true,
				do: remove},
		})
}

// numbered is what the kinds have in common.
type numbered interface {
	Init(ctx context.Context, n int) (created bool, err error)
	Delete(ctx context.Context) (bool, error)
}

func (k *call) handle() numbered {
	switch k.kind {
	case kindSemaphore:
		return k.s.client.Semaphore(k.name)
	case kindPermits:
		return k.s.client.PermitExpirableSemaphore(k.name)
	}
	return k.s.client.CountDownLatch(k.name)
}

func initialize(k *call) (string, error) {
	created, err := k.handle().Init(k.ctx, k.n)
	if err != nil {
		return "", err
	}
	k.answer.Created = &created
	if !created {
		return "", failure("%s %q has a number already", k.kind, k.name)
	}
	if k.kind == kindLatch {
		k.answer.Count = &k.n
	} else {
		k.answer.Permits, k.answer.Available = &k.n, &k.n
	}
	return fmt.Sprintf("%s %q: %d", k.kind, k.name, k.n), nil
}

func add(k *call) (string, error) {
	type adder interface {
		Add(ctx context.Context, delta int) error
	}
	if err := k.handle().(adder).Add(k.ctx, k.n); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %q: added %d", k.kind, k.name, k.n), nil
}

func drain(k *call) (string, error) {
	n, err := k.s.client.Semaphore(k.name).Drain(k.ctx)
	k.answer.Drained = &n
	return fmt.Sprintf("semaphore %q: took %d", k.name, n), err
}

func resize(k *call) (string, error) {
	err := k.s.client.PermitExpirableSemaphore(k.name).Resize(k.ctx, k.n)
	k.answer.Permits = &k.n
	return fmt.Sprintf("permits %q: %d", k.name, k.n), err
}

func remove(k *call) (string, error) {
	if !k.c.Bool("yes") {
		e, err := k.s.inspect(k.ctx, k.kind, k.name)
		if err != nil {
			return "", err
		}
		if e.isNothing() {
			return "", k.missing()
		}
		if err := confirm(k.ctx, k.c, e, "Delete it?"); err != nil {
			return "", err
		}
	}
	deleted, err := k.handle().Delete(k.ctx)
	if err != nil {
		return "", err
	}
	if !deleted {
		return "", k.missing()
	}
	k.answer.Deleted = &deleted
	return fmt.Sprintf("%s %q: deleted", k.kind, k.name), nil
}

func (k *call) missing() error {
	if k.kind == kindPermits {
		return failure("there are no permits %q", k.name)
	}
	return failure("there is no %s %q", k.kind, k.name)
}

// showInfo tells a number that is 0 from none, which the library's Info does not.
func showInfo(k *call) (string, error) {
	e, err := k.s.inspect(k.ctx, k.kind, k.name)
	if err != nil {
		return "", err
	}
	if e.isNothing() {
		return "", k.missing()
	}
	k.answer.Permits, k.answer.Available = e.Permits, e.Available
	if k.kind == kindSemaphore {
		return fmt.Sprintf("semaphore %q: %d available", k.name, *e.Available), nil
	}
	return fmt.Sprintf("permits %q: %d of %d available", k.name, *e.Available, *e.Permits), nil
}

func showCount(k *call) (string, error) {
	count, err := k.s.client.CountDownLatch(k.name).Count(k.ctx)
	if err == nil && count == 0 {
		k.hintNoLatch()
	}
	k.answer.Count = new(int(count))
	return fmt.Sprintf("latch %q: %d", k.name, count), err
}

// hintNoLatch tells that there is no latch. A name that was mistyped looks like a latch that has
// opened, so the exit code is 0.
func (k *call) hintNoLatch() {
	notesOf(k.c).note("hint", "there is no latch %q: it has opened, or was never set", k.name)
}

func countDown(k *call) (string, error) {
	if k.n < 1 {
		return "", badUsage("N is %d: at least 1", k.n)
	}
	latch := k.s.client.CountDownLatch(k.name)
	count, err := latch.Count(k.ctx)
	if err != nil || count == 0 {
		return showCount(k)
	}
	for range min(int64(k.n), count) {
		if err := latch.CountDown(k.ctx); err != nil {
			return "", err
		}
	}
	count, err = latch.Count(k.ctx)
	k.answer.Count = new(int(count))
	return fmt.Sprintf("latch %q: %d", k.name, count), err
}

func waitForLatch(k *call) (string, error) {
	limit := k.c.Duration("wait")
	if limit < 0 {
		return "", badUsage("--wait %v is negative", limit)
	}
	ctx, cancel := k.s.untilGiveUp(k.ctx)
	defer cancel()
	latch := k.s.client.CountDownLatch(k.name)
	k.answer.Count = new(0)
	opened := fmt.Sprintf("latch %q is open", k.name)
	count, err := latch.Count(ctx)
	_, refused := errors.AsType[redis.Error](err) // perhaps only for now: then Wait tries again
	switch {
	case err == nil && count == 0:
		k.hintNoLatch()
		return opened, nil
	case err != nil && (limit == 0 || ctx.Err() != nil || !refused): // Wait would know no more
		return "", failedTo("wait", err)
	case !k.c.IsSet("wait"):
		return opened, latch.Wait(ctx)
	}
	over := fmt.Errorf("latch %q is not open after %v", k.name, limit)
	if limit > 0 {
		waiting, cancel := context.WithDeadlineCause(ctx, k.s.giveUp.Add(-waitGrace), errWaitOver)
		defer cancel()
		err = latch.Wait(waiting)
		if !errors.Is(err, errWaitOver) || errors.Is(err, primitives.ErrUnavailable) {
			return opened, err
		}
		count, err = latch.Count(ctx) // Redis may have fallen silent meanwhile
	}
	switch {
	case err != nil:
		return "", failedTo("wait", err)
	case count > 0:
		return "", &codedError{exitNotAcquired, over} // without the library's prefix, which names the latch, too
	}
	return opened, nil
}

var errWaitOver = errors.New("the wait is over")
