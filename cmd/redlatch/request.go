package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/primitives"
)

// request is an acquisition that run or acquire makes.
type request struct {
	kind, name string
	options    []primitives.Option
	minHold    time.Duration // 0: none
	busyExit   int           // the exit code if somebody else has it
	quiet      bool          // says nothing then
	notes      notes
}

// requestFlags are the flags that run and acquire share.
func requestFlags(kinds []string) []cli.Flag {
	pools := kinds[slices.Index(kinds, kindWrite)+1:]
	return []cli.Flag{
		&cli.StringFlag{Name: "kind", Value: kindLock, Usage: "`KIND`: " + strings.Join(kinds, ", ")},
		&cli.BoolFlag{Name: "nonblock", Aliases: []string{"n"}, Usage: "do not wait: exit with 75 if NAME is not free"},
		&cli.DurationFlag{
			Name: "wait", Aliases: []string{"w"}, HideDefault: true,
			Usage: "exit with 75 if NAME is not acquired within `DURATION` (default: wait for ever)",
		},
		&cli.IntFlag{
			Name: "busy-exit", Aliases: []string{"E"}, Value: exitNotAcquired,
			Usage: "exit with `CODE` if Redis says that somebody else has NAME",
		},
		&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "say nothing if somebody else has NAME"},
		&cli.IntFlag{Name: "permits", Value: 1, Usage: "take `N` permits, with --kind " + strings.Join(pools, " or ")},
	}
}

// newRequest reads the flags of requestFlags.
func newRequest(c *cli.Command, name string) (request, error) {
	r := request{
		kind: c.String("kind"), name: name, notes: notesOf(c),
		busyExit: c.Int("busy-exit"), quiet: c.Bool("quiet"),
	}
	pooled := r.isCounted()
	permits := c.Int("permits")
	switch {
	case !slices.Contains(runKinds, r.kind):
		return r, badUsage("--kind %q: must be one of %s", r.kind, strings.Join(runKinds, ", "))
	case c.Bool("nonblock") && c.IsSet("wait"):
		return r, badUsage("--nonblock and --wait exclude each other")
	case c.Duration("wait") < 0:
		return r, badUsage("--wait %v is negative", c.Duration("wait"))
	case r.busyExit < 0 || r.busyExit > 255:
		return r, badUsage("--busy-exit %d: from 0 to 255", r.busyExit)
	case permits < 1:
		return r, badUsage("--permits %d: at least 1", permits)
	case permits > 1 && !pooled:
		return r, badUsage("--permits %d: only with --kind %s or %s", permits, kindSemaphore, kindPermits)
	}
	if c.Bool("nonblock") {
		r.options = append(r.options, primitives.WithWait(0))
	}
	if pooled {
		r.options = append(r.options, primitives.WithPermits(permits))
	}
	return r, nil
}

// check returns what is wrong with the name or the options, if ctx has ended: see withSession.
func (r *request) check(ctx context.Context, s *session) error {
	_, err := s.acquirer(r.kind, r.name).Acquire(ctx, r.options...)
	return err
}

// acquire waits for the hold. A signal ends the wait, and ctx does. The context of the hold is not
// ctx's, because a signal must not look like a loss.
func (r *request) acquire(ctx context.Context, s *session, signals chan os.Signal) (*primitives.Hold, error) {
	waitCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	giveUp := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	inTime, options := func() bool { return true }, r.options
	if !s.giveUp.IsZero() { // --wait began before Redis was looked for
		options = append(options, primitives.WithWait(max(time.Until(s.giveUp)-waitGrace, 0)))
		inTime = time.AfterFunc(time.Until(s.giveUp), func() { cancel(context.DeadlineExceeded) }).Stop
	}
	type result struct {
		hold *primitives.Hold
		err  error
	}
	acquired := make(chan result, 1)
	began := time.Now()
	go func() {
		hold, err := s.acquirer(r.kind, r.name).Acquire(waitCtx, options...)
		acquired <- result{hold, err}
	}()
	quiet := r.tellWhoHolds(ctx, s)
	var got result
	select {
	case got = <-acquired:
	case sig := <-signals:
		stopSoon(signals) // a later one ends redlatch, even if Redis does not answer
		cancel(&signalError{sig.(syscall.Signal)})
		got = <-acquired
	}
	quiet()
	undisturbed := giveUp() && inTime() && waitCtx.Err() == nil // else the context of the hold has ended, or is about to
	switch {
	case got.err != nil:
		return nil, r.explain(ctx, s, got.err)
	case !undisturbed: // a signal came when it was granted
		_ = got.hold.Release(waitCtx)
		if r.minHold > 0 { // CMD does not run, so the name is free at once
			r.removeRest(context.WithoutCancel(ctx), s, got.hold)
		}
		return nil, cmp.Or(context.Cause(waitCtx), context.Cause(ctx))
	}
	r.tellAcquired(got.hold, time.Since(began))
	return got.hold, nil
}

// removeRest deletes from Redis whatever a hold that has ended left there, such as permits that are
// still taken.
func (r *request) removeRest(ctx context.Context, s *session, hold *primitives.Hold) {
	if holder, ok := s.acquirer(r.kind, r.name).(releaser); ok {
		for id := range strings.SplitSeq(hold.ID(), ",") {
			_ = holder.ReleaseID(ctx, id)
		}
	}
}

