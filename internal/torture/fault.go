package torture

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// The faults.
const (
	faultKill      = "kill"
	faultStop      = "stop"
	faultHole      = "black-hole"
	faultDials     = "dials"
	faultRefuse    = "refuse"
	faultReplies   = "replies"
	faultCopies    = "copies"
	faultPubSub    = "pubsub"
	faultMessages  = "messages"
	faultSlow      = "slow"
	faultLate      = "late-replies"
	faultScripts   = "scripts"
	faultPause     = "pause"
	faultRestart   = "restart"
	faultDataLoss  = "data-loss"
	faultFailover  = "failover"
	faultSwitch    = "switchover"
	faultMigration = "migration"
	faultMemory    = "memory"
	faultDelete    = "delete"
	faultOverwrite = "overwrite"
	faultForce     = "force"
)

// fault is a kind of fault.
type fault struct {
	name  string
	usage string
	// topologies are where it can be injected: "" on any Redis, also on one that others use.
	topologies []string
	process    func(r *round, p *process, rng *rand.Rand) // of one client process
	server     func(r *round, rng *rand.Rand) error       // of the servers, or by the operator
}

// faults are all faults. To add one, list it here.
func faults() []fault {
	own := Topologies
	return []fault{
		{name: faultKill, usage: "kill -9 of a client process", process: (*round).kill},
		{
			name: faultStop, usage: "SIGSTOP of a client process, often for longer than its holds last",
			process: (*round).stop,
		},
		{name: faultHole, usage: "a client's packets vanish", process: (*round).blackHole},
		{
			name: faultDials, usage: "a client's connections break, and its dials hang",
			process: (*round).hangDials,
		},
		{
			name: faultRefuse, usage: "a client's connections break, and new ones are refused",
			process: (*round).refuse,
		},
		{name: faultReplies, usage: "replies to a client are lost", process: (*round).loseReplies},
		{
			name: faultCopies, usage: "commands arrive seconds late, after their repetitions",
			process: (*round).lateCopies,
		},
		{name: faultPubSub, usage: "a client's subscriptions break", process: (*round).cutPubSub},
		{
			name: faultMessages, usage: "messages to a client are lost",
			process: (*round).loseMessages,
		},
		{name: faultSlow, usage: "a client's replies are late", process: (*round).slow},
		{
			name: faultLate, usage: "replies to commands of one kind are held back",
			process: (*round).lateReplies,
		},
		{name: faultScripts, usage: "SCRIPT FLUSH", server: (*round).flushScripts},
		{name: faultDelete, usage: "an operator deletes a key", server: (*round).deleteKey},
		{
			name: faultOverwrite, usage: "an operator overwrites a key",
			server: (*round).overwriteKey,
		},
		{name: faultForce, usage: "ForceRelease", server: (*round).forceRelease},
		{name: faultPause, usage: "CLIENT PAUSE", topologies: own, server: (*round).clientPause},
		{name: faultMemory, usage: "full memory", topologies: own, server: (*round).fullMemory},
		{
			name: faultRestart, usage: "the server is killed and restarts with its data",
			topologies: []string{Single, Independent}, server: (*round).restart,
		},
		{
			name: faultDataLoss, usage: "the server is killed and restarts empty",
			topologies: []string{Single, Independent}, server: (*round).restartEmpty,
		},
		{
			name: faultFailover, usage: "the master is killed, and a replica takes over",
			topologies: []string{Sentinel, Cluster}, server: (*round).failover,
		},
		{
			name: faultSwitch, usage: "a replica takes over from a live master",
			topologies: []string{Sentinel, Cluster}, server: (*round).switchover,
		},
		{
			name: faultMigration, usage: "the slot of a name migrates",
			topologies: []string{Cluster}, server: (*round).migrate,
		},
	}
}

// Fault describes a fault to users.
type Fault struct{ Name, Usage string }

// Faults returns all faults, and what they are.
func Faults() (out []Fault) {
	for _, f := range faults() {
		out = append(out, Fault{f.name, f.usage})
	}
	return out
}

// possible reports whether f can be injected into a deployment.
func (f *fault) possible(d *deployment) bool {
	return len(f.topologies) == 0 || d.own && slices.Contains(f.topologies, d.kind)
}

// between returns a random duration.
func between(rng *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(rng.Int64N(int64(high-low)+1))
}

// begin opens a window. The caller ends it with finish.
func (r *round) begin(w window) *window {
	w.interval = interval{monotonic(), never}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.windows = append(r.windows, &w)
	return &w
}

// endAct notes that what ends holds is over, while the window lasts.
func (r *round) endAct(w *window) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.acted = monotonic()
}

func (r *round) finish(w *window) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.end = monotonic()
}

// sleep waits for d, or until the round heals.
func (r *round) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.healing.Done():
	}
}

// seeded returns random numbers that the seeds determine.
func seeded(a, b uint64) *rand.Rand {
	return rand.New(rand.NewPCG(a, b)) //nolint:gosec // a run can be repeated
}

// portTaken is how long it takes to listen on a port again, if another program has not taken it
// meanwhile. Then the clients may have talked to that program.
const portTaken = time.Second

// copyDelay bounds how late a copy of a command arrives. Redis remembers requests for 15 s and
// more.
const copyDelay = 5 * time.Second

// noProcess is the process of a window that delays nobody.
const noProcess = -2

// exclusive lets one fault at a time have a server or a process.
type exclusive struct {
	mu   sync.Mutex
	busy map[any]bool
}

func (e *exclusive) take(what any) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.busy[what] {
		return false
	}
	if e.busy == nil {
		e.busy = map[any]bool{}
	}
	e.busy[what] = true
	return true
}

func (e *exclusive) give(what any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.busy, what)
}

// inject injects one random fault in the background. It returns false if nothing could be disturbed
// now.
func (r *round) inject(f *fault) bool {
	rng := seeded(r.rand.Uint64(), r.rand.Uint64()) // r.rand is for one goroutine
	if f.server != nil {
		if !r.exclusive.take("server") {
			return false
		}
		r.injected(f.name)
		r.faults.Go(func() {
			defer r.exclusive.give("server")
			if err := f.server(r, rng); err != nil {
				r.fail(fmt.Errorf("fault %s: %w", f.name, err))
			}
			if len(f.topologies) > 0 { // a server that is mostly away tests little
				r.sleep(between(rng, 300*time.Millisecond, 1500*time.Millisecond))
			}
		})
		return true
	}
	s := r.slots[rng.IntN(r.victims)]
	if !r.exclusive.take(s) {
		return false
	}
	r.injected(f.name)
	r.faults.Go(func() {
		defer r.exclusive.give(s)
		r.await(aMoment(rng), "", []*slot{s})
		f.process(r, s.current(), rng)
	})
	return true
}
