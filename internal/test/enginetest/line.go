package enginetest

import (
	"context"
	"slices"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// The part of the server in memory where clients stand in line. It does what scripts/lib/line.lua
// and scripts/lib/notify_free.lua do.

// linePlace is one client's place in line for a name.
type linePlace struct {
	placeID
	since    int64 // orders the line
	listener bool
	seen     time.Time // of a listener: its last attempt
}

type placeID struct {
	name   string
	c      *Client
	number uint64
}

// LineLock is a lock whose clients stand in line.
func (c *Client) LineLock(name string) *engine.Resource {
	r := c.Lock(name)
	r.Driver.(*FakeDriver).lined = true
	return r
}

// SubscribePlace implements [LineDriver].
func (d *FakeDriver) SubscribePlace(number uint64, hear func(engine.Message)) engine.Subscription {
	if !d.lined {
		return nil
	}
	sub := d.Client.s.NewSubscription(d.Client, "", hear)
	sub.place = placeID{d.Name, d.Client, number}
	return sub
}

// GiveUpPlace implements [LineDriver].
func (d *FakeDriver) GiveUpPlace(ctx context.Context, number uint64) error {
	s, id := d.Client.s, placeID{d.Name, d.Client, number}
	cmd := Command{Op: "leave", Name: d.Name}
	_, _, err := Do(ctx, d.Client, cmd, func() (struct{}, error) {
		s.giveUpPlace(id)
		if s.lock(d.Name).free() > 0 && len(s.line) > 0 {
			s.publish(d.Name, nil)
		}
		return struct{}{}, nil
	})
	return err
}

// execute executes an attempt of a client with that place.
func (d *FakeDriver) execute(a attempt, place engine.Place) (engine.Result, error) {
	s := d.Client.s
	res, err := s.acquire(a)
	id := placeID{d.Name, d.Client, place.Number}
	switch {
	case err != nil || place.Number == 0:
	case res.Granted && place.Last:
		s.giveUpPlace(id)
	case res.Granted:
		s.renewPlace(id)
	default:
		res.Since, res.NeedNotListen = s.takePlace(id, place.Since)
	}
	return res, err
}

func (s *Server) takePlace(id placeID, since int64) (int64, bool) {
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

// placeLives reports whether a place would still be in a line that ends 3 s after the last attempt.
// The server forgets single places instead of the whole line, which is stricter.
func (s *Server) placeLives(p *linePlace) bool { return time.Since(p.seen) <= 3*time.Second }

func (s *Server) placeOf(id placeID) *linePlace {
	for _, p := range s.line {
		if p.placeID == id {
			return p
		}
	}
	return nil
}

func (s *Server) renewPlace(id placeID) {
	if p := s.placeOf(id); p != nil {
		s.ticks++
		p.since = s.ticks
	}
}

func (s *Server) giveUpPlace(id placeID) {
	s.line = slices.DeleteFunc(s.line, func(p *linePlace) bool { return p.placeID == id })
}

// wakeFirst returns the messages to places that a release sends, and how many quiet clients it
// wakes. own is the place of the client that releases, nil if it has none.
func (s *Server) wakeFirst(name string, own *placeID) (mail []placeMail, told int) {
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
	tell := func(p *linePlace, m engine.Message) bool {
		for _, sub := range s.Subs {
			if sub.place == p.placeID && sub.active {
				mail = append(mail, placeMail{sub, m})
				return true
			}
		}
		s.giveUpPlace(p.placeID)
		return false
	}
	for _, p := range others {
		if tell(p, engine.OurTurn) {
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
		case tell(p, engine.OthersTurn):
			listeners++
		}
	}
	if last := line[len(line)-1]; listeners == 0 && last != woken && !last.listener &&
		(own == nil || last.placeID != *own) {
		tell(last, engine.Listen)
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
	m   engine.Message
}

// InLine returns how many clients stand in line for a name, and how many of them listen.
func (s *Server) InLine(name string) (clients, listeners int) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
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

// Listening returns how many clients hear the common channel of a name.
func (s *Server) Listening(name string) (n int) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for _, sub := range s.Subs {
		if sub.name == name {
			n++
		}
	}
	return n
}

// DropLine deletes a line, as an operator may.
func (s *Server) DropLine() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.line = nil
}
