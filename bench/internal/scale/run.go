package scale

import (
	"context"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/bench/internal/report"
)

// Config says what to measure.
type Config struct {
	Quick    bool          // small sizes, to try the command
	Most     int           // the largest number of held locks
	Soak     time.Duration // of a long run after the checks; 0: none
	OnlySoak bool          // no constants and no checks
	Progress func(format string, args ...any)
}

// Check is a figure, and what the model says.
type Check struct {
	System   string  `json:"system"`
	Curve    string  `json:"curve"`
	What     string  `json:"what"`
	N        int     `json:"n"`
	Measured float64 `json:"measured"`
	Model    float64 `json:"model"`
	Unit     string  `json:"unit"`
	Note     string  `json:"note,omitempty"`
	Slowness float64 `json:"slowness"` // of the machine, as a ratio to when the constants were measured
}

// Soak is a long run of many holds.
type Soak struct {
	System     string        `json:"system"`
	Holds      int           `json:"holds"`
	TTL        time.Duration `json:"ttl"`
	Length     time.Duration `json:"length"`
	Lost       int           `json:"lost"`
	Scripts    float64       `json:"scripts"`     // a second
	ServerCPU  float64       `json:"server_cpu"`  // processors
	ClientCPU  float64       `json:"client_cpu"`  // processors
	PerCommand float64       `json:"per_command"` // locks renewed by a command
}

// The curves.
const (
	curveServerMemory = "server memory of held locks"
	curveClientMemory = "client memory of held locks"
	curveServerCPU    = "server processor of held locks"
	curveClientCPU    = "client processor of held locks"
	curveScripts      = "scripts for each hand-off between clients"
	curveHandOff      = "server time for each hand-off between clients"
	curveWaitMemory   = "client memory of waiters"
	curveWaitCPU      = "server processor of waiters"
)

const (
	soakHolds = 100_000
	ttl       = 30 * time.Second
)

