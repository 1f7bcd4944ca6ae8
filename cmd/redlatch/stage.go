package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// stage is what a scene plays on: servers, names that nobody else uses, and the report.
type stage struct {
	*report

	scene  string
	nodes  nodes
	prefix string // of all names in this scene
	began  time.Time

	mu      sync.Mutex
	members []*member
}

// newStage makes the stage of one scene in one run.
func newStage(r *report, n nodes, prefix, scene string) *stage {
	var id [6]byte
	_, _ = rand.Read(id[:]) // never fails
	return &stage{
		report: r, scene: scene, nodes: n, began: time.Now(),
		prefix: fmt.Sprintf("%s:%s:%s:", prefix, hex.EncodeToString(id[:]), scene),
	}
}

// member is one participant: it has connections of its own, as a process of its own would.
type member struct {
	*primitives.Client
	name string
	rdb  *redis.Client
	link *locktest.Link // its way to the server

	waits   chan struct{} // has an element for each acquisition that was refused at first, if somebody takes them out
	renewed chan struct{} // has an element if something was renewed
}

// member makes a participant. The names of what it locks are the scene's own.
func (s *stage) member(name string, opts ...primitives.ClientOption) (*member, error) {
	return s.memberOn(s.nodes[0], name, opts...)
}

// memberOn makes a participant that uses a certain server.
func (s *stage) memberOn(node *redis.Options, name string, opts ...primitives.ClientOption) (*member, error) {
	o := *node
	dial := o.Dialer
	if dial == nil {
		dial = redis.NewDialer(node)
	}
	m := &member{name: name, link: locktest.NewLink(dial), waits: make(chan struct{}, 100), renewed: make(chan struct{}, 1)}
	o.Dialer = m.link.Dial
	m.rdb = redis.NewClient(&o)
	c, err := primitives.New(m.rdb, append(opts, primitives.WithPrefix(s.prefix), primitives.WithObserver(m.observe))...)
	if err != nil {
		return nil, err
	}
	m.Client = c
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members = append(s.members, m)
	return m, nil
}

// cast makes several participants.
func (s *stage) cast(names ...string) ([]*member, error) {
	var cast []*member
	for _, name := range names {
		m, err := s.member(name)
		if err != nil {
			return nil, err
		}
		cast = append(cast, m)
	}
	return cast, nil
}

func (m *member) observe(e primitives.Event) {
	var heard chan struct{}
	switch e.Kind {
	case primitives.EventWait:
		heard = m.waits
	case primitives.EventRenewed:
		heard = m.renewed
	default:
		return
	}
	select {
	case heard <- struct{}{}:
	default:
	}
}

// die ends the participant as kill -9 would: nothing is sent any more, and nothing is released.
func (m *member) die() {
	m.link.Cut()
	_ = m.rdb.Close()
}

// acquisition is how somebody's waiting ended, and when.
type acquisition struct {
	hold *primitives.Hold
	at   time.Time
	err  error
}

// waiting starts an acquisition by m of what is not to be had yet. When waiting returns it does wait.
func waiting(m *member, acquire func() (*primitives.Hold, error)) (<-chan acquisition, error) {
	done := make(chan acquisition, 1)
	go func() {
		hold, err := acquire()
		done <- acquisition{hold, time.Now(), err}
	}()
	select {
	case <-m.waits:
		return done, nil
	case a := <-done:
		if a.err == nil {
			a.err = fmt.Errorf("%s did not have to wait", m.name)
		}
		return nil, a.err
	}
}

// free tells whether something is to be had now, by having it for a moment.
func free(ctx context.Context, x interface {
	TryAcquire(ctx context.Context, opts ...primitives.Option) (*primitives.Hold, error)
},
) (bool, error) {
	hold, err := x.TryAcquire(ctx)
	switch {
	case errors.Is(err, primitives.ErrNotAcquired):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, hold.Release(ctx)
}

// crowd counts who is inside of something. It is safe for concurrent use, and uses no lock but its own.
type crowd struct {
	inside, most, entered, over atomic.Int64

	limit int64 // who finds more inside, with himself, is over it
}

// enter notes that somebody is inside, until leave, and returns how many have been.
func (c *crowd) enter() (nth int64) {
	inside := c.inside.Add(1)
	if inside > c.limit {
		c.over.Add(1)
	}
	for most := c.most.Load(); inside > most && !c.most.CompareAndSwap(most, inside); most = c.most.Load() {
	}
	return c.entered.Add(1)
}

func (c *crowd) leave() { c.inside.Add(-1) }

// say tells what happens, and who does it.
func (s *stage) say(who, format string, args ...any) {
	s.printf("  %7.3f s  %-7s %s\n", time.Since(s.began).Seconds(), who, fmt.Sprintf(format, args...))
}

// check notes what was measured, what is wanted, and whether they agree.
func (s *stage) check(what string, measured, wanted any, ok bool) {
	s.note(s.scene, what, fmt.Sprint(measured), fmt.Sprint(wanted), ok)
}

// equal checks that a number is as wanted.
func (s *stage) equal(what string, measured, wanted int64) {
	s.check(what, measured, wanted, measured == wanted)
}

// confirm checks that something is so.
func (s *stage) confirm(what string, ok bool) { s.check(what, yes(ok), "yes", ok) }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// clearLimit is how long the removal of the keys may take: a large database is searched no longer. What is left then expires within minutes.
const clearLimit = 5 * time.Second

// clear ends the participants and removes all keys of the scene, those too that remember requests: with all connections closed no copy of
// one is on its way any more.
func (s *stage) clear(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), clearLimit)
	defer cancel()
	ended, end := context.WithCancel(ctx)
	end()
	for _, m := range s.members { // all of them first: a client waits for what it has others send
		_ = m.rdb.Close()
		m.link.Mend() // a command under way, or a dial, would wait for its time limit
	}
	for _, m := range s.members {
		_ = m.Close(ended) // holds that a dead one left
	}
	var failed []error
	for _, node := range slices.Compact(slices.Clone(s.nodes)) {
		if err := s.remove(ctx, node); err != nil && ctx.Err() == nil {
			failed = append(failed, fmt.Errorf("removing the keys: %w", err))
		}
	}
	return errors.Join(failed...)
}

// remove removes the scene's keys from one server.
func (s *stage) remove(ctx context.Context, node *redis.Options) error {
	rdb := redis.NewClient(node)
	defer func() { _ = rdb.Close() }()
	keys := rdb.Scan(ctx, 0, "*"+s.prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := rdb.Unlink(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
	return keys.Err()
}
