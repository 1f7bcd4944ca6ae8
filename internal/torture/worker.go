package torture

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/torture/simnet"
	"github.com/redlatch/redlatch/primitives"
)

// commandTimeout bounds the calls of client processes that have no end of their own. It is shorter
// than many faults, so that calls end in doubt, and a round ends soon after its last fault.
const commandTimeout = 700 * time.Millisecond

// stallAfter is the shortest time without running that a client process reports.
const stallAfter = 30 * time.Millisecond

// Worker is a client process: it reads its setup and its orders from in, and writes records to out.
// It returns when it is told to close, or when in ends.
func Worker(in io.Reader, out io.Writer) error {
	w, err := newWorker(in, out)
	if err != nil {
		return err
	}
	if err := w.connect(); err != nil {
		return err
	}
	return w.run(record{}, w.session, w.close)
}

// newWorker reads the setup.
func newWorker(in io.Reader, out io.Writer) (*worker, error) {
	w := &worker{in: json.NewDecoder(bufio.NewReader(in)), clock: newClock()}
	if err := w.in.Decode(&w.setup); err != nil {
		return nil, fmt.Errorf("torture: no setup: %w", err)
	}
	w.out = recorder{clock: w.clock, out: out}
	w.draining, w.drain = context.WithCancel(context.Background())
	return w, nil
}

// connect makes the clients.
func (w *worker) connect() (err error) {
	redis.SetLogger(discard{})
	w.network.routes = w.Endpoint.Routes
	w.rdb = w.Endpoint.client(w.dialer())
	opts := []primitives.ClientOption{primitives.WithObserver(w.observe), primitives.WithCommandTimeout(commandTimeout)}
	if w.ClientID != "" {
		opts = append(opts, primitives.WithClientID(w.ClientID))
	}
	if w.Replicas > 0 {
		opts = append(opts, primitives.WithReplicas(w.Replicas, replicasTimeout))
	}
	if w.client, err = primitives.New(w.rdb, opts...); err != nil {
		return err
	}
	w.members, err = w.memberClients(opts)
	return err
}

// run starts the sessions, and does what it is told until it is told to close. ready says more
// about the process.
func (w *worker) run(ready record, session func(n int), end func() error) error {
	ready.Kind, ready.At, ready.Protocol = kindReady, w.clock.now(), protocol
	w.out.write(ready)
	var sessions sync.WaitGroup
	for n := range w.Sessions {
		sessions.Go(func() { session(n) })
	}
	go w.watchStalls()
	for {
		var order order
		if err := w.in.Decode(&order); err != nil {
			return nil // the harness has gone
		}
		switch order.Do {
		case "hang":
			w.network.hang(order.On)
		case "generation":
			w.generation.Store(order.Generation)
		case "drain":
			w.drain()
			go func() {
				sessions.Wait()
				w.out.write(record{Kind: kindDone, At: w.clock.now()})
			}()
		case "close":
			sessions.Wait()
			return end()
		}
	}
}

// replicasTimeout is how long acquisitions wait for the confirmations of replicas.
const replicasTimeout = 300 * time.Millisecond

// redLockMembers is how many members a redlock has.
const redLockMembers = 3

// member is a client for the members of redlocks on one server.
type member struct {
	rdb    redis.UniversalClient
	client *primitives.Client
}

