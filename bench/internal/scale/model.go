package scale

import (
	"context"
	"fmt"
	"math/bits"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// Constants is the model: what things cost on one kind of system. Times are processor times in
// microseconds. They include the network on both sides, on this machine.
type Constants struct {
	System string `json:"system"`

	IdleServer float64 `json:"idle_server"` // a second of all servers, for nearly nothing
	IdleClient float64 `json:"idle_client"` // a second of a client that holds one lock

	PairServer float64 `json:"pair_server"` // acquire and release of a free lock
	PairClient float64 `json:"pair_client"`
	Refused    float64 `json:"refused"` // an attempt to acquire a held lock; a poll is one, too

	// A renewal command costs RenewCommand, and RenewLock for each lock in it. WakeUp is the part
	// of RenewCommand that only the first wakeUps commands of each second cost. It is 0 on one
	// server, where a client needs fewer commands.
	RenewCommandServer float64 `json:"renew_command_server"`
	RenewLockServer    float64 `json:"renew_lock_server"`
	WakeUpServer       float64 `json:"wake_up_server"`
	RenewCommandClient float64 `json:"renew_command_client"`
	RenewLockClient    float64 `json:"renew_lock_client"`
	WakeUpClient       float64 `json:"wake_up_client"`

	// Between two clients, which need no line, and between more.
	PairHandOff        float64 `json:"pair_hand_over"` // server
	PairHandOffScripts float64 `json:"pair_hand_over_scripts"`
	HandOff            float64 `json:"hand_over"` // server
	HandOffScripts     float64 `json:"hand_over_scripts"`

	PollServer float64 `json:"poll_server"` // of one waited-for name
	PollClient float64 `json:"poll_client"`

	// Bytes.
	HoldServer    float64 `json:"hold_server"`     // without its entries in Redis's two tables
	HoldClient    float64 `json:"hold_client"`     // of a hold with its handle
	NameClient    float64 `json:"name_client"`     // of a name with waiters
	WaiterClient  float64 `json:"waiter_client"`   // of a waiter, with its goroutine
	NameServer    float64 `json:"name_server"`     // of a name with waiters
	RequestServer float64 `json:"remembered_pair"` // what a pair of a semaphore leaves for a while
}

// The sizes at which the constants are measured. The checks are much larger.
const (
	calibrationHolds   = 40_000
	calibrationNames   = 2000
	calibrationClients = 100
	calibrationSpread  = 1000 // few for 16,384 slots
	calibrationBusy    = 4000 // mostly one in a slot, and more than wakeUps
	calibrationCrowd   = 10
	calibrationTTL     = 3 * time.Second
	fullTTL            = 15 * time.Second // of calibrationHolds
	shortTTL           = 150 * time.Millisecond
	length             = 5 * time.Second // of each measurement
)

// wakeUps is how often a second renewals wake up a client, at most. This is an assumption of the
// model: the renewals of the same millisecond are sent together, and wake up the client and the
// servers once.
const wakeUps = 1000

// calibrate measures the constants on a system.
func (s *system) calibrate(ctx context.Context) (Constants, error) {
	c := Constants{System: s.name}
	for _, step := range []func(context.Context, *Constants) error{
		s.calibrateIdle, s.calibrateFree, s.calibrateRenewals, s.calibrateWaiting, s.calibrateHandOff,
	} {
		if err := step(ctx, &c); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (s *system) calibrateIdle(ctx context.Context, c *Constants) error {
	h, err := s.hold(ctx, "idle", 1, ttl, 2*length)
	u := &h.renewing
	c.IdleServer = micros(u.server, 1) / u.took.Seconds()
	c.IdleClient = micros(u.client, 1) / u.took.Seconds()
	return err
}

func (s *system) calibrateFree(ctx context.Context, c *Constants) error {
	n, u, err := s.pairs(ctx, length)
	if err != nil {
		return err
	}
	c.PairServer, c.PairClient = micros(u.server, n), micros(u.client, n)
	if n, u, err = s.refusals(ctx, length); err != nil {
		return err
	}
	c.Refused = micros(u.server, n)
	const pairs = 20_000
	u, err = s.requests(ctx, pairs)
	c.RequestServer = float64(u.memory-tables(pairs, len(s.nodes))) / pairs
	return err
}

// calibrateRenewals measures full commands and commands with one lock each, few and many.
func (s *system) calibrateRenewals(ctx context.Context, c *Constants) error {
	// Memory, with a long TTL: Redis keeps large buffers for connections that are busy.
	h, err := s.hold(ctx, "held", calibrationHolds, ttl, 0)
	if err != nil {
		return err
	}
	c.HoldServer = float64(h.serverBytes-tables(h.n, len(s.nodes))) / float64(h.n)
	c.HoldClient = float64(h.clientBytes) / float64(h.n)
	// On a cluster, a command renews locks of one slot. So give all of them the same.
	if h, err = s.hold(ctx, "{one slot}", calibrationHolds, fullTTL, fullTTL); err != nil {
		return err
	}
	single, err := s.renewSingly(ctx)
	if err != nil {
		return err
	}
	full := float64(h.renewals()) / float64(h.renewing.scripts) // locks in a command
	each := c.each(&h.renewing, h.renewals())
	alone := c.each(&single, single.scripts)
	c.RenewCommandServer = (alone.server - each.server) / (1 - 1/full)
	c.RenewLockServer = alone.server - c.RenewCommandServer
	c.RenewCommandClient = (alone.client - each.client) / (1 - 1/full)
	c.RenewLockClient = alone.client - c.RenewCommandClient
	if len(s.nodes) == 1 {
		return nil
	}
	if h, err = s.hold(ctx, "busy", calibrationBusy, calibrationTTL, 2*calibrationTTL); err != nil {
		return err
	}
	commands := h.renewing.scripts
	locks := float64(h.renewals()) / float64(commands)
	shared := 1 - wakeUps/h.renewing.perSecond(commands) // the share of commands without a wake-up of their own
	busy := c.each(&h.renewing, commands)
	c.WakeUpServer = (c.RenewCommandServer + locks*c.RenewLockServer - busy.server) / shared
	c.WakeUpClient = (c.RenewCommandClient + locks*c.RenewLockClient - busy.client) / shared
	return nil
}

// cost is the processor time of one of something, in microseconds.
type cost struct{ server, client float64 }

// each returns the cost of one of n, without what an idle system costs.
func (c *Constants) each(u *usage, n int64) cost {
	server := micros(u.server, 1) - c.IdleServer*u.took.Seconds()
	client := micros(u.client, 1) - c.IdleClient*u.took.Seconds()
	return cost{server / float64(n), client / float64(n)}
}

// renewSingly measures commands that renew one lock each. On a cluster, a client with one lock in
// each of many slots sends them. On one server, that takes many clients.
func (s *system) renewSingly(ctx context.Context) (usage, error) {
	if len(s.nodes) > 1 {
		h, err := s.hold(ctx, "spread", calibrationSpread, calibrationTTL, 2*calibrationTTL)
		return h.renewing, err
	}
	for i := range calibrationClients {
		c, err := s.openWith(2, primitives.WithDefaults(primitives.WithWatchdog(shortTTL)))
		if err != nil {
			return usage{}, err
		}
		defer c.close()
		hold, err := c.Lock(fmt.Sprint("single", i)).Acquire(ctx)
		if err != nil {
			return usage{}, err
		}
		defer func() { _ = hold.Release(ctx) }()
	}
	return s.run(ctx, func() error { return sleep(ctx, length) })
}

// calibrateWaiting measures a waiter on each of some names, and then ten.
func (s *system) calibrateWaiting(ctx context.Context, c *Constants) error {
	const many = 10
	few, err := s.wait(ctx, calibrationNames, 1, length)
	if err != nil {
		return err
	}
	more, err := s.wait(ctx, calibrationNames, many, length)
	if err != nil {
		return err
	}
	c.WaiterClient = float64(more.clientBytes-few.clientBytes) / (calibrationNames * (many - 1))
	c.NameClient = float64(few.clientBytes)/calibrationNames - c.WaiterClient
	c.NameServer = float64(few.serverBytes) / calibrationNames
	poll := c.each(&few.idle, few.idle.scripts)
	c.PollServer, c.PollClient = poll.server, poll.client
	return nil
}

func (s *system) calibrateHandOff(ctx context.Context, c *Constants) error {
	for _, size := range []struct {
		clients      int
		cost, number *float64
	}{
		{2, &c.PairHandOff, &c.PairHandOffScripts},
		{calibrationCrowd, &c.HandOff, &c.HandOffScripts},
	} {
		crowd, err := s.contendFor(ctx, size.clients, length)
		if err != nil {
			return err
		}
		*size.cost = micros(crowd.usage.server, crowd.handOffs)
		*size.number = float64(crowd.usage.scripts) / float64(crowd.handOffs)
	}
	return nil
}

// tables returns the bytes of n keys with a TTL in Redis's two hash tables, of keys and of
// expiries: 8 bytes for each bucket. Redis doubles a table when it is full. So memory grows in
// steps.
func tables(n, nodes int) int64 {
	buckets := int64(1) << bits.Len(uint(max(n/nodes, 1)-1))
	return int64(nodes) * 2 * 8 * buckets
}

// heldBytes returns the memory of n held locks on the servers.
func (c *Constants) heldBytes(n, nodes int) float64 {
	return c.HoldServer*float64(n) + float64(tables(n, nodes))
}

// renewing returns what n locks cost in a second, if each command renews some of them on average.
func (c *Constants) renewing(n int, ttl time.Duration, each float64) cost {
	renewals := 3 * float64(n) / ttl.Seconds()
	commands := renewals / each
	shared := max(0, commands-wakeUps)
	return cost{
		c.IdleServer + renewals*c.RenewLockServer + commands*c.RenewCommandServer - shared*c.WakeUpServer,
		c.IdleClient + renewals*c.RenewLockClient + commands*c.RenewCommandClient - shared*c.WakeUpClient,
	}
}

// waiting returns what waiters on n names cost one client and the servers in a second.
func (c *Constants) waiting(names int) cost {
	return cost{c.IdleServer + float64(names)*c.PollServer, c.IdleClient + float64(names)*c.PollClient}
}

// handOff returns the server's time and the number of scripts for each hand-off, if that many
// clients make rate of them in a second. Each client that waits also polls.
func (c *Constants) handOff(clients int, rate float64) (server, scripts float64) {
	if clients <= 2 {
		return c.PairHandOff, c.PairHandOffScripts
	}
	polls := float64(clients) / rate
	return c.HandOff + polls*c.PollServer, c.HandOffScripts + polls
}
