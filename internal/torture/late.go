package torture

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/scripts"
)

// Copies that arrive minutes late. A round is over by then, so a lane keeps some commands that were
// executed. It sends them again between later rounds: they must change nothing.

const (
	// copyAge is how old they are at least, and copyAgeLimit at most: doc/contract.md, C16.
	copyAge      = time.Minute
	copyAgeLimit = 150 * time.Second

	keptOfScript = 3 // in each round
)

// countingScripts are those whose copies Redis must remember, because they count. What they change
// has no lease, so that nothing else changes it once the round is over. A refused acquisition is
// not remembered.
var countingScripts = func() map[string]*scripts.Script {
	out := map[string]*scripts.Script{}
	for _, name := range []string{
		"latch/count_down", "semaphore/release", "semaphore/add", "semaphore/drain",
	} {
		s := scripts.Load(name)
		out[s.SHA()] = s
	}
	return out
}()

// keptCommand is a command that was answered.
type keptCommand struct {
	script *scripts.Script
	args   []string // the number of keys, the keys, the arguments
	at     time.Time
	seed   uint64
}

// key is the count that the command changes.
func (c *keptCommand) key() string { return c.args[1] }

// keeper keeps commands of a round.
type keeper struct {
	seed  uint64
	mu    sync.Mutex
	count map[*scripts.Script]int
	kept  []keptCommand
}

// see is called for each command that was executed.
func (k *keeper) see(args []string) {
	if len(args) < 4 || !strings.EqualFold(args[0], "evalsha") {
		return
	}
	s := countingScripts[args[1]]
	if s == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.count[s]++; k.count[s] <= keptOfScript {
		k.kept = append(k.kept, keptCommand{s, slices.Clone(args[2:]), time.Now(), k.seed})
	}
}

// keepCommands begins to keep commands of the processes that no fault disturbs, unless one disturbs
// the servers.
func (r *round) keepCommands() *keeper {
	k := &keeper{seed: r.seed, count: map[*scripts.Script]int{}}
	if !slices.ContainsFunc(r.theme, func(f *fault) bool { return len(f.topologies) > 0 }) {
		for _, s := range r.slots[r.victims:] {
			for _, p := range s.proxies {
				p.WatchExecuted(k.see) // as long as the proxy lives
			}
		}
	}
	return k
}

// keep takes over what a round has kept. A server that has lost its data remembers nothing.
func (l *lane) keep(rd *round, k *keeper) {
	if rd.losses.Load() > 0 {
		l.kept = nil
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	l.kept = append(l.kept, k.kept...)
}

// sendCopies sends those kept commands again that are old enough.
func (l *lane) sendCopies() error {
	var later []keptCommand
	for _, c := range l.kept {
		switch age := time.Since(c.at); {
		case age < l.cfg.copyAge:
			later = append(later, c)
		case age <= copyAgeLimit:
			if err := l.sendCopy(c, age); err != nil {
				return err
			}
		}
	}
	l.kept = later
	return nil
}

func (l *lane) sendCopy(c keptCommand, age time.Duration) error {
	ctx, cancel := soon()
	defer cancel()
	value := func() (string, error) {
		v, err := l.d.rdb.Get(ctx, c.key()).Result()
		if err == redis.Nil { //nolint:errorlint // go-redis returns it as it is
			return "nothing", nil
		}
		return v, err
	}
	before, err := value()
	if err != nil {
		return fmt.Errorf("torture: old copies: %w", err)
	}
	args := []any{"EVAL", c.script.Text()}
	for _, a := range c.args {
		args = append(args, a)
	}
	// An error is an answer, too: what counts is what has changed.
	reply, replyErr := l.d.rdb.Do(ctx, args...).Result()
	after, err := value()
	if err != nil {
		return fmt.Errorf("torture: old copies: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.result.Faults[faultOldCopies]++
	if after != before {
		primitive, _, _ := strings.Cut(c.script.Name(), "/")
		l.result.Violations = append(l.result.Violations, Violation{
			Check: checkCopy, Primitive: primitive, Name: c.key(), Seed: c.seed,
			Detail: fmt.Sprintf("a copy of %s that came %v late changed %s to %s: %v %s", c.script.Name(),
				age.Round(time.Second), before, after, reply, errorText(replyErr)),
		})
	}
	return nil
}

// faultOldCopies is not drawn: it comes between the rounds.
const faultOldCopies = "old copies"
