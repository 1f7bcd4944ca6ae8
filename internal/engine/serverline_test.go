package engine

import (
	"context"
	"slices"
	"time"
)

// The part of the server in memory where clients stand in line. It does what scripts/lib/line.lua and
// scripts/lib/notify_free.lua do.

// linePlace is one client's place in line for a name.
type linePlace struct {
	placeID
	since    int64 // orders the line
	listener bool
	seen     time.Time // of a listener: its last attempt
}

type placeID struct {
	name   string
	c      *client
	number uint64
}

// lineLock is a lock whose clients stand in line.
func (c *client) lineLock(name string) *Resource {
	r := c.lock(name)
	r.Driver.(*driver).lined = true
	return r
}

// SubscribePlace implements [LineDriver].
func (d *driver) SubscribePlace(number uint64, hear func(LineMessage)) Subscription {
	if !d.lined {
		return nil
	}
	sub := d.c.s.newSubscription(d.c, "", func(missed bool) {
		if missed {
			hear(LineMissed)
		}
	})
	sub.place, sub.hear = placeID{d.name, d.c, number}, hear
	return sub
}

// GiveUpPlace implements [LineDriver].
func (d *driver) GiveUpPlace(ctx context.Context, number uint64) error {
	s, id := d.c.s, placeID{d.name, d.c, number}
	cmd := command{op: "leave", name: d.name}
	_, _, err := do(ctx, d.c, cmd, func() (struct{}, error) {
		s.giveUpPlace(id)
		if s.lock(d.name).free() > 0 && len(s.line) > 0 {
			s.publish(d.name, nil)
		}
		return struct{}{}, nil
	})
	return err
}

// execute executes an attempt of a client with that place.
func (d *driver) execute(a attempt, place Place) (Result, error) {
	s := d.c.s
	res, err := s.acquire(a)
	id := placeID{d.name, d.c, place.Number}
	switch {
	case err != nil || place.Number == 0:
	case res.Granted && place.Last:
		s.giveUpPlace(id)
	case res.Granted:
		s.renewPlace(id)
	default:
		res.Since, res.Quiet = s.takePlace(id, place.Since)
	}
	return res, err
}

func (s *server) takePlace(id placeID, since int64) (int64, bool) {
	s.line = slices.DeleteFunc(s.line, func(p *linePlace) bool { return !s.placeLives(p) })
	p := s.placeOf(id)
	if p == nil {
		s.ticks++
		p = &linePlace{placeID: id, since: s.ticks}
		s.line = append(s.line, p)
	}
	if since != 0 {
		p.since = since
	}
	listeners := 0
	for _, other := range s.line {
		if other.name != id.name || !other.listener {
			continue
		}
		if other != p && time.Since(other.seen) > 3*time.Second {
			other.listener = false
			continue
		}
		listeners++
	}
	if listeners < 2 {
		p.listener = true
	}
	p.seen = time.Now()
	return p.since, !p.listener
}

// placeLives reports whether a place would still be in a line that ends 3 s after the last attempt. The
// server forgets single places instead of the whole line, which is stricter.
func (s *server) placeLives(p *linePlace) bool { return time.Since(p.seen) <= 3*time.Second }

func (s *server) placeOf(id placeID) *linePlace {
	for _, p := range s.line {
		if p.placeID == id {
			return p
		}
	}
	return nil
}

func (s *server) renewPlace(id placeID) {
	if p := s.placeOf(id); p != nil {
		s.ticks++
		p.since = s.ticks
	}
}

func (s *server) giveUpPlace(id placeID) {
	s.line = slices.DeleteFunc(s.line, func(p *linePlace) bool { return p.placeID == id })
}

// wakeFirst returns the messages to places that a release sends, and how many quiet clients it wakes. own is
// the place of the client that releases, nil if it has none.
func (s *server) wakeFirst(name string, own *placeID) (mail []placeMail, told int) {
	var line []*linePlace
	for _, p := range s.line {
		if p.name == name {
			line = append(line, p)
		}
	}
	slices.SortFunc(line, func(a, b *linePlace) int { return int(a.since - b.since) })
	others := slices.DeleteFunc(slices.Clone(line), func(p *linePlace) bool { return own != nil && p.placeID == *own })
	if len(others) == 0 || len(others) == 1 && others[0].listener {
		return nil, 0
	}
	var woken *linePlace
	tell := func(p *linePlace, m LineMessage) bool {
		for _, sub := range s.subs {
			if sub.place == p.placeID && sub.active {
				mail = append(mail, placeMail{sub, m})
				return true
			}
		}
		s.giveUpPlace(p.placeID)
		return false
	}
	for _, p := range others {
		if tell(p, LineTurn) {
			woken = p
			break
		}
	}
	if woken == nil {
		return mail, 0
	}
	listeners := 0
	for _, p := range line {
		switch {
		case !p.listener:
		case p == woken, own != nil && p.placeID == *own:
			listeners++
		case tell(p, LineOthersTurn):
			listeners++
		}
	}
	if last := line[len(line)-1]; listeners == 0 && last != woken && !last.listener &&
		(own == nil || last.placeID != *own) {
		tell(last, LineListen)
	}
	if !woken.listener {
		told = 1
	}
	s.renewPlace(woken.placeID)
	if own != nil {
		s.renewPlace(*own)
	}
	return mail, told
}

// placeMail is a message to a place.
type placeMail struct {
	sub *subscription
	m   LineMessage
}

// inLine returns how many clients stand in line for a name, and how many of them listen.
func (s *server) inLine(name string) (clients, listeners int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.line {
		if p.name == name {
			clients++
			if p.listener {
				listeners++
			}
		}
	}
	return clients, listeners
}

// listening returns how many clients hear the common channel of a name.
func (s *server) listening(name string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs {
		if sub.name == name {
			n++
		}
	}
	return n
}

// dropLine deletes a line, as an operator may.
func (s *server) dropLine() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line = nil
}