// memberClients returns the client of each member of a redlock: that of the process, or one for
// each independent server. The first is always that of the process.
func (w *worker) memberClients(opts []primitives.ClientOption) ([]member, error) {
	all := []member{{w.rdb, w.client}}
	for i := 1; i < redLockMembers; i++ {
		if len(w.Endpoint.Members) == 0 {
			all = append(all, all[0])
			continue
		}
		e := w.Endpoint
		e.Addrs = []string{e.Members[i]}
		m := member{rdb: e.client(w.dialer())}
		var err error
		if m.client, err = primitives.New(m.rdb, opts...); err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// dialer is the way to the servers.
func (w *worker) dialer() dialer {
	if w.simulated != nil {
		return w.simulated.Dial
	}
	return w.network.dial
}

type discard struct{}

func (discard) Printf(context.Context, string, ...any) {}

// worker is the state of a client process.
type worker struct {
	setup

	in         *json.Decoder
	clock      clock
	out        recorder
	network    network
	simulated  *simnet.Client // in place of network; nil outside of simulations
	rdb        redis.UniversalClient
	client     *primitives.Client
	members    []member // of redlocks
	ops        atomic.Int64
	generation atomic.Int64 // part of the names of pools and latches: it changes when one may have lost its content
	inits      sync.Map     // names of pools that this process has set
	keyed      sync.Map     // by TTL: a *primitives.Keyed
	releases   sync.Map     // by id: what the end of a release that no call returns is told to, a func(error)
	lateness   sync.Map     // by operation that goes on: the *time.Timer for when it is late
	draining   context.Context
	drain      context.CancelFunc
}

// session runs random actions, one after another, until the process drains.
func (w *worker) session(n int) {
	s := w.newSession(n)
	for w.draining.Err() == nil {
		name := w.Slots.pick(w.clock.now(), s.rand)
		workloads[name].act(s, name)
		s.pause()
	}
}

func (w *worker) newSession(n int) *session {
	return &session{worker: w, n: n, rand: seeded(w.Seed, uint64(w.Process)<<32|uint64(n))}
}

// pause passes the time between two actions.
func (s *session) pause() {
	if s.Pace != paceCalm {
		time.Sleep(between(s.rand, 0, 4*time.Millisecond))
		return
	}
	select {
	case <-time.After(between(s.rand, 200*time.Millisecond, 1500*time.Millisecond)):
	case <-s.draining.Done():
	}
}

// close ends the client and reports what it left running.
func (w *worker) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := w.client.Close(ctx)
	if len(w.Endpoint.Members) > 0 { // else all members are on the same client
		for _, m := range w.members[1:] {
			err = errors.Join(err, m.client.Close(ctx), m.rdb.Close())
		}
	}
	left := int64(0)
	// A goroutine that has done its work may not have ended yet. Simulated processes are checked
	// together.
	for tries := 0; tries < 50 && w.simulated == nil; tries++ {
		if left = libraryGoroutines(); left == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.out.write(record{Kind: kindDone, At: w.clock.now(), Count: left, Err: errorText(err)})
	return w.rdb.Close()
}

// libraryGoroutines returns the number of goroutines that the library has started.
func libraryGoroutines() int64 {
	n := int64(0)
	for g := range strings.SplitSeq(goroutines(2), "\n\n") {
		_, creator, _ := strings.Cut(g, "created by ")
		if strings.HasPrefix(creator, "github.com/redlatch/redlatch/") &&
			!strings.HasPrefix(creator, "github.com/redlatch/redlatch/internal/torture") &&
			!strings.HasPrefix(creator, "github.com/redlatch/redlatch/cmd/") {
			n++
		}
	}
	return n
}

// goroutines returns the stacks of all goroutines, in a format of [pprof.Profile.WriteTo].
func goroutines(format int) string {
	var dump strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&dump, format)
	return dump.String()
}

// watchStalls reports when this process does not run, so that its late calls are not blamed on the
// library.
func (w *worker) watchStalls() {
	const pause = 5 * time.Millisecond
	for {
		before := w.clock.now()
		time.Sleep(pause)
		if at := w.clock.now(); at-before > int64(pause+stallAfter) {
			w.out.write(record{Kind: kindStall, At: at, Count: at - before})
		}
	}
}

// opKey finds an acquisition in the context of its events.
type opKey struct{}

// observed is an acquisition, for the observer.
type observed struct {
	op     atomic.Int64
	events atomic.Int64 // that told its outcome
	id     atomic.Value // string: of the hold, if it was acquired
}

func (w *worker) observe(e primitives.Event) {
	switch e.Kind {
	case primitives.EventRenewed, primitives.EventRenewFailed:
		w.out.write(record{Kind: kindRenew, At: w.clock.now(), ID: e.ID, Names: []string{e.Name}})
	case primitives.EventWait, primitives.EventAcquired, primitives.EventNested, primitives.EventNotAcquired:
		if e.Ctx == nil {
			return
		}
		of, ok := e.Ctx.Value(opKey{}).(*observed)
		switch {
		case !ok:
		case e.Kind == primitives.EventWait:
			w.out.write(record{Kind: kindWait, At: w.clock.now(), Op: of.op.Load()})
		default:
			of.events.Add(1)
			of.id.Store(e.ID)
		}
	case primitives.EventReleased, primitives.EventReleaseFailed, primitives.EventLost:
		tell, ok := w.releases.LoadAndDelete(e.ID)
		switch {
		case !ok:
		case e.Kind == primitives.EventReleaseFailed: // it is repeated
			tell.(func(error))(primitives.ErrOutcomeUnknown)
		default:
			tell.(func(error))(e.Err)
		}
	default: // the others say nothing of an outcome that the calls do not say
	}
}
