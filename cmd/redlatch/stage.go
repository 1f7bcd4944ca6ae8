package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// stage is what a scene plays on: a server, names that nobody else uses, and the report.
type stage struct {
	*report

	scene   string
	options *redis.Options
	prefix  string // of all names in this scene
	began   time.Time

	mu      sync.Mutex
	members []*member
}

// newStage makes the stage of one scene in one run.
func newStage(r *report, options *redis.Options, prefix, scene string) *stage {
	var id [6]byte
	_, _ = rand.Read(id[:]) // never fails
	return &stage{
		report: r, scene: scene, options: options, began: time.Now(),
		prefix: fmt.Sprintf("%s:%s:%s:", prefix, hex.EncodeToString(id[:]), scene),
	}
}

// member is one participant: it has connections of its own, as a process of its own would.
type member struct {
	*primitives.Client
	name string
	rdb  *redis.Client
	link *locktest.Link // its way to the server
}

// member makes a participant. The names of what it locks are the scene's own.
func (s *stage) member(name string, opts ...primitives.ClientOption) (*member, error) {
	o := *s.options
	dial := o.Dialer
	if dial == nil {
		dial = redis.NewDialer(s.options)
	}
	m := &member{name: name, link: locktest.NewLink(dial)}
	o.Dialer = m.link.Dial
	m.rdb = redis.NewClient(&o)
	c, err := primitives.New(m.rdb, append(opts, primitives.WithPrefix(s.prefix))...)
	if err != nil {
		return nil, err
	}
	m.Client = c
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members = append(s.members, m)
	return m, nil
}

// die ends the participant as kill -9 would: nothing is sent any more, and nothing is released.
func (m *member) die() {
	m.link.Cut()
	_ = m.rdb.Close()
}

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

// clearLimit is how long the removal of the keys may take: a large database is searched no longer. What is left then expires within minutes.
const clearLimit = 5 * time.Second

// clear ends the participants and removes all keys of the scene, those too that remember requests: with all connections closed no copy of
// one is on its way any more.
func (s *stage) clear(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), clearLimit)
	defer cancel()
	ended, end := context.WithCancel(ctx)
	end()
	for _, m := range s.members {
		_ = m.rdb.Close()
		_ = m.Close(ended) // holds that a dead one left
	}
	rdb := redis.NewClient(s.options)
	defer func() { _ = rdb.Close() }()
	keys := rdb.Scan(ctx, 0, "*"+s.prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := rdb.Unlink(ctx, keys.Val()).Err(); err != nil {
			return fmt.Errorf("removing the keys: %w", err)
		}
	}
	if err := keys.Err(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("removing the keys: %w", err)
	}
	return nil
}
