package torture

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// outage is a random length of a fault: shorter and longer than the holds last.
func (r *round) outage(rng *rand.Rand) time.Duration { return between(rng, r.cfg.TTL/4, 2*r.cfg.TTL) }

// silentTime is a random length of a fault in which a client hears nothing. Half of them are so
// long that calls begin and end within them.
func (r *round) silentTime(rng *rand.Rand) time.Duration {
	if rng.IntN(2) == 0 {
		return r.outage(rng)
	}
	return between(rng, 2*r.cfg.TTL, 4*r.cfg.TTL)
}

func (r *round) kill(p *process, _ *rand.Rand) {
	w := r.begin(window{fault: faultKill, process: p.id})
	p.kill()
	<-p.exited
	r.finish(w)
	r.replace(p)
}

func (r *round) stop(p *process, rng *rand.Rand) {
	w := r.begin(window{fault: faultStop, process: p.id})
	p.stop(true)
	r.sleep(r.outage(rng))
	p.stop(false)
	r.finish(w)
}

// disturb applies a fault to all proxies of a process for a while.
func (r *round) disturb(p *process, name string, d time.Duration, on, off func(*redistest.Proxy)) {
	w := r.begin(window{fault: name, process: p.id})
	for _, proxy := range p.slot.proxies {
		on(proxy)
	}
	r.sleep(d)
	for _, proxy := range p.slot.proxies {
		off(proxy)
	}
	r.finish(w)
}

func heal(p *redistest.Proxy) { p.Heal() }

func (r *round) blackHole(p *process, rng *rand.Rand) {
	r.disturb(p, faultHole, r.silentTime(rng), func(x *redistest.Proxy) { x.BlackHole(true) }, func(x *redistest.Proxy) {
		x.Heal()
		x.Reset() // connections that lost data stay silent: TCP would have resent it, or reset the connection
	})
}

func (r *round) hangDials(p *process, rng *rand.Rand) {
	_ = p.send(order{Do: "hang", On: true}) // a dead process is noticed elsewhere
	r.disturb(p, faultDials, r.outage(rng), func(x *redistest.Proxy) { x.Reset() }, heal)
	_ = p.send(order{Do: "hang"})
}

func (r *round) refuse(p *process, rng *rand.Rand) {
	r.disturb(p, faultRefuse, r.silentTime(rng), func(x *redistest.Proxy) {
		x.Refuse(true)
		x.Reset()
	}, func(x *redistest.Proxy) {
		began := time.Now()
		x.Heal()
		if time.Since(began) > portTaken {
			r.void.Store(true)
		}
	})
}

func isScript(args []string) bool { return strings.HasPrefix(strings.ToLower(args[0]), "eval") }

func (r *round) loseReplies(p *process, rng *rand.Rand) {
	r.disturb(p, faultReplies, r.outage(rng), func(x *redistest.Proxy) {
		x.DropRepliesRandomly(0.3, rng.Uint64(), isScript)
	}, heal)
}

func (r *round) cutPubSub(p *process, _ *rand.Rand) {
	r.disturb(p, faultPubSub, 0, func(x *redistest.Proxy) { x.CutPubSub() }, heal)
}

func (r *round) loseMessages(p *process, rng *rand.Rand) {
	r.disturb(p, faultMessages, r.outage(rng), func(x *redistest.Proxy) { x.DropMessages(true) }, heal)
}

func (r *round) slow(p *process, rng *rand.Rand) {
	d := between(rng, 30*time.Millisecond, r.cfg.TTL/5)
	r.disturb(p, faultSlow, r.outage(rng), func(x *redistest.Proxy) { x.Delay(d) }, heal)
}

// lateReplies holds replies back, up to three times. What they answer has been executed long
// before.
func (r *round) lateReplies(p *process, rng *rand.Rand) {
	moment := []string{"", momentAcquire, momentNest, momentRenew, momentRenew, momentRelease}[rng.IntN(6)]
	late := func(args []string) bool { return isScript(args) && (moment == "" || momentOf(args) == moment) }
	for range 1 + rng.IntN(3) {
		var release []func()
		r.disturb(p, faultLate, between(rng, 50*time.Millisecond, r.cfg.TTL),
			func(x *redistest.Proxy) { release = append(release, x.HoldReplies(late)) },
			func(x *redistest.Proxy) { x.Heal() })
		for _, f := range release {
			f()
		}
	}
}

// lateCopies holds commands back: their connections break, and they arrive later by themselves,
// after the client has sent them again. No copy arrives after its client or the data of the server
// is gone: what it left could not be told from what the client left.
func (r *round) lateCopies(p *process, rng *rand.Rand) {
	targets := r.targets()
	for i, proxy := range p.slot.proxies {
		rng := seeded(rng.Uint64(), uint64(i)) // the proxy calls the match in its own goroutines
		left := 5
		proxy.DropCommands(math.MaxInt, func(args []string) bool { // each command that matches is dropped
			if left == 0 || !isScript(args) || rng.IntN(8) != 0 {
				return false
			}
			left--
			delay := between(rng, 5*time.Millisecond, copyDelay)
			r.copies.Go(func() { r.deliver(p, targets[i], slices.Clone(args), delay) })
			return true
		})
	}
	r.disturb(p, faultCopies, r.outage(rng), func(*redistest.Proxy) {}, heal)
}

func (r *round) targets() []string { return r.d.targets }

func (r *round) deliver(p *process, addr string, args []string, delay time.Duration) {
	lossesBefore := r.losses.Load()
	time.Sleep(delay)
	if !p.alive() || r.losses.Load() != lossesBefore {
		return
	}
	rdb := newClient(&redis.UniversalOptions{
		Addrs: []string{addr}, Username: r.d.Username, Password: r.d.Password, DB: r.d.DB, TLSConfig: r.d.TLS, MaxRetries: -1,
	})
	defer func() { _ = rdb.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	all := make([]any, len(args))
	for i, arg := range args {
		all[i] = arg
	}
	at := monotonic()
	reply, err := rdb.Do(ctx, all...).Result() // the client does not get it
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delivered = append(r.delivered, lateCopy{p.id, at, delay, args[2:], fmt.Sprint(reply, errorText(err))})
}

// lateCopy is a command that arrived late, for the log.
type lateCopy struct {
	process int
	at      int64
	delay   time.Duration
	args    []string // without the name and the script
	reply   string
}
