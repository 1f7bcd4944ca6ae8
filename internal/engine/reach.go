package engine

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/failure"
)

// Which servers answer, as far as attempts for members of redlocks show.
//
// A redlock returns when a majority has answered. An attempt on a server that hangs stays under
// way until the command timeout, and a release need not wait for it. To keep one acquisition after
// another from adding such an attempt, only one at a time is under way on a silent server. The
// others wait for its answer, and then make their own.
//
//	answers --- no answer in that time -----> silent: one attempt at a time
//	   ^                                           |
//	   +---------------- an answer ----------------+

// A server is expected to answer within AnswerFactor times as long as its latest answer took, and
// within UsualAnswer at least. A server that has not answered yet counts as one whose answer took
// UsualAnswer.
const (
	UsualAnswer  = 50 * time.Millisecond
	AnswerFactor = 4
)

// reach is what a client knows of its servers. The zero value knows nothing.
type reach struct {
	mu      sync.Mutex         // innermost
	servers map[any]*serverTry // by the key that Commands.Server returns
}

// serverTry has the attempts on one server. reach.mu guards it.
type serverTry struct {
	underWay int
	since    time.Time     // when the oldest attempt since the latest answer began; zero if there is none
	failed   error         // why the latest attempt since then ended without an answer; nil if none did
	changed  chan struct{} // closed when there is an answer, or when no attempt is under way; nil if nobody waits
	took     time.Duration // how long the latest answer took; 0 if there was none
}

// expectedAnswer returns how long an answer may take until the server counts as silent.
func (s *serverTry) expectedAnswer() time.Duration {
	return max(AnswerFactor*cmp.Or(s.took, UsualAnswer), UsualAnswer)
}

// isSilent reports whether an attempt has waited for an answer for so long that others need not
// wait for it.
func (s *serverTry) isSilent() bool {
	return !s.since.IsZero() && time.Since(s.since) >= s.expectedAnswer()
}

// wake wakes the attempts that stand behind another one.
func (s *serverTry) wake() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// ServerAttempt is an attempt on a server: see ApproachServer.
type ServerAttempt struct {
	core   *Core
	server *serverTry
	began  time.Time
}

// ApproachServer begins an attempt for r, a member of a redlock. It blocks while the server is
// silent and another attempt on it is under way. If that one fails, or if ctx ends, ApproachServer
// returns why. Otherwise the caller makes the attempt, and then calls [ServerAttempt.Leave].
//
// Before that, it calls expect with how long the server may take to answer. 0 means that it will
// probably not answer soon.
func (r *Resource) ApproachServer(ctx context.Context, expect func(time.Duration)) (*ServerAttempt, error) {
	c := r.Core
	began := time.Now()
	server := c.Commands.Server(r)
	for {
		s, expected, changed := c.reach.enter(server)
		expect(expected)
		if changed == nil {
			return &ServerAttempt{c, s, time.Now()}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		case <-c.Closing():
			return nil, ErrClosed
		}
		since, failed := c.reach.outcome(s)
		switch {
		case failed != nil:
			return nil, c.Unavailable(failed)
		case ctx.Err() != nil:
			if since.IsZero() {
				since = began
			}
			return nil, c.Unavailable(failure.WithoutDoubt(failure.CutShort(ctx, since)))
		}
	}
}

// enter begins an attempt at a server, unless the server is silent and somebody tries it already.
// Then changed, which is nil otherwise, is closed when that attempt has ended. expected is how long
// the server may take to answer; 0 if it will probably not answer soon.
func (re *reach) enter(server any) (s *serverTry, expected time.Duration, changed <-chan struct{}) {
	re.mu.Lock()
	defer re.mu.Unlock()
	s = re.servers[server]
	if s == nil {
		s = &serverTry{}
		if re.servers == nil {
			re.servers = map[any]*serverTry{}
		}
		re.servers[server] = s
	}
	isSilent := s.isSilent()
	if isSilent && s.underWay > 0 {
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		return s, 0, s.changed
	}
	if !isSilent {
		expected = s.expectedAnswer()
	}
	s.underWay++
	if s.since.IsZero() {
		s.since = time.Now()
	}
	return s, expected, nil
}

// outcome returns since when attempts at a server are under way, zero if none is, and why the
// latest one has failed, or nil.
func (re *reach) outcome(s *serverTry) (since time.Time, failed error) {
	re.mu.Lock()
	defer re.mu.Unlock()
	return s.since, s.failed
}

// Leave ends the attempt, whose context was ctx. err is what it returned.
func (a *ServerAttempt) Leave(ctx context.Context, err error) {
	c := a.core
	s := a.server
	f := failure.Of(err)
	isSilence := errors.Is(err, ErrUnavailable) || f.IsOutage(0)
	isUnknown := !isSilence && err != nil && (ctx.Err() != nil || f.CallerEnded || errors.Is(err, ErrClosed))
	c.reach.mu.Lock()
	defer c.reach.mu.Unlock()
	s.underWay--
	switch {
	case isSilence:
		s.failed = err
	case isUnknown:
		if s.underWay == 0 && !s.isSilent() {
			s.since = time.Time{}
		}
	default: // an answer
		s.since = time.Time{}
		s.failed = nil
		s.took = max(time.Since(a.began), 1)
		if s.underWay > 0 {
			s.since = time.Now()
		}
		s.wake()
	}
	if s.underWay == 0 {
		s.wake()
	}
}
