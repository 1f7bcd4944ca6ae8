package torture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// Client processes that use another library, which keeps the same locks in Redis. It promises less
// than redlatch: so its operations are only checked for exclusion, and must not make checks of the
// others fail.

// Library is a lock library other than redlatch. Processes that use it compete for locks with those
// that use redlatch.
type Library interface {
	// Name is the name and the version.
	Name() string
	// Lock returns a lock of a kind for one acquisition. Its owner is not used a second time: so a
	// late copy of a command for one acquisition does not change another.
	Lock(kind LockKind, name string, session int) LibraryLock
	// Close ends all connections, and all renewals.
	Close() error
}

// LibraryLock is a lock that one owner acquires and releases once.
type LibraryLock interface {
	// ID is the owner in Redis.
	ID() string
	// TryLock waits for up to wait. lease 0 is a lease of LibrarySetup.Watchdog that is renewed.
	// After an error the lock may have been acquired, or may still be.
	TryLock(ctx context.Context, wait, lease time.Duration) (bool, error)
	// TTL is the time until the lock's key expires; 0 or less if it does not exist, or does not
	// expire.
	TTL(ctx context.Context) (time.Duration, error)
	// IsHeld asks Redis whether the owner holds the lock.
	IsHeld(ctx context.Context) (bool, error)
	// Token is the token that was given last. It is called only for FencedKind.
	Token(ctx context.Context) (int64, error)
	// Unlock returns ErrNotOwner if the owner does not hold the lock. After other errors it may
	// still be released.
	Unlock(ctx context.Context) error
}

// ErrNotOwner says that a lock of a Library is not held by who wants to release it.
var ErrNotOwner = errors.New("torture: the lock is held by nobody, or by another owner")

// LockKind is a kind of lock that all libraries have.
type LockKind string

// The kinds of locks.
const (
	PlainKind  LockKind = "lock"
	FencedKind LockKind = "fenced"
	FairKind   LockKind = "fair"
	ReadKind   LockKind = "read"
	WriteKind  LockKind = "write"
)

// LibrarySetup is what a Library needs.
type LibrarySetup struct {
	Addr     string // of a proxy, without TLS
	Username string
	Password string
	DB       int
	Watchdog time.Duration // lease of holds that are renewed
}

// libraryKinds are the workloads whose locks other libraries can use, too. To them, many are plain
// locks.
var libraryKinds = map[string]LockKind{
	"lock": PlainKind, "owner": PlainKind, "nested": PlainKind, "spin": PlainKind,
	"fenced": FencedKind, "cohort": FencedKind, "linger": FencedKind,
	"fair": FairKind, "rwlock": WriteKind,
}

// LibraryWorker is Worker for a client process that uses another library. open is called once.
func LibraryWorker(in io.Reader, out io.Writer, open func(LibrarySetup) (Library, error)) error {
	w, err := newWorker(in, out)
	if err != nil {
		return err
	}
	e := w.Endpoint
	if e.Cluster || e.Master != "" || len(e.Members) > 0 {
		return errors.New("torture: another library is supported with a single server only")
	}
	lib, err := open(LibrarySetup{
		Addr: e.Routes[e.Addrs[0]], Username: e.Username, Password: e.Password, DB: e.DB, Watchdog: w.TTL,
	})
	if err != nil {
		return err
	}
	return w.run(record{Library: lib.Name()}, func(n int) { w.librarySession(lib, n) }, func() error {
		err := lib.Close()
		w.out.write(record{Kind: kindDone, At: w.clock.now(), Err: errorText(err)})
		return err
	})
}

// librarySession uses locks of another library until the process drains.
func (w *worker) librarySession(lib Library, n int) {
	s := &librarySession{w.newSession(n), lib}
	for w.draining.Err() == nil {
		primitive := w.Slots.pick(w.clock.now(), s.rand)
		if kind, ok := libraryKinds[primitive]; ok {
			s.use(primitive, kind)
		}
		s.pause()
	}
}

type librarySession struct {
	*session

	lib Library
}

// answering bounds calls that do not wait.
const answering = 5 * time.Second

