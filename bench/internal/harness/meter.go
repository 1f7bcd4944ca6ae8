package harness

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/bench/internal/contend"
	"github.com/redlatch/redlatch/bench/internal/measure"
	"github.com/redlatch/redlatch/bench/internal/report"
)

// sample is what the server tells of itself at one instant.
type sample struct {
	at          time.Time
	calls       measure.Calls
	cpu         time.Duration
	connections int64 // without the observer's
	subscribers int64 // of these
}

func take(ctx context.Context, admin *redis.Client) (sample, error) {
	s := sample{at: time.Now()}
	stats, err := admin.Info(ctx, "commandstats", "cpu").Result()
	if err != nil {
		return s, fmt.Errorf("harness: info: %w", err)
	}
	s.calls, s.cpu = measure.ParseCalls(stats), measure.ParseCPU(stats)
	clients, err := admin.ClientList(ctx).Result()
	if err != nil {
		return s, fmt.Errorf("harness: client list: %w", err)
	}
	for line := range strings.Lines(clients) {
		fields := strings.Fields(line)
		if slices.Contains(fields, "cmd=client|list") {
			continue
		}
		s.connections++
		if subscribed(fields) {
			s.subscribers++
		}
	}
	return s, nil
}

func subscribed(fields []string) bool {
	for _, field := range fields {
		for _, kind := range []string{"sub=", "psub=", "ssub="} {
			if n, ok := strings.CutPrefix(field, kind); ok && n != "0" {
				return true
			}
		}
	}
	return false
}

// span is what happened between two samples.
type span struct {
	commands int64
	cpu      time.Duration // of the server
	took     time.Duration
}

func between(a, b sample, commands []string) span {
	return span{b.calls.Since(a.calls).ByClients(commands...), b.cpu - a.cpu, b.at.Sub(a.at)}
}

func (s span) perSecond() float64 { return measure.Quotient(s.commands, s.took.Seconds()) }

// observation is all that is known of one measurement.
type observation struct {
	w      contend.Workload
	result contend.Result
	run    span   // from before Run until after it
	idle   span   // Crowd: while all wait
	end    sample // Crowd: before the release; else after Run
}

// figures makes metrics of it. Those that say nothing are left out.
func (o observation) figures() report.Figures {
	switch o.w.Kind {
	case contend.Crowd:
		return o.ofCrowd()
	case contend.Holds:
		return o.ofHolds()
	default:
		return o.ofSection()
	}
}

func (o observation) ofSection() report.Figures {
	r, f := o.result, report.Figures{}
	seconds := r.Elapsed.Seconds()
	f[report.Ops] = measure.Quotient(r.Ops, seconds)
	f[report.HandOvers] = measure.Quotient(r.HandOvers, seconds)
	f[report.HandOverTime] = measure.Quotient(int64(r.Elapsed), r.HandOvers)
	if o.w.Primitive == contend.RW {
		f[report.Reads] = measure.Quotient(r.Reads, seconds)
		f[report.Writes] = measure.Quotient(r.Ops-r.Reads, seconds)
	}
	f[report.CommandsPerOp] = measure.Quotient(o.run.commands, r.AllOps)
	f[report.CommandsEach] = measure.Quotient(o.run.commands, r.AllHandOvers)
	f[report.Commands] = o.run.perSecond()
	if r.Allocs > 0 {
		f[report.AllocsPerOp] = measure.Quotient(r.Allocs, r.AllOps)
	}
	f[report.CPUPerOp] = measure.Quotient(int64(r.CPU), r.AllOps)
	f[report.ServerPerOp] = measure.Quotient(int64(o.run.cpu), r.AllOps)
	o.waits(f)
	if len(r.HandOverTimes) > 0 {
		slices.Sort(r.HandOverTimes)
		f[report.HandOverP50] = float64(measure.Percentile(r.HandOverTimes, 50))
		f[report.HandOverP99] = float64(measure.Percentile(r.HandOverTimes, 99))
	}
	f[report.JainWorkers] = measure.Jain(r.PerWorker)
	f[report.JainClients] = measure.Jain(measure.GroupSums(r.PerWorker, o.w.Goroutines))
	o.network(f, o.w.Clients)
	return f
}

func (o observation) waits(f report.Figures) {
	waits := o.result.Waits
	if len(waits) == 0 {
		return
	}
	slices.Sort(waits)
	f[report.WaitP50] = float64(measure.Percentile(waits, 50))
	f[report.WaitP99] = float64(measure.Percentile(waits, 99))
	f[report.WaitMax] = float64(waits[len(waits)-1])
}

func (o observation) network(f report.Figures, clients int) {
	f[report.Connections] = measure.Quotient(o.end.connections, int64(clients))
	f[report.Subscribers] = measure.Quotient(o.end.subscribers, int64(clients))
}

func (o observation) ofCrowd() report.Figures {
	r, f := o.result, report.Figures{}
	f[report.Drain] = float64(r.Drain)
	f[report.Commands] = o.idle.perSecond()
	f[report.CommandsPerOp] = measure.Quotient(o.run.commands-o.idle.commands, r.AllOps)
	o.waits(f)
	o.network(f, o.w.Clients) // the holder's client has few
	o.each(f, o.w.Workers())
	return f
}

func (o observation) ofHolds() report.Figures {
	r, f := o.result, report.Figures{}
	f[report.Commands] = o.run.perSecond()
	f[report.CPU] = measure.Quotient(int64(r.CPU), int64(r.Elapsed))
	f[report.LostHolds] = float64(r.LostHolds)
	o.each(f, o.w.Keys)
	return f
}

// each is what one of n waiters or holds takes.
func (o observation) each(f report.Figures, n int) {
	if o.result.Heap <= 0 { // it does not tell, or cannot
		return
	}
	f[report.HeapEach] = measure.Quotient(o.result.Heap, int64(n))
	if o.result.Stack > 0 {
		f[report.StackEach] = measure.Quotient(o.result.Stack, int64(n))
	}
	f[report.GoroutineEach] = measure.Quotient(o.result.Goroutines, int64(n))
}