func (r *request) tellAcquired(hold *primitives.Hold, waited time.Duration) {
	text := fmt.Sprintf("acquired %s %q", r.kind, r.name)
	if id := hold.ID(); id != "" {
		text += " as " + id
	}
	if token := hold.Token(); token > 0 {
		text += fmt.Sprintf(", token %d", token)
	}
	r.notes.verbose("acquired", "%s, after %v", text, waited.Round(time.Millisecond))
}

// explain adds who holds the name now, with the names of their clients, to the error of an
// acquisition that was refused. If Redis has fallen silent during a wait, the error says that
// instead.
func (r *request) explain(ctx context.Context, s *session, err error) error {
	_, ended := errors.AsType[*signalError](err)
	if errors.Is(err, primitives.ErrLost) { // not exitLost: nothing ran
		return &codedError{exitNotAcquired, fmt.Errorf("%s %q was not acquired: its lease was over when Redis answered",
			r.kind, r.name)}
	}
	if ended || !errors.Is(err, primitives.ErrNotAcquired) || errors.Is(err, primitives.ErrUnavailable) {
		return err
	}
	ctx, cancel := s.untilGiveUp(ctx)
	defer cancel()
	info, failed := r.obstacle(ctx, s)
	_, isReply := errors.AsType[redis.Error](failed) // such as a missing permission
	switch {
	case failed == nil, isReply:
	case errors.Is(failed, primitives.ErrUnavailable) && !s.giveUp.IsZero():
		return failed
	default:
		return err
	}
	if failed != nil {
		return r.busy(err)
	}
	held := r.inWords(info)
	if r.isCounted() && len(info.Holders) == 0 && info.Available <= 0 {
		if e, err := s.inspect(ctx, r.kind, r.name); err == nil && e.isNothing() {
			return &codedError{exitNotAcquired, fmt.Errorf("%s %q was not acquired: it has no count yet; set it with: "+
				"redlatch %s init NAME N", r.kind, r.name, r.kind)}
		}
	}
	if held != "" {
		err = fmt.Errorf("%s %q was not acquired: %s", r.kind, r.name, held)
	}
	return r.busy(err)
}

// busy is the error of an acquisition that was refused because somebody else has the name.
func (r *request) busy(err error) error {
	if r.quiet {
		err = nil
	}
	return &codedError{r.busyExit, err}
}

// obstacle returns what keeps r waiting. Readers and writers of a lock exclude each other, but each
// side knows its own holders only.
func (r *request) obstacle(ctx context.Context, s *session) (primitives.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	sides := []string{r.kind}
	switch r.kind {
	case kindRead:
		sides = []string{kindWrite}
	case kindWrite:
		sides = []string{kindWrite, kindRead}
	}
	var info primitives.Info
	for _, kind := range sides {
		var err error
		info, err = s.acquirer(kind, r.name).Info(ctx)
		if errors.Is(err, primitives.ErrForeign) { // held as another kind of lock; an ACL may forbid to look
			info, _ = s.client.Inspect(ctx, r.name)
			return info, nil
		}
		if err != nil || len(info.Holders) > 0 {
			return info, err
		}
	}
	return info, nil
}

// isCounted reports whether the kind has a number of permits, which somebody must set first.
func (r *request) isCounted() bool { return r.kind == kindSemaphore || r.kind == kindPermits }

// inWords says who or what keeps r waiting; "" if nothing is known to.
func (r *request) inWords(info primitives.Info) string {
	var held []string
	for _, h := range info.Holders[:min(len(info.Holders), mostHolders)] {
		if h.Client != "" {
			h.ID += " of " + h.Client
		}
		switch {
		case h.TTL > 0 && h.MinHold: // its client may have ended, and is not at fault
			h.ID += " for the rest of its minimum hold, " + shown(h.TTL)
		case h.TTL > 0:
			h.ID += " for another " + shown(h.TTL)
		}
		held = append(held, h.ID)
	}
	if more := len(info.Holders) - len(held); more > 0 {
		held = append(held, fmt.Sprintf("%d others", more))
	}
	var text string
	if len(held) > 0 {
		text = "held by " + strings.Join(held, ", ")
	}
	if r.isCounted() {
		free := fmt.Sprintf("%d permits are free", max(info.Available, 0))
		if info.Available == 1 {
			free = "1 permit is free"
		}
		text = strings.TrimPrefix(text+"; "+free, "; ")
	}
	return text
}

const (
	explainTimeout = 500 * time.Millisecond
	mostHolders    = 5 // in a message; permits may have thousands
)

// tellWhoHolds tells who holds the name, when a wait begins and whenever that changes, until quiet
// is called.
func (r *request) tellWhoHolds(ctx context.Context, s *session) (quiet func()) {
	if !r.notes.all {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var told *primitives.Info
		for next := firstLook; ; next = secondLook {
			select {
			case <-ctx.Done():
				return
			case <-time.After(next):
			}
			info, err := r.obstacle(ctx, s)
			if ctx.Err() != nil || err != nil || told != nil && sameHolders(*told, info) {
				continue
			}
			told = &info
			text := fmt.Sprintf("waiting for %s %q", r.kind, r.name)
			if held := r.inWords(info); held != "" {
				text += ", " + held
			}
			r.notes.verbose("waiting", "%s", text)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

const (
	firstLook  = 50 * time.Millisecond // of a wait; most acquisitions are over by then
	secondLook = time.Second           // and of the later ones
)

func sameHolders(a, b primitives.Info) bool {
	return slices.EqualFunc(a.Holders, b.Holders, func(a, b primitives.Holder) bool { return a.ID == b.ID })
}
