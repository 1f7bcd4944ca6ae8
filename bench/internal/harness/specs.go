// Package harness measures: it has the workloads, runs every contender in each round, and makes figures of what they did.
package harness

import (
	"time"

	"github.com/redlatch/redlatch/bench/internal/contend"
	"github.com/redlatch/redlatch/bench/internal/report"
)

// Row is a contender's part in a workload.
type Row struct {
	Name      string // as it is shown; "": the contender's
	Contender string
	Primitive contend.Primitive // if not the workload's
	Base      string            // the row that it is compared with; "": the first
	Waiters   int               // Goroutines of each client, if not the workload's
}

// Spec is a workload, and who takes part.
type Spec struct {
	ID       string
	Title    string
	Workload contend.Workload
	Rows     []Row
	Metrics  []string // that matter; the first is compared
	Slow     bool     // half the rounds will do
	Forks    bool     // a process for each client makes sense
}

// Names of rows that are not contenders'.
const (
	fair      = "redlatch fair"
	semaphore = "redlatch semaphore"
	permits   = "redlatch permits"
)

// Specs returns the workloads. With long, W6 is of full size.
func Specs(long bool) []Spec {
	const section = 500 * time.Millisecond
	w6 := contend.Workload{Kind: contend.Holds, Primitive: contend.Lock, Clients: 1, Goroutines: 64, Keys: 5000, TTL: 3 * time.Second, Duration: 5 * time.Second}
	w6Title := "5,000 locks held, renewed with a TTL of 3 s, watched for 5 s; the floor renews 100 by each EVALSHA"
	if long {
		w6.Keys, w6.TTL, w6.Duration = 50_000, 30*time.Second, 35*time.Second
		w6Title = "50,000 locks held, renewed with a TTL of 30 s, watched for 35 s; the floor renews 100 by each EVALSHA"
	}
	const tens, tenThousands = "redlatch fair, 10 wait", "redlatch fair, 10,000 wait"
	const javaTens, javaThousand = "redisson fair, 10 wait", "redisson fair, 1,000 wait" // with 10,000 it runs out of subscriptions
	return []Spec{
		{
			ID: "W1", Title: "one goroutine acquires and releases a free lock; the floor is two EVALSHA",
			Workload: contend.Workload{Kind: contend.Section, Primitive: contend.Lock, Keys: 1, Clients: 1, Goroutines: 1, Duration: section},
			Rows:     []Row{{Contender: contend.Floor}, {Contender: contend.Redlatch}, {Contender: contend.BSM}, {Contender: contend.Redsync}, {Contender: contend.Redisson}},
			Metrics:  []string{report.Ops, report.WaitP50, report.WaitP99, report.CommandsPerOp, report.AllocsPerOp, report.CPUPerOp, report.ServerPerOp},
		},
		{
			ID: "W2", Title: "64 goroutines, each with a free lock of its own, on one client; the floor is two EVALSHA",
			Workload: contend.Workload{Kind: contend.Section, Primitive: contend.Lock, Keys: 64, Clients: 1, Goroutines: 64, Duration: section},
			Rows: []Row{
				{Contender: contend.Floor}, {Contender: contend.FloorPipelined}, {Contender: contend.Redlatch}, {Contender: contend.BSM},
				{Contender: contend.Redsync}, {Contender: contend.Redisson},
			},
			Metrics: []string{report.Ops, report.WaitP50, report.WaitP99, report.CommandsPerOp, report.AllocsPerOp, report.CPUPerOp, report.ServerPerOp, report.Connections},
		},
		{
			ID: "W3", Title: "100 goroutines of one client want one lock; the floor is a queue in the process and two EVALSHA", Forks: true,
			Workload: contend.Workload{Kind: contend.Section, Primitive: contend.Lock, Keys: 1, Clients: 1, Goroutines: 100, Duration: section},
			Rows: []Row{
				{Contender: contend.FloorQueue}, {Contender: contend.FloorHandOver}, {Contender: contend.Redlatch}, {Name: fair, Contender: contend.Redlatch, Primitive: contend.Fair},
				{Contender: contend.BSM}, {Contender: contend.Redsync}, {Contender: contend.Redisson},
			},
			Metrics: contended(report.JainWorkers),
		},
		{
			ID: "W4", Title: "8 clients of 8 goroutines want one lock; the floor is a token in a list, BLPOP and LPUSH", Forks: true,
			Workload: contend.Workload{Kind: contend.Section, Primitive: contend.Lock, Keys: 1, Clients: 8, Goroutines: 8, Duration: section},
			Rows: []Row{
				{Contender: contend.FloorBLPOP}, {Contender: contend.FloorPubsub}, {Contender: contend.Redlatch},
				{Name: fair, Contender: contend.Redlatch, Primitive: contend.Fair}, {Contender: contend.BSM}, {Contender: contend.Redsync},
				{Contender: contend.Redisson},
			},
			Metrics: contended(report.JainWorkers, report.JainClients),
		},
		{
			ID: "W5", Title: "1,000 goroutines of 8 clients wait for a lock that is held, then all have it; the floor waits once a client, by pub/sub", Slow: true, Forks: true,
			Workload: contend.Workload{Kind: contend.Crowd, Primitive: contend.Lock, Keys: 1, Clients: 8, Goroutines: 125, Duration: 2*time.Second + ahead}, // whole seconds are watched: who looks once a second does it as often
			Rows:     []Row{{Contender: contend.FloorPubsub}, {Contender: contend.Redlatch}, {Name: fair, Contender: contend.Redlatch, Primitive: contend.Fair}, {Contender: contend.BSM}, {Contender: contend.Redsync}, {Contender: contend.Redisson}},
			Metrics:  []string{report.Drain, report.Commands, report.HeapEach, report.StackEach, report.GoroutineEach, report.Connections, report.Subscribers, report.CommandsPerOp},
		},
		{
			ID: "W6", Title: w6Title, Slow: true, Workload: w6,
			Rows:    []Row{{Contender: contend.FloorBatches}, {Contender: contend.Redlatch}, {Contender: contend.Redisson}},
			Metrics: []string{report.Commands, report.CPU, report.HeapEach, report.GoroutineEach, report.LostHolds},
		},
		{
			ID: "W7", Title: "from the release on one client until a waiter on another has it; the floor is PUBLISH, the message, EVALSHA", Forks: true,
			Workload: contend.Workload{
				Kind: contend.Section, Primitive: contend.Lock, Keys: 1, Clients: 2, Goroutines: 1, Turns: true, Inside: time.Millisecond, Duration: time.Second,
			},
			Rows: []Row{
				{Contender: contend.FloorPublish}, {Contender: contend.Redlatch}, {Name: fair, Contender: contend.Redlatch, Primitive: contend.Fair},
				{Contender: contend.BSM}, {Contender: contend.Redsync}, {Contender: contend.Redisson},
			},
			Metrics: []string{report.HandOverP50, report.HandOverP99, report.HandOvers, report.CommandsEach},
		},
		{
			ID: "W8", Title: "a read-write lock, 4 clients of 8 goroutines, 90 % reads, 200 µs inside; the floor waits once a client, by pub/sub", Forks: true,
			Workload: contend.Workload{Kind: contend.Section, Primitive: contend.RW, Keys: 1, Clients: 4, Goroutines: 8, Reads: 90, Inside: 200 * time.Microsecond, Duration: section},
			Rows:     []Row{{Contender: contend.FloorPubsub}, {Contender: contend.Redlatch}, {Contender: contend.Redisson}},
			Metrics:  []string{report.Ops, report.Reads, report.Writes, report.CommandsPerOp, report.WaitP50, report.WaitP99, report.WaitMax, report.JainWorkers},
		},
		{
			ID: "W9", Title: "a semaphore of 8, 4 clients of 16 goroutines, 200 µs inside; the floor is 8 tokens in a list, BLPOP and LPUSH", Forks: true,
			Workload: contend.Workload{
				Kind: contend.Section, Primitive: contend.Semaphore, Keys: 1, Clients: 4, Goroutines: 16, Permits: 8, Inside: 200 * time.Microsecond, Duration: section,
			},
			Rows: []Row{
				{Contender: contend.FloorBLPOP}, {Name: semaphore, Contender: contend.Redlatch}, {Name: permits, Contender: contend.Redlatch, Primitive: contend.Permits},
				{Name: "redisson semaphore", Contender: contend.Redisson}, {Name: "redisson permits", Contender: contend.Redisson, Primitive: contend.Permits},
			},
			Metrics: []string{report.Ops, report.CommandsPerOp, report.AllocsPerOp, report.WaitP50, report.WaitP99, report.WaitMax, report.JainWorkers, report.JainClients},
		},
		{
			ID: "W10", Title: "a fair lock with few and with many waiters, on 2 clients; compared with few", Slow: true,
			Workload: contend.Workload{Kind: contend.Section, Primitive: contend.Fair, Keys: 1, Clients: 2, Goroutines: 5, Queued: true, Duration: section},
			Rows: []Row{
				{Name: tens, Contender: contend.Redlatch, Waiters: 5}, {Name: tenThousands, Contender: contend.Redlatch, Waiters: 5000},
				{Name: javaTens, Contender: contend.Redisson, Waiters: 5, Base: javaTens}, {Name: javaThousand, Contender: contend.Redisson, Waiters: 500, Base: javaTens},
			},
			Metrics: []string{report.HandOverTime, report.HandOvers, report.CommandsEach},
		},
	}
}

// contended is what matters where many want one lock.
func contended(shares ...string) []string {
	return append([]string{
		report.HandOvers, report.Ops, report.CommandsEach, report.Commands, report.AllocsPerOp, report.CPUPerOp, report.ServerPerOp, report.WaitP50, report.WaitP99, report.WaitMax,
	}, shares...)
}
