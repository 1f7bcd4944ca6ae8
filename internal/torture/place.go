package torture

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redlatch/redlatch/scripts"
)

// Faults at random instants rarely hit the few milliseconds in which something can go wrong.
// Therefore most of them wait for a moment: a command of a certain kind that passes a proxy, or the
// beginning of a hold that lasts.

// The moments.
const (
	momentAcquire = "acquire"
	momentNest    = "nest"
	momentRenew   = "renew"
	momentRelease = "release" // frees, or hands off
	momentHeld    = "held"    // a hold begins; in simulations only
	momentEnding  = "ending"  // a hold is about to be let go; in simulations only
	momentStay    = "stay"    // a hold begins that will last for some renewals
	momentExtend  = "extend"  // Extend has succeeded
	momentOld     = "old"     // a hold has lasted for long enough to be notified of a takeover
)

// oldAge is when a hold is old: doc/contract.md, C15.
const oldAge = 1100 * time.Millisecond

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
		scripts.Load("fairlock/release_shared"), scripts.Load("fairlock/release"),
		scripts.Load("rwlock/read_release"), scripts.Load("rwlock/write_release"),
		scripts.Load("semaphore/release"), scripts.Load("permitsemaphore/release"),
	},
}

// momentOfScript has the moment of each script, by its digest and by its text.
var momentOfScript = func() map[string]string {
	out := map[string]string{}
	for moment, list := range moments {
		for _, s := range list {
			out[s.SHA()], out[s.Text()] = moment, moment
		}
	}
	return out
}()

// momentOf returns the moment that a command begins; "" for other commands.
func momentOf(args []string) string {
	if len(args) < 2 || !isScript(args) {
		return ""
	}
	return momentOfScript[args[1]]
}

// isOfHold reports whether a client process tells of a moment. Of the others, its commands do.
func isOfHold(moment string) bool {
	return slices.Contains([]string{momentHeld, momentEnding, momentStay, momentOld, momentExtend}, moment)
}

// aMoment returns a random moment. Every ninth is "": now.
func aMoment(rng *rand.Rand) string {
	return []string{
		"", momentAcquire, momentNest, momentRenew, momentRelease, momentRelease, momentStay, momentOld,
		momentExtend,
	}[rng.IntN(9)]
}

// placing is how long a fault waits for its moment.
const placing = 400 * time.Millisecond

// await waits until a moment begins in one of the processes, for a name if it is not "". It gives
// up after a while.
func (r *round) await(moment, name string, among []*slot) {
	if moment == "" {
		return
	}
	seen := make(chan struct{})
	var once sync.Once
	begins := func() { once.Do(func() { close(seen) }) }
	if isOfHold(moment) {
		defer r.stays.watch(func(s *slot, m string, names []string) {
			if m == moment && slices.Contains(among, s) && (name == "" || slices.Contains(names, name)) {
				begins()
			}
		})()
	} else {
		for _, s := range among {
			for _, p := range s.proxies {
				defer p.Watch(func(args []string) {
					if momentOf(args) == moment && (name == "" || slices.ContainsFunc(args[2:], func(arg string) bool {
						return strings.Contains(arg, name)
					})) {
						begins()
					}
				})()
			}
		}
	}
	select {
	case <-seen:
	case <-time.After(placing):
	case <-r.healing.Done():
	}
}

// stays tells watchers about moments of long holds: see momentStay and momentOld.
type stays struct {
	mu       sync.Mutex
	last     int
	watchers map[int]func(s *slot, moment string, names []string)
}

// watch calls seen, which must not block, until stop is called.
func (s *stays) watch(seen func(s *slot, moment string, names []string)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watchers == nil {
		s.watchers = map[int]func(*slot, string, []string){}
	}
	s.last++
	n := s.last
	s.watchers[n] = seen
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, n)
	}
}

func (s *stays) tell(at *slot, moment string, names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seen := range s.watchers {
		seen(at, moment, names)
	}
}
