package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/acl"
	"github.com/redlatch/redlatch/internal/redisutil"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// What the library does, tried with throw-away names.

// skipped is the result of a check that cannot succeed because of what an earlier one found.
func skipped() ([]Result, error) {
	return warn("fix the lines above first", "not checked"), nil
}

// scriptCalls runs a script of the library that only reads, as the library does: EVALSHA after
// SCRIPT LOAD.
func scriptCalls(ctx context.Context, e *exam) ([]Result, error) {
	if e.unfit {
		return skipped()
	}
	ctx, cancel := e.bounded(ctx)
	defer cancel()
	script := scripts.Load("lock/list")
	load := e.Redis.ScriptLoad(ctx, script.Text()).Err()
	err := load
	if err == nil {
		err = e.Redis.EvalSha(ctx, script.SHA(), []string{e.name}).Err()
	}
	if load != nil && answered(load) { // the library then sends the text once
		err = e.Redis.Eval(ctx, script.Text(), []string{e.name}).Err()
		if err == nil {
			err = e.Redis.EvalSha(ctx, script.SHA(), []string{e.name}).Err()
		}
		if err == nil {
			return warn("allow SCRIPT LOAD: +script|load", "scripts run by EVAL and EVALSHA; SCRIPT LOAD does not work: %s",
				oneLine(load)), nil
		}
	}
	switch {
	case err == nil:
		return ok("SCRIPT LOAD and EVALSHA work"), nil
	case !answered(err):
		return nil, err
	case strings.Contains(err.Error(), "keys") || strings.Contains(err.Error(), "key "):
		return warn("see acl", "scripts run, but not on the name %q: %s", e.name, oneLine(err)), nil
	}
	return fail("allow scripts: +evalsha +script|load +eval; some proxies do not support them at all",
		"scripts do not run: %s", oneLine(err)), nil
}

// pubsub publishes a message and waits for it, on the channel of a lock.
func pubsub(ctx context.Context, e *exam) ([]Result, error) {
	if e.unfit {
		return skipped()
	}
	channel := acl.LockChannel(e.name)
	results := e.message(ctx, "PUBLISH", channel,
		func() *redis.PubSub { return e.Redis.Subscribe(ctx, channel) },
		func(ctx context.Context) error { return e.Redis.Publish(ctx, channel, "0").Err() })
	if !e.cluster {
		return results, nil
	}
	sharded := e.message(ctx, "SPUBLISH", channel,
		func() *redis.PubSub { return e.Redis.SSubscribe(ctx, channel) },
		func(ctx context.Context) error { return e.Redis.SPublish(ctx, channel, "0").Err() })
	return append(results, sharded...), nil
}

// message sends one message through Redis and reports how that went.
func (e *exam) message(
	ctx context.Context, how, channel string, subscribe func() *redis.PubSub, publish func(context.Context) error,
) []Result {
	const polls = "waiters are not woken: they look once a second"
	ctx, cancel := e.bounded(ctx)
	defer cancel()
	sub := subscribe()
	defer func() { _ = sub.Close() }()
	if _, err := sub.ReceiveTimeout(ctx, e.Timeout); err != nil { // the confirmation
		return warn("see acl, which says what to allow; some proxies do not support it",
			"cannot subscribe to %s: %s; %s", channel, oneLine(err), polls)
	}
	start := time.Now()
	if err := publish(ctx); err != nil {
		return fail("see acl, which says what to allow: +"+strings.ToLower(how)+", or a channel",
			"cannot publish, so locks cannot be acquired: %s", oneLine(err))
	}
	for {
		got, err := sub.ReceiveTimeout(ctx, e.Timeout)
		if err != nil {
			return warn("look for a proxy that does not pass messages on",
				"%s: the message did not arrive: %s; %s", how, oneLine(err), polls)
		}
		if _, is := got.(*redis.Message); is {
			return ok("%s: a message arrives after %v", how, rounded(time.Since(start)))
		}
	}
}

// tryAll acquires and releases each kind.
func tryAll(ctx context.Context, e *exam) ([]Result, error) {
	if e.unfit {
		return skipped()
	}
	left := note(ctx, e.Redis, e.name)
	// Without WithCommandTimeout: with one below go-redis's own timeout, commands would bypass the
	// hook of note.
	options := []primitives.ClientOption{primitives.WithClientName("")}
	if e.latency > verySlowPing {
		options = append(options, primitives.WithCommandTimeout(scripts.DefaultTimeout+5*e.latency))
	}
	c, err := primitives.New(e.Redis, options...)
	if err != nil {
		return nil, err
	}
	var good []string
	var errs []error // one of each text
	var results []Result
	failed := map[string][]string{} // kinds by text
	var silent error
	all := kinds(c, e.name)
	for i, err := range e.tryEach(ctx, all) {
		kind := all[i]
		if errors.Is(err, primitives.ErrUnavailable) && !answered(err) {
			silent = err
			break
		}
		switch {
		case err == nil:
			good = append(good, kind.name)
		case errors.Is(err, primitives.ErrInvalid):
			results = append(results, warn("choose another --prefix", "%s: %s", kind.name, oneLine(err))...)
		default:
			text := reply(err)
			if failed[text] == nil {
				errs = append(errs, err)
			}
			failed[text] = append(failed[text], kind.name)
		}
	}
	for _, err := range errs {
		text := reply(err)
		results = append(results, fail(kindFix(err), "cannot use %s: %s", strings.Join(failed[text], ", "), text)...)
	}
	// Closed first: a command in flight could write a key after its removal.
	bound, cancel := e.bounded(context.WithoutCancel(ctx))
	defer cancel()
	_ = c.Close(bound)
	if len(errs) > 0 {
		e.findMore(bound, left) // a script that failed half-way may have written keys with names of its own
	}
	if err := cmp.Or(silent, left.remove(bound, e.Redis)); err != nil {
		if !answered(err) {
			return results, err
		}
		results = append(results, warn("they expire within 3 minutes",
			"some throw-away keys could not be removed: %s", oneLine(err))...)
	}
	if len(results) == 0 {
		return ok("acquired and released: %s", strings.Join(good, ", ")), nil
	}
	return results, nil
}

