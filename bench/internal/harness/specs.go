// Package harness runs the workloads: each contender once per round, on an empty server. It
// computes the figures of each measurement.
package harness

import (
	"slices"
	"time"

	"github.com/redlatch/redlatch/bench/internal/contend"
	"github.com/redlatch/redlatch/bench/internal/report"
)

// Row is a contender in a workload.
type Row struct {
	Name      string // shown in the report; "": the contender's name
	Contender string
	Primitive contend.Primitive // "": the workload's
	Base      string            // name of the row to compare with; "": the first row
	Waiters   int               // goroutines per client; 0: the workload's
	NewHandle bool              // a new handle for each acquisition
}

// Spec is a workload and its contenders.
type Spec struct {
	ID       string
	Title    string // a floor is named after a semicolon
	Workload contend.Workload
	Rows     []Row
	Metrics  []string // keys of the metrics to show; ratios are of the first
	Networks []string // of all rows; nil: as the run is configured
	Slow     bool     // runs half the rounds
	// Forks: can run with a process per client. W2 and its like cannot: each worker has a key of
	// its own, and so has its guard, which other processes do not see.
	Forks bool
}

// Names of rows that share a contender.
const (
	fair      = "redlatch fair"
	cohort    = "redlatch cohort"     // WithCohort(5ms)
	linger    = "redlatch linger"     // WithLinger(5ms)
	newHandle = "redlatch new handle" // for each acquisition
	semaphore = "redlatch semaphore"
	permits   = "redlatch permits"

	redissonSemaphore = "redisson semaphore"
	redissonPermits   = "redisson permits"

	fair10    = "redlatch fair, 10 wait"
	fair10000 = "redlatch fair, 10,000 wait"

	redissonFair10   = "redisson fair, 10 wait"
	redissonFair1000 = "redisson fair, 1,000 wait" // it runs out of subscriptions with 10,000
)

const sectionDuration = 500 * time.Millisecond

// Specs returns the workloads. If long is set, W6 has its full size.
func Specs(long bool) []Spec {
	local := localSpecs(long)
	return slices.Concat(local, remoteSpecs(local), repeatedSpecs())
}

// repeatedSpecs returns workloads of one goroutine that acquires and releases again and again,
// beside W1.
func repeatedSpecs() []Spec {
	workload := contend.Workload{
		Kind: contend.Section, Primitive: contend.Linger, Keys: 1, Clients: 1, Goroutines: 1,
		Duration: sectionDuration,
	}
	metrics := []string{
		report.Ops, report.WaitP50, report.WaitP99, report.CommandsPerOp, report.AllocsPerOp, report.CPUPerOp,
		report.ServerPerOp,
	}
	three := workload
	three.Primitive = contend.Three
	return []Spec{
		{
			ID:       "W15",
			Title:    "W1 with a lock that lingers at its client for 5 ms; go-redis alone: two EVALSHA",
			Workload: workload, Metrics: metrics, Forks: true,
			Rows: []Row{
				{Contender: contend.Floor, Primitive: contend.Lock},
				{Name: linger, Contender: contend.Redlatch},
				{Contender: contend.BSM, Primitive: contend.Lock},
			},
		},
		{
			ID:       "W16",
			Title:    "one goroutine acquires and releases three free locks at once; go-redis alone: two EVALSHA",
			Workload: three, Metrics: metrics, Forks: true,
			Rows: []Row{
				{Contender: contend.Floor},
				{Contender: contend.Redlatch},
				{Name: newHandle, Contender: contend.Redlatch, NewHandle: true},
				{Contender: contend.BSM},
			},
		},
	}
}

