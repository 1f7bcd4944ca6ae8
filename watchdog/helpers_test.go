package watchdog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	ttl    = 30 * time.Second
	margin = 300 * time.Millisecond
)

var errDown = errors.New("down")

// reply is what a fake server does with a call.
type reply struct {
	state State
	after time.Duration // delay of the answer; it ignores the context
	hang  bool          // the call answers nothing until its context ends
}

// server is a fake Renew. It records its calls and answers with reply.
type server struct {
	start time.Time
	reply func(q request) reply

	mu    sync.Mutex
	calls []request
	ended int // calls whose context ended before their answer
}

type request struct {
	n     int           // number of the call, from 0
	at    time.Duration // since start
	group any
	batch []Renewal
}

func newServer(r func(q request) reply) *server {
	return &server{start: time.Now(), reply: r}
}

func always(r reply) func(request) reply { return func(request) reply { return r } }

func (s *server) renew(ctx context.Context, group any, batch []Renewal) ([]State, error) {
	s.mu.Lock()
	q := request{len(s.calls), time.Since(s.start), group, slices.Clone(batch)}
	s.calls = append(s.calls, q)
	s.mu.Unlock()
	r := s.reply(q)
	switch {
	case r.hang:
		<-ctx.Done()
	case r.after > 0:
		time.Sleep(r.after)
	}
	if ctx.Err() != nil {
		s.mu.Lock()
		s.ended++
		s.mu.Unlock()
	}
	if r.hang || r.state == Unknown {
		return nil, errDown
	}
	return slices.Repeat([]State{r.state}, len(batch)), nil
}

func (s *server) requests() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// keeper records its events and their times.
type keeper struct {
	Lease
	start time.Time
	hook  func(event string) // called in each event

	mu  sync.Mutex
	log []string
}

func newKeeper() *keeper { return &keeper{start: time.Now()} }

func (k *keeper) record(event string) {
	k.mu.Lock()
	k.log = append(k.log, fmt.Sprintf("%s@%v", event, time.Since(k.start)))
	k.mu.Unlock()
	if k.hook != nil {
		k.hook(event)
	}
}

func (k *keeper) LeaseRenewed(*Lease) { k.record("renewed") }
func (k *keeper) LeaseUnknown(_ *Lease, err error) {
	k.record(pick(errors.Is(err, ErrNoAnswer), "overdue", "unknown"))
}
func (k *keeper) LeaseLost(_ *Lease, refused bool) { k.record(pick(refused, "refused", "expired")) }

func pick(first bool, a, b string) string {
	if first {
		return a
	}
	return b
}

// events returns all events so far, each as "kind@time since the start".
func (k *keeper) events() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.log)
}

// eventsWithout returns all events except those of one kind.
func (k *keeper) eventsWithout(kind string) []string {
	return slices.DeleteFunc(k.events(), func(s string) bool { return strings.HasPrefix(s, kind+"@") })
}

// validFor returns how long the lease is valid, counted from the start of the test.
func (k *keeper) validFor() time.Duration { return k.ValidUntil().Sub(k.start) }

// schedule returns the default schedule of the tests.
func schedule() Schedule { return Schedule{Group: "g", TTL: ttl, Margin: margin} }

// keep registers a lease that was acquired at this instant.
func keep(t testing.TB, d *Dog, k *keeper, sched Schedule) {
	t.Helper()
	require.NoError(t, d.Keep(&k.Lease, k, sched, time.Now().Add(sched.TTL-sched.Margin)))
}

// sleep passes fake time and waits for all goroutines to become idle.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