// tryEach uses all kinds at once: on a slow server each takes as long as many round trips.
func (e *exam) tryEach(ctx context.Context, all []kind) []error {
	errs := make([]error, len(all))
	var tried sync.WaitGroup
	for i, kind := range all {
		tried.Go(func() {
			bound, cancel := e.bounded(ctx)
			defer cancel()
			errs[i] = kind.try(bound)
		})
	}
	tried.Wait()
	return errs
}

// findMore searches all masters for throw-away keys.
func (e *exam) findMore(ctx context.Context, left *leftovers) {
	for _, n := range e.nodes {
		for keys := n.rdb.Scan(ctx, 0, "*"+e.name[len(e.Prefix):]+"*", 1000).Iterator(); keys.Next(ctx); {
			left.add(keys.Val())
		}
	}
}

// reply returns what Redis answered, without where the library met it.
func reply(err error) string {
	if answer, ok := errors.AsType[redis.Error](err); ok {
		return oneLine(answer)
	}
	return oneLine(err)
}

func kindFix(err error) string {
	text := err.Error()
	switch {
	case redisutil.LacksRights(err):
		return "see acl, and the section ACL of doc/operations.md"
	case strings.Contains(text, "OOM"):
		return "free memory, or raise maxmemory"
	case strings.Contains(text, "MISCONF"):
		return "see persistence"
	case strings.Contains(text, "READONLY"):
		return "connect to the master"
	case strings.Contains(text, "NOREPLICAS"):
		return "see replicas"
	case strings.Contains(text, "BUSY "):
		return "a script has been running for too long: wait, or end it with SCRIPT KILL"
	case errors.Is(err, primitives.ErrUnsupported):
		return "see commands"
	}
	return "look at the server's log"
}

// kind is one primitive, and a function that uses it once.
type kind struct {
	name string
	try  func(context.Context) error
}

func kinds(c *primitives.Client, name string) []kind {
	lock := func(l *primitives.Lock) func(context.Context) error {
		return func(ctx context.Context) error { return use(ctx, l) }
	}
	readers, writers := c.RWLock(name+"-rw"), c.RWLock(name+"-rw2") // at once
	sem, permits := c.Semaphore(name+"-semaphore"), c.PermitExpirableSemaphore(name+"-permits")
	latch := c.CountDownLatch(name + "-latch")
	return []kind{
		{"lock", lock(c.Lock(name))},
		{"fair", lock(c.FairLock(name + "-fair"))},
		{"fenced", lock(c.FencedLock(name + "-fenced"))},
		{"read", lock(readers.Reader())},
		{"write", lock(writers.Writer())},
		{"semaphore", func(ctx context.Context) error {
			return pool(ctx, sem.Init, sem.TryAcquire, sem.Delete, false)
		}},
		{"permits", func(ctx context.Context) error {
			return pool(ctx, permits.Init, permits.TryAcquire, permits.Delete, true)
		}},
		{"latch", func(ctx context.Context) error {
			if _, err := latch.Init(ctx, 2); err != nil {
				return err
			}
			err := latch.CountDown(ctx)
			_, deleted := latch.Delete(ctx)
			return errors.Join(err, deleted)
		}},
	}
}

// use acquires a lock and does to it what the library does to a lock that is held.
func use(ctx context.Context, l *primitives.Lock) error {
	hold, err := l.TryAcquire(ctx)
	if err != nil {
		return err
	}
	err = leased(ctx, hold)
	_, asked := l.Info(ctx)
	return errors.Join(err, asked, hold.Release(ctx))
}

// leased extends and checks a hold.
func leased(ctx context.Context, hold *primitives.Hold) error {
	return errors.Join(hold.Extend(ctx, time.Minute), hold.Check(ctx))
}

// pool makes a semaphore, takes a permit, gives it back, and deletes the semaphore.
func pool(
	ctx context.Context, initialize func(context.Context, int) (bool, error),
	try func(context.Context, ...primitives.Option) (*primitives.Hold, error),
	remove func(context.Context) (bool, error), hasLease bool,
) error {
	if _, err := initialize(ctx, 1); err != nil {
		return err
	}
	hold, err := try(ctx)
	if err == nil {
		if hasLease {
			err = leased(ctx, hold)
		}
		err = errors.Join(err, hold.Release(ctx))
	}
	_, removed := remove(ctx)
	if removed != nil {
		err = errors.Join(err, fmt.Errorf("delete: %w", removed))
	}
	return err
}
