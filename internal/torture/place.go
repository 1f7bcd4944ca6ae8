package torture

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/scripts"
)

// Faults at random instants rarely hit the few milliseconds in which something can go wrong. So most of
// them wait for a moment: a command of a certain kind that passes a proxy.

// The moments.
const (
	momentAcquire = "acquire"
	momentNest    = "nest"
	momentRenew   = "renew"
	momentRelease = "release" // frees, or hands off
)

// moments are the scripts whose commands begin a moment.
var moments = map[string][]*scripts.Script{
	momentAcquire: {
		scripts.Load("lock/acquire"), scripts.Load("lock/acquire_shared"), scripts.Load("fairlock/acquire"),
		scripts.Load("rwlock/read_acquire"), scripts.Load("rwlock/write_acquire"),
		scripts.Load("semaphore/acquire"), scripts.Load("permitsemaphore/acquire"),
	},
	momentNest: {scripts.Load("lock/nested_acquire"), scripts.Load("rwlock/read_set_count")},
	momentRenew: {
		scripts.Load("lock/renew"), scripts.Load("lock/renew_shared"), scripts.Load("rwlock/read_renew"),
		scripts.Load("permitsemaphore/renew"),
	},
	momentRelease: {
		scripts.Load("lock/release"), scripts.Load("lock/release_shared"),
		scripts.Load("lock/release_shared", "fairlock"), scripts.Load("fairlock/release"),
		scripts.Load("rwlock/read_release"), scripts.Load("rwlock/write_release"),
		scripts.Load("semaphore/release"), scripts.Load("permitsemaphore/release"),
	},
}

var momentOfScript = func() map[string]string {
	out := map[string]string{}
	for moment, list := range moments {
		for _, s := range list {
			out[s.SHA()] = moment
		}
	}
	return out
}()

// momentOf returns the moment that a command begins; "" for other commands.
func momentOf(args []string) string {
	if len(args) < 2 || !strings.EqualFold(args[0], "evalsha") {
		return ""
	}
	return momentOfScript[args[1]]
}

// aMoment returns a random moment. Every sixth is "": now.
func aMoment(rng *rand.Rand) string {
	return []string{"", momentAcquire, momentNest, momentRenew, momentRelease, momentRelease}[rng.IntN(6)]
}

// placing is how long a fault waits for its moment.
const placing = 400 * time.Millisecond

// await waits until a command that begins a moment passes one of the proxies, for a name if it is not "".
// It gives up after a while.
func (r *round) await(moment, name string, proxies []*redistest.Proxy) {
	if moment == "" {
		return
	}
	seen := make(chan struct{})
	var once sync.Once
	for _, p := range proxies {
		stop := p.Watch(func(args []string) {
			if momentOf(args) == moment && (name == "" || slices.ContainsFunc(args[2:], func(arg string) bool {
				return strings.Contains(arg, name)
			})) {
				once.Do(func() { close(seen) })
			}
		})
		defer stop()
	}
	select {
	case <-seen:
	case <-time.After(placing):
	case <-r.healing.Done():
	}
}

// allProxies are the proxies of all processes.
func (r *round) allProxies() (out []*redistest.Proxy) {
	for _, s := range r.slots {
		out = append(out, s.proxies...)
	}
	return out
}