// Run measures the constants and the checks, each on a fresh system: a server that has held a
// million locks is slower for a while.
func Run(ctx context.Context, config Config) (*Report, error) {
	r := &Report{Setup: report.Machine(time.Now())}
	for _, start := range []func(context.Context) (*system, error){startSingle, startCluster} {
		reference := time.Duration(0)
		for _, part := range r.parts(config) {
			s, err := start(ctx)
			if err != nil {
				return nil, err
			}
			if reference == 0 {
				reference = s.pace
			}
			s.pace, r.Setup.Redis = reference, s.nodes[0].Version
			config.Progress("%s: %s", s.name, part.what)
			err = part.measure(ctx, s)
			s.close()
			if err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// part is a part of the measurements of one system.
type part struct {
	what    string
	measure func(context.Context, *system) error
}

// parts returns the measurements of a system.
func (r *Report) parts(config Config) (parts []part) {
	if !config.OnlySoak {
		parts = r.checks(config)
	}
	if config.Soak > 0 {
		parts = append(parts, part{
			fmt.Sprintf("%d held locks for %v", soakHolds, config.Soak),
			func(ctx context.Context, s *system) error { return r.soak(ctx, s, config.Soak) },
		})
	}
	return parts
}

// checks returns the measurements that compare the model with reality: first its constants, then
// larger sizes.
func (r *Report) checks(config Config) (parts []part) {
	add := func(measure func(context.Context, *system) error, what string, args ...any) {
		parts = append(parts, part{fmt.Sprintf(what, args...), measure})
	}
	var c Constants
	add(func(ctx context.Context, s *system) (err error) {
		c, err = s.calibrate(ctx)
		r.Constants = append(r.Constants, c)
		return err
	}, "constants")
	holds, crowds, names := []int{10_000, 100_000, 1_000_000}, []int{2, 10, 50, 200, 1000}, 10_000
	if config.Quick {
		holds, crowds, names = []int{10_000}, []int{2, 10, 50}, 1000
	}
	for _, n := range holds {
		if n <= config.Most {
			add(func(ctx context.Context, s *system) error { return r.checkHeld(ctx, s, &c, n) }, "%d held locks", n)
		}
	}
	add(func(ctx context.Context, s *system) error { return r.checkWaiting(ctx, s, &c, names) },
		"%d waiters on %d names", 10*names, names)
	for _, n := range crowds {
		add(func(ctx context.Context, s *system) error { return r.checkCrowd(ctx, s, &c, n) },
			"%d clients wait for one name", n)
	}
	return parts
}

func (r *Report) add(s *system, u *usage, curve, what string, n int, measured, model float64, unit, note string) {
	r.Checks = append(r.Checks, Check{s.name, curve, what, n, measured, model, unit, note, u.slowness})
}

func (r *Report) checkHeld(ctx context.Context, s *system, c *Constants, n int) error {
	lease := ttl
	if n > 500_000 && len(s.nodes) > 1 {
		lease *= 4 // three servers and the client share this machine
	}
	h, err := s.hold(ctx, "held", n, lease, lease/3)
	if err != nil {
		return err
	}
	if h.lost > 0 {
		return fmt.Errorf("scale: %d of %d locks were lost", h.lost, n)
	}
	u := &h.renewing
	each := float64(h.renewals()) / float64(u.scripts)
	model := c.renewing(n, lease, each)
	note := fmt.Sprintf("TTL %v, %.0f commands/s, %.1f locks in each", lease, u.perSecond(u.scripts), each)
	seconds := u.took.Seconds()
	add := func(curve string, measured, model float64, unit, note string) {
		r.add(s, u, curve, "held locks", n, measured, model, unit, note)
	}
	add(curveServerMemory, float64(h.serverBytes), c.heldBytes(n, len(s.nodes)), "bytes", "")
	add(curveClientMemory, float64(h.clientBytes), c.HoldClient*float64(n), "bytes", "")
	add(curveServerCPU, micros(u.server, 1)/seconds, model.server, "µs/s", note)
	add(curveClientCPU, micros(u.client, 1)/seconds, model.client, "µs/s", note)
	return nil
}

func (r *Report) checkWaiting(ctx context.Context, s *system, c *Constants, names int) error {
	w, err := s.wait(ctx, names, 10, 2*length)
	if err != nil {
		return err
	}
	note := fmt.Sprintf("%d names, %.0f commands/s; all had the lock within %.1f s", names,
		w.idle.perSecond(w.idle.scripts), w.drained.Seconds())
	memory := c.NameClient*float64(names) + c.WaiterClient*float64(w.waiters)
	r.add(s, &w.idle, curveWaitMemory, "waiters", w.waiters, float64(w.clientBytes), memory, "bytes", "")
	r.add(s, &w.idle, curveWaitCPU, "waiters", w.waiters,
		micros(w.idle.server, 1)/w.idle.took.Seconds(), c.waiting(names).server, "µs/s", note)
	return nil
}

func (r *Report) checkCrowd(ctx context.Context, s *system, c *Constants, n int) error {
	crowd, err := s.contendFor(ctx, n, length)
	if err != nil {
		return err
	}
	if crowd.handOffs == 0 {
		return fmt.Errorf("scale: %d clients: nobody acquired the lock", n)
	}
	rate := crowd.usage.perSecond(crowd.handOffs)
	note := fmt.Sprintf("%.0f hand-offs/s", rate)
	server, scripts := c.handOff(n, rate)
	r.add(s, &crowd.usage, curveScripts, "clients", n,
		float64(crowd.usage.scripts)/float64(crowd.handOffs), scripts, "scripts", note)
	r.add(s, &crowd.usage, curveHandOff, "clients", n, micros(crowd.usage.server, crowd.handOffs), server, "µs", note)
	return nil
}

func (r *Report) soak(ctx context.Context, s *system, d time.Duration) error {
	h, err := s.hold(ctx, "held", soakHolds, ttl, d)
	if err != nil {
		return err
	}
	u := &h.renewing
	r.Soaks = append(r.Soaks, Soak{
		System: s.name, Holds: h.n, TTL: ttl, Length: d, Lost: h.lost, Scripts: u.perSecond(u.scripts),
		ServerCPU: u.server.Seconds() / u.took.Seconds(), ClientCPU: u.client.Seconds() / u.took.Seconds(),
		PerCommand: float64(h.renewals()) / float64(u.scripts),
	})
	return nil
}
