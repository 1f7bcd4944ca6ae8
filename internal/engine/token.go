package engine

import (
	"log/slog"
	"sync"
	"time"
)

// Fencing tokens that went backwards.
//
// A token must be greater than every earlier one of its name. The counter is on the server, so a
// server that loses its data starts again at 1. A store that compares tokens then refuses every
// holder, and nobody would know why. A client therefore remembers the greatest token that it has
// seen of each fenced lock, and logs a smaller one.

// maxTokens is how many names a client remembers the greatest token of, in a megabyte at most.
const maxTokens = 8192

// seenToken is the greatest token of a name.
type seenToken struct {
	token int64
	at    time.Time // when the client learned of it
}

// seenTokens are the greatest tokens that a client has seen. It is a part of Core.
type seenTokens struct {
	mu      sync.Mutex
	byNames map[string]seenToken // made by NewCore
}

// see records token, the last one of a block that a request has reserved. The request was sent at
// sent. If a greater token was known before that, the counter went backwards: see returns the
// greater token. From then on the smaller one counts. mayRepeat says that the request may have got
// the token of another hold of its owner.
//
// A late answer says nothing: its token may be an old one.
func (s *seenTokens) see(name string, token int64, sent time.Time, mayRepeat bool) (greater int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, known := s.byNames[name]
	switch {
	case token > last.token: // as it should be
	case token == last.token && mayRepeat, !sent.After(last.at):
		return 0
	default:
		greater = last.token
	}
	if !known && len(s.byNames) >= maxTokens {
		for other := range s.byNames { // any one
			delete(s.byNames, other)
			break
		}
	}
	s.byNames[name] = seenToken{token, time.Now()}
	return greater
}

// checkToken logs a token that is not greater than every earlier one which this client knows. It
// does not block.
func (r *Resource) checkToken(q *Request, res Result) {
	if !r.Traits.Fenced || res.Token == 0 {
		return
	}
	last := res.Token + int64(max(res.Tokens, 1)) - 1
	if greater := r.Core.tokens.see(r.Name, last, res.Sent, q.Shared); greater > 0 {
		r.Core.log(newRecord(slog.LevelWarn, "fencing token went backwards", r, slog.String("id", q.ID),
			slog.Int64("token", res.Token), slog.Int64("earlier", greater)))
	}
}
