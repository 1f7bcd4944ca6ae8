package pubsub

import (
	"log/slog"
	"time"
)

// The log of links. In an outage a link to a server fails about once a second, and each waiter
// would see the same line. So the log says when the server is lost and when it is back, and repeats
// a loss at most once a minute.

// lostAgain is how often the loss of the links to a server is logged.
const lostAgain = time.Minute

// linkState is what the log says about a server. Hub.mu guards it.
type linkState struct {
	lost   time.Time // when links to the server began to fail; zero if they work
	logged time.Time // when a loss was last logged
	told   bool      // this loss was logged, so the return is logged too
}

// logLost logs that the link has failed with err. The caller does not hold hub.mu: a log handler
// may use the hub.
func (l *link) logLost(err error) {
	now := time.Now()
	l.hub.mu.Lock()
	s := l.hub.states[l.server.name]
	if s == nil {
		s = &linkState{}
		l.hub.states[l.server.name] = s
	}
	if s.lost.IsZero() {
		s.lost = now
	}
	since := now.Sub(s.lost)
	logs := s.logged.IsZero() || now.Sub(s.logged) >= lostAgain
	if logs {
		s.logged = now
		s.told = true
	}
	l.hub.mu.Unlock()
	if logs {
		l.hub.logger.LogAttrs(l.hub.ctx, slog.LevelWarn, "link lost",
			slog.String("server", l.server.options.Addr), slog.Duration("since", since), slog.Any("error", err))
	}
}

// logBack logs, once for each link, that the server has confirmed a channel after links to it had
// failed. The reader calls it without hub.mu.
func (l *link) logBack() {
	if l.confirmedOnce {
		return
	}
	l.hub.mu.Lock()
	l.confirmedOnce = l.served
	s := l.hub.states[l.server.name]
	var after time.Duration
	logs := false
	if l.served && s != nil {
		logs = s.told
		after = time.Since(s.lost)
		s.lost = time.Time{}
		s.told = false
	}
	l.hub.mu.Unlock()
	if logs {
		l.hub.logger.LogAttrs(l.hub.ctx, slog.LevelInfo, "link is back",
			slog.String("server", l.server.options.Addr), slog.Duration("after", after))
	}
}
