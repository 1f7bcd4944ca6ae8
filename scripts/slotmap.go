package scripts

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/failure"
)

// slotMap makes a cluster client read its slot map again after failures. The client itself does
// that once a minute, and when a node redirects it. When a master dies or hangs, the client would
// send commands to that master for up to a minute, although a replica has replaced it.
//
// [redis.ClusterClient.ReloadState] is not enough. It makes one reading at a time, which waits for
// a node that hangs until the read timeout, or for several dials. Therefore each reading here has
// its own goroutine, and asks a random node, so that the next reading probably asks another one.
// The number of readings depends on the time, not on the number of failed attempts.
type slotMap struct {
	r      *Runner
	client clusterClient // nil without a cluster

	// loaded reports that the client has a slot map. Without one, each of its commands would read
	// the map, and block for longer than the caller's context lasts.
	loaded atomic.Bool

	ends deadlines // the deadlines at which attempts without an answer are slow

	mu      sync.Mutex
	until   time.Time // readings begin until then
	busy    bool      // the goroutine (read) is running
	reading int       // the number of readings in flight
	next    *reading  // the reading that ends next; nil if nobody waits for it
}

// clusterClient is what this package needs from a cluster client. It is an interface so that types
// that embed a go-redis client work too.
type clusterClient interface {
	Options() *redis.ClusterOptions
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	// ForEachMaster reads the slot map before it calls the function.
	ForEachMaster(ctx context.Context, fn func(context.Context, *redis.Client) error) error
}

// reading is one reading of the slot map, for the calls that wait for it.
type reading struct {
	done chan struct{} // closed when err is set
	err  error
}

const (
	minReadDelay = 100 * time.Millisecond // the delay between the beginnings of readings, which doubles up to maxReadDelay
	maxReadDelay = 500 * time.Millisecond
	maxReadings  = 16                     // how many are in flight; all but one may have met a node that hangs
	maxRerouting = 100 * time.Millisecond // how long a retry waits for a reading
	slowAnswer   = time.Second            // an attempt without an answer for that long is a reason to read
)

// refresh begins to read the slot map, after an attempt has failed, and returns the reading that
// will end next. The readings go on for as long as an attempt may take, because a replica may
// replace the master until another attempt fails. refresh does not block. The caller is registered
// in running. Without a cluster client, refresh does nothing and returns nil.
func (m *slotMap) refresh() *reading {
	if m.client == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.until = time.Now().Add(m.readTimeout())
	return m.start()
}

// start returns the reading that will end next, and starts readings if none are made. The caller
// holds mu.
func (m *slotMap) start() *reading {
	if !m.busy {
		m.busy = true
		m.r.running.Go(m.read)
	}
	if m.next == nil {
		m.next = &reading{done: make(chan struct{})}
	}
	return m.next
}

// readTimeout returns how long readings go on after a failure, and how long one reading may dial.
func (m *slotMap) readTimeout() time.Duration { return max(m.r.timeout, 2*maxReadDelay) }

// read begins readings until the client has a slot map and no attempt has failed for a while, or
// until the runner stops.
func (m *slotMap) read() {
	for delay := minReadDelay; m.begin(); {
		timer := time.NewTimer(delay/2 + rand.N(delay)) //nolint:gosec // jitter
		select {
		case <-timer.C:
		case <-m.r.closing:
			timer.Stop()
		}
		if m.loaded.Load() { // until then, no call can go on
			delay = min(2*delay, maxReadDelay)
		}
	}
}

// begin begins a reading. It returns false if read has to end.
func (m *slotMap) begin() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.r.isStopped() {
		m.busy = false
		m.wakeWaiters(failure.ErrClosed)
		return false
	}
	isNeeded := !m.loaded.Load() && m.next != nil
	if time.Now().After(m.until) && !isNeeded {
		m.busy = false
		m.wakeWaiters(nil)
		return false
	}
	if m.reading == maxReadings {
		return true
	}
	m.reading++
	m.r.running.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), m.readTimeout()) // the limit is for dials
		defer cancel()
		err := m.client.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
		if err == nil { // the client has a slot map, perhaps its old one
			m.loaded.Store(true)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.reading--
		m.wakeWaiters(err)
	})
	return true
}

// wakeWaiters passes the result of a reading to the calls that wait for it. mu is held.
func (m *slotMap) wakeWaiters(err error) {
	if m.next != nil {
		m.next.err = err
		close(m.next.done)
		m.next = nil
	}
}

// await waits until the client has a slot map, ctx or end ends, or the map cannot be read. Calls at
// the same time wait for the same readings. If it fails, nothing was sent. The caller is registered
// in running.
func (m *slotMap) await(ctx context.Context, end <-chan struct{}) error {
	if m.client == nil || m.loaded.Load() {
		return nil
	}
	m.mu.Lock()
	next := m.start()
	m.mu.Unlock()
	began := time.Now()
	select {
	case <-next.done:
		if next.err != nil {
			return &unmapped{next.err}
		}
		return nil
	case <-ctx.Done():
	case <-end:
	}
	return notSent(ctx, began)
}

// slow returns a channel that is closed when an attempt that begins now is slow, or nil without a
// cluster client. The caller then calls refresh.
func (m *slotMap) slow() <-chan struct{} {
	if m.client == nil {
		return nil
	}
	return m.ends.in(slowAnswer).Done()
}

// follow makes an attempt for a caller that repeats it. While the attempt has no answer, follow
// makes the client read the slot map again. If another node has replaced the one that was asked,
// follow returns at once. The outcome is then unknown, and a repetition reaches the new node. The
// attempt goes on in its own goroutine. Nobody awaits a patient attempt after the end of ctx, so
// the slot map is no longer read for it. The caller is registered in running.
func (m *slotMap) follow(ctx context.Context, c call, attempt func() (Reply, error)) (Reply, error) {
	if m.client == nil || c.firstKey == 0 {
		return attempt()
	}
	if err := m.await(ctx, nil); err != nil {
		return Reply{}, err
	}
	key := c.args[c.firstKey].(string)
	node, err := m.client.MasterForKey(ctx, key)
	if err != nil {
		return attempt()
	}
	type result struct {
		reply Reply
		err   error
	}
	done := make(chan result, 1) // has room for the result, so that the goroutine ends in any case
	m.r.running.Go(func() {
		reply, err := attempt()
		done <- result{reply, err}
	})
	slow := m.slow()
	next := &reading{} // its channel is nil until the attempt is slow
	var abandoned <-chan struct{}
	if c.memory.joined.patient { // otherwise the caller awaits the answer even after the end of ctx
		abandoned = ctx.Done()
	}
	for {
		select {
		case res := <-done:
			return res.reply, res.err
		case <-abandoned:
			abandoned = nil
			slow = nil
			next = &reading{}
		case <-slow:
			slow = nil
			next = m.refresh()
		case <-next.done:
			if now, err := m.client.MasterForKey(ctx, key); err == nil && now != node {
				if c.mark.drop() {
					return Reply{}, &unsent{errReplaced}
				}
				return Reply{}, errReplaced
			}
			next = &reading{}
			if !m.r.isStopped() {
				next = m.refresh()
			}
		}
	}
}