// localSpecs returns the workloads on a single server on this machine.
func localSpecs(long bool) []Spec {
	w6 := contend.Workload{
		Kind: contend.Holds, Primitive: contend.Lock, Keys: 5000, Clients: 1, Goroutines: 64,
		TTL: 3 * time.Second, Duration: 5 * time.Second,
	}
	w6Title := "5,000 locks held for 5 s and renewed with a TTL of 3 s; go-redis alone: 100 locks per EVALSHA"
	if long {
		w6.Keys, w6.TTL, w6.Duration = 50_000, 30*time.Second, 35*time.Second
		w6Title = "50,000 locks held for 35 s and renewed with a TTL of 30 s; go-redis alone: 100 locks per EVALSHA"
	}
	contended := []string{
		report.HandOffs, report.Ops, report.CommandsEach, report.Commands, report.AllocsPerOp,
		report.CPUPerOp, report.ServerPerOp, report.WaitP50, report.WaitP99, report.WaitMax, report.JainWorkers,
	}
	return []Spec{
		{
			ID: "W1", Title: "one goroutine acquires and releases a free lock; go-redis alone: two EVALSHA",
			Forks: true,
			Workload: contend.Workload{
				Kind: contend.Section, Primitive: contend.Lock, Keys: 1, Clients: 1, Goroutines: 1,
				Duration: sectionDuration,
			},
			Rows: []Row{
				{Contender: contend.Floor},
				{Contender: contend.Redlatch},
				{Name: newHandle, Contender: contend.Redlatch, NewHandle: true},
				{Contender: contend.BSM},
				{Contender: contend.Redsync},
				{Contender: contend.Rueidis},
				{Contender: contend.Redisson},
			},
			Metrics: []string{
				report.Ops, report.WaitP50, report.WaitP99, report.CommandsPerOp,
				report.AllocsPerOp, report.CPUPerOp, report.ServerPerOp,
			},
		},
		{
			ID: "W2", Title: "64 goroutines of one client, each with its own free lock; go-redis alone: two EVALSHA",
			Workload: contend.Workload{
				Kind: contend.Section, Primitive: contend.Lock, Keys: 64, Clients: 1, Goroutines: 64,
				Duration: sectionDuration,
			},
			Rows: []Row{
				{Contender: contend.Floor},
				{Contender: contend.FloorPipelined},
				{Contender: contend.Redlatch},
				{Name: newHandle, Contender: contend.Redlatch, NewHandle: true},
				{Contender: contend.BSM},
				{Contender: contend.Redsync},
				{Contender: contend.Rueidis},
				{Contender: contend.Redisson},
			},
			Metrics: []string{
				report.Ops, report.WaitP50, report.WaitP99, report.CommandsPerOp,
				report.AllocsPerOp, report.CPUPerOp, report.ServerPerOp, report.Connections,
			},
		},
		{
			ID: "W3",
			Title: "100 goroutines of one client contend for one lock; " +
				"go-redis alone: a queue in the process and two EVALSHA",
			Forks: true,
			Workload: contend.Workload{
				Kind: contend.Section, Primitive: contend.Lock, Keys: 1, Clients: 1, Goroutines: 100,
				Duration: sectionDuration,
			},
			Rows: []Row{
				{Contender: contend.FloorQueue},
				{Contender: contend.FloorHandOff},
				{Contender: contend.Redlatch},
				{Name: cohort, Contender: contend.Redlatch, Primitive: contend.Cohort},
				{Name: fair, Contender: contend.Redlatch, Primitive: contend.Fair},
				{Contender: contend.BSM},
				{Contender: contend.Redsync},
				{Contender: contend.Rueidis},
				{Contender: contend.Redisson},
			},
			Metrics: contended,
		},
		{
			ID: "W4",
			Title: "8 clients with 8 goroutines each contend for one lock; " +
				"go-redis alone: a token in a list, BLPOP and LPUSH",
			Forks: true,
			Workload: contend.Workload{
				Kind: contend.Section, Primitive: contend.Lock, Keys: 1, Clients: 8, Goroutines: 8,
				Duration: sectionDuration,
			},
			Rows: []Row{
				{Contender: contend.FloorBLPOP},
				{Contender: contend.FloorPubsub},
				{Contender: contend.Redlatch},
				{Name: cohort, Contender: contend.Redlatch, Primitive: contend.Cohort},
				{Name: fair, Contender: contend.Redlatch, Primitive: contend.Fair},
				{Contender: contend.BSM},
				{Contender: contend.Redsync},
				{Contender: contend.Rueidis},
				{Contender: contend.Redisson},
			},
			Metrics: slices.Concat(contended, []string{report.JainClients}),
		},
		{
			ID: "W5",
			Title: "1,000 goroutines of 8 clients wait for a held lock, then each acquires it; " +
				"go-redis alone: one waiter per client, by pub/sub",
			Slow: true, Forks: true,
			Workload: contend.Workload{
				Kind: contend.Crowd, Primitive: contend.Lock, Keys: 1, Clients: 8, Goroutines: 125,
				// The sample covers whole seconds, so that one command a second always counts
				// twice.
				Duration: 2*time.Second + sampleLead,
			},
			Rows: []Row{
				{Contender: contend.FloorPubsub},
				{Contender: contend.Redlatch},
				{Name: fair, Contender: contend.Redlatch, Primitive: contend.Fair},
				{Contender: contend.BSM},
				{Contender: contend.Redsync},
				{Contender: contend.Rueidis},
				{Contender: contend.Redisson},
			},
			Metrics: []string{
				report.Drain, report.Commands, report.ServerCount, report.HeapEach, report.StackEach, report.GoroutineEach,
				report.Connections, report.Subscribers, report.CommandsPerOp,
			},
		},
		{
			ID: "W6", Title: w6Title, Slow: true,
			Workload: w6,
			Rows: []Row{
				{Contender: contend.FloorBatches},
				{Contender: contend.Redlatch},
				{Contender: contend.Redisson},
			},
			Metrics: []string{report.Commands, report.CPU, report.HeapEach, report.GoroutineEach, report.LostHolds},
		},
		{
			ID: "W7",
			Title: "from the release on one client to the acquisition on another; " +
				"go-redis alone: PUBLISH, the message and one EVALSHA",
			Forks: true,
			Workload: contend.Workload{
				Kind: contend.Section, Primitive: contend.Lock, Keys: 1, Clients: 2, Goroutines: 1,
				Turns: true, Inside: time.Millisecond, Duration: time.Second,
			},
			Rows: []Row{
				{Contender: contend.FloorPublish},
				{Contender: contend.Redlatch},
				{Name: fair, Contender: contend.Redlatch, Primitive: contend.Fair},
				{Contender: contend.BSM},
				{Contender: contend.Redsync},
				{Contender: contend.Rueidis},
				{Contender: contend.Redisson},
			},
			Metrics: []string{report.HandOffP50, report.HandOffP99, report.HandOffs, report.CommandsEach},
		},
		{
			ID: "W8",
			Title: "a read-write lock, 4 clients with 8 goroutines each, 90 % reads, 200 µs per section; " +
				"go-redis alone: one waiter per client, by pub/sub",
			Forks: true,
			Workload: contend.Workload{
				Kind: contend.Section, Primitive: contend.RW, Keys: 1, Clients: 4, Goroutines: 8,
				Reads: 90, Inside: 200 * time.Microsecond, Duration: sectionDuration,
			},
			Rows: []Row{
				{Contender: contend.FloorPubsub},
				{Contender: contend.Redlatch},
				{Contender: contend.Redisson},
			},
			Metrics: []string{
				report.Ops, report.Reads, report.Writes, report.CommandsPerOp,
				report.WaitP50, report.WaitP99, report.WaitMax, report.JainWorkers,
			},
		},
		{
			ID: "W9",
			Title: "a semaphore with 8 permits, 4 clients with 16 goroutines each, 200 µs per section; " +
				"go-redis alone: 8 tokens in a list, BLPOP and LPUSH",
			Forks: true,
			Workload: contend.Workload{
				Kind: contend.Section, Primitive: contend.Semaphore, Keys: 1, Clients: 4, Goroutines: 16,
				Permits: 8, Inside: 200 * time.Microsecond, Duration: sectionDuration,
			},
			Rows: []Row{
				{Contender: contend.FloorBLPOP},
				{Name: semaphore, Contender: contend.Redlatch},
				{Name: permits, Contender: contend.Redlatch, Primitive: contend.Permits},
				{Name: redissonSemaphore, Contender: contend.Redisson},
				{Name: redissonPermits, Contender: contend.Redisson, Primitive: contend.Permits},
			},
			Metrics: []string{
				report.Ops, report.CommandsPerOp, report.AllocsPerOp,
				report.WaitP50, report.WaitP99, report.WaitMax, report.JainWorkers, report.JainClients,
			},
		},
		{
			ID:    "W10",
			Title: "a fair lock with few and with many waiters, on 2 clients; the base has few waiters",
			Slow:  true,
			Workload: contend.Workload{
				Kind: contend.Section, Primitive: contend.Fair, Keys: 1, Clients: 2, Goroutines: 5,
				Queued: true, Duration: sectionDuration,
			},
			Rows: []Row{
				{Name: fair10, Contender: contend.Redlatch, Waiters: 5},
				{Name: fair10000, Contender: contend.Redlatch, Waiters: 5000},
				{Name: redissonFair10, Contender: contend.Redisson, Waiters: 5, Base: redissonFair10},
				{Name: redissonFair1000, Contender: contend.Redisson, Waiters: 500, Base: redissonFair10},
			},
			Metrics: []string{report.HandOffTime, report.HandOffs, report.CommandsEach},
		},
	}
}