// use acquires a lock, holds it for a while, and releases it.
func (s *librarySession) use(primitive string, kind LockKind) {
	name, ttl := s.name(primitive)
	call := record{
		Do: opAcquire, Session: s.n, Primitive: primitive, Names: []string{name}, TTL: ttl, Fixed: true,
		Once: s.one(4),
	}
	if kind == WriteKind && !s.one(3) {
		kind, call.Read = ReadKind, true
	}
	lease := ttl
	if ttl == s.TTL && !call.Read && s.one(3) {
		lease, call.Fixed = 0, false
	}
	l := s.lib.Lock(kind, name, s.n)
	call = s.call(call)
	call.Root = call.Op
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	locked, err := l.TryLock(ctx, s.wait(call.Once, kind), lease)
	if err == nil && !locked {
		s.finish(call, primitives.ErrNotAcquired, record{})
		return
	}
	h := libraryHold{librarySession: s, lock: l, call: call}
	if err == nil {
		err = h.confirm(ctx)
	}
	var token int64
	if err == nil && kind == FencedKind {
		if token, err = l.Token(ctx); err == nil {
			err = h.confirm(ctx) // it was still the owner: else the token may be another's
		}
	}
	if err != nil {
		s.finish(call, fmt.Errorf("%w: %w", primitives.ErrOutcomeUnknown, err), record{})
		_ = l.Unlock(ctx) // else others may have to wait for the end of its lease
		return
	}
	s.finish(call, nil, record{ID: l.ID(), Token: token, Until: h.until})
	h.section(ctx)
	h.release(ctx)
}

// wait returns for how long an acquisition waits.
func (s *librarySession) wait(once bool, kind LockKind) time.Duration {
	switch {
	case once:
		return 0
	// A fair lock may keep the place of a waiter that has gone for as long as it has waited.
	case kind == FairKind, s.one(2):
		return between(s.rand, 20*time.Millisecond, s.TTL)
	}
	return min(8*s.TTL, 12*time.Second)
}

// libraryHold is a hold of another library, which does not know how long it is valid: Redis is
// asked.
type libraryHold struct {
	*librarySession

	lock  LibraryLock
	call  record
	until int64
}

// libraryMargin is for the milliseconds of Redis.
const libraryMargin = 5 * time.Millisecond

// confirm asks Redis until when the hold is valid.
func (h *libraryHold) confirm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answering)
	defer cancel()
	asked := h.clock.now()
	ttl, err := h.lock.TTL(ctx)
	if err != nil {
		return err
	}
	held, err := h.lock.IsHeld(ctx)
	switch {
	case err != nil:
		return err
	case !held || ttl <= 0:
		return ErrNotOwner
	}
	h.until = asked + int64(ttl-libraryMargin)
	if h.call.Read { // the key lasts for as long as any reader's lease, and this reader's began after the call
		h.until = min(h.until, h.call.At+int64(h.call.TTL-libraryMargin))
	}
	return nil
}

// section is the work that the hold protects.
func (h *libraryHold) section(ctx context.Context) {
	d := between(h.rand, 0, 5*time.Millisecond)
	switch {
	case h.Pace == paceCalm:
		d = between(h.rand, 20*time.Millisecond, 200*time.Millisecond)
	case h.one(h.Long):
		d = between(h.rand, h.TTL/4, 2*h.TTL)
	case h.one(6):
		d = between(h.rand, 0, 100*time.Millisecond)
	}
	for end := time.Now().Add(d); h.draining.Err() == nil; {
		time.Sleep(min(time.Until(end), 50*time.Millisecond))
		if !time.Now().Before(end) || h.confirm(ctx) != nil {
			return
		}
		h.out.write(record{Kind: kindValid, Op: h.call.Op, At: h.clock.now(), Until: h.until})
	}
}

func (h *libraryHold) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, answering)
	defer cancel()
	do := h.session.call(record{
		Do: opRelease, Session: h.n, Primitive: h.call.Primitive, Names: h.call.Names, Root: h.call.Op, Until: h.until,
	})
	err := h.lock.Unlock(ctx)
	switch {
	case errors.Is(err, ErrNotOwner):
		err = primitives.ErrLost
	case err != nil:
		err = fmt.Errorf("%w: %w", primitives.ErrOutcomeUnknown, err)
	}
	h.finish(do, err, record{})
}
