package harness

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/bench/internal/contend"
	"github.com/redlatch/redlatch/bench/internal/measure"
	"github.com/redlatch/redlatch/bench/internal/report"
	"github.com/redlatch/redlatch/bench/internal/workload"
)

// sample is the statistics of the server, or of all nodes of a cluster, at one instant.
type sample struct {
	at          time.Time
	calls       measure.Calls
	cpu         time.Duration
	connections int64 // without the observer's own
	subscribers int64 // connections with a subscription
}

func takeSample(ctx context.Context, admins []*redis.Client) (sample, error) {
	s := sample{at: time.Now(), calls: measure.Calls{}}
	for _, admin := range admins {
		if err := s.add(ctx, admin); err != nil {
			return s, err
		}
	}
	return s, nil
}

// add adds the statistics of one server.
func (s *sample) add(ctx context.Context, admin *redis.Client) error {
	stats, err := admin.Info(ctx, "commandstats", "cpu").Result()
	if err != nil {
		return fmt.Errorf("harness: info: %w", err)
	}
	s.calls.Add(measure.ParseCalls(stats))
	s.cpu += measure.ParseCPU(stats)
	clients, err := admin.ClientList(ctx).Result()
	if err != nil {
		return fmt.Errorf("harness: client list: %w", err)
	}
	for line := range strings.Lines(clients) {
		fields := strings.Fields(line)
		if slices.Contains(fields, "cmd=client|list") { // the observer itself
			continue
		}
		s.connections++
		if hasSubscription(fields) {
			s.subscribers++
		}
	}
	return nil
}

func hasSubscription(fields []string) bool {
	for _, field := range fields {
		for _, kind := range []string{"sub=", "psub=", "ssub="} {
			if n, ok := strings.CutPrefix(field, kind); ok && n != "0" {
				return true
			}
		}
	}
	return false
}

// interval is the server's activity between two samples.
type interval struct {
	commands int64 // sent by clients
	counted  int64 // by Redis, which also counts what scripts call
	cpu      time.Duration
	took     time.Duration
}

func between(a, b sample, commands []string) interval {
	calls := b.calls.Since(a.calls)
	return interval{calls.ByClients(commands...), calls.All(), b.cpu - a.cpu, b.at.Sub(a.at)}
}

func (i interval) commandsPerSecond() float64 {
	return measure.Quotient(i.commands, i.took.Seconds())
}

// observation is the raw data of one measurement.
type observation struct {
	w      contend.Workload
	result contend.Result
	run    interval // from before Run until after it
	idle   interval // Crowd: while all workers wait
	end    sample   // Crowd: before the release; else after Run
}

// sampleLead is the time from the sample to the end of a crowd's wait. It keeps the release out of
// the sample.
const sampleLead = 250 * time.Millisecond

// observe runs the session and samples the server before and after. commands is Contender.Commands.
func (o *observation) observe(
	ctx context.Context, admins []*redis.Client, session contend.Session, commands []string,
) error {
	runtime.GC()
	before, err := takeSample(ctx, admins)
	if err != nil {
		return err
	}
	// A crowd waits for Duration. Sample it shortly before the release.
	idle := make(chan error, 1)
	if o.w.Kind == contend.Crowd {
		go func() {
			time.Sleep(o.w.Duration - sampleLead)
			sample, err := takeSample(ctx, admins)
			o.idle, o.end = between(before, sample, commands), sample // read after <-idle
			idle <- err
		}()
	}
	o.result, err = session.Run(ctx, o.w)
	if o.w.Kind == contend.Crowd {
		err = errors.Join(err, <-idle)
	}
	if err != nil {
		return err
	}
	after, err := takeSample(ctx, admins)
	if err != nil {
		return err
	}
	o.run = between(before, after, commands)
	o.run.commands += o.result.Unseen
	switch o.w.Kind {
	case contend.Section:
		o.end = after
	case contend.Holds:
		return o.countMissingKeys(ctx, admins[0])
	case contend.Crowd: // end is set above
	}
	return nil
}

// countMissingKeys counts, on a single server, holds without a key as lost, in case the contender
// did not notice.
func (o *observation) countMissingKeys(ctx context.Context, admin *redis.Client) error {
	const perCommand = 1000
	var present int64
	for first := 0; first < o.w.Keys; first += perCommand {
		var names []string
		for i := first; i < min(first+perCommand, o.w.Keys); i++ {
			names = append(names, workload.KeyOf(o.w, i))
		}
		n, err := admin.Exists(ctx, names...).Result()
		if err != nil {
			return fmt.Errorf("harness: exists: %w", err)
		}
		present += n
	}
	o.result.LostHolds = max(o.result.LostHolds, o.w.Keys-int(present))
	return nil
}

// figures computes the metrics. Metrics that do not apply are left out.
func (o observation) figures() report.Figures {
	f := report.Figures{}
	switch o.w.Kind {
	case contend.Crowd:
		o.addCrowd(f)
	case contend.Holds:
		o.addHolds(f)
	default:
		o.addSection(f)
	}
	return f
}

func (o observation) addSection(f report.Figures) {
	r := o.result
	seconds := r.Elapsed.Seconds()
	f[report.Ops] = measure.Quotient(r.Ops, seconds)
	f[report.HandOffs] = measure.Quotient(r.HandOffs, seconds)
	f[report.HandOffTime] = measure.Quotient(int64(r.Elapsed), r.HandOffs)
	if o.w.Primitive == contend.RW {
		f[report.Reads] = measure.Quotient(r.Reads, seconds)
		f[report.Writes] = measure.Quotient(r.Ops-r.Reads, seconds)
	}
	// Commands, allocations and processor time are counted until Run returns, so divide by all ops.
	f[report.CommandsPerOp] = measure.Quotient(o.run.commands, r.AllOps)
	f[report.CommandsEach] = measure.Quotient(o.run.commands, r.AllHandOffs)
	f[report.Commands] = o.run.commandsPerSecond()
	if r.Allocs > 0 {
		f[report.AllocsPerOp] = measure.Quotient(r.Allocs, r.AllOps)
	}
	f[report.CPUPerOp] = measure.Quotient(int64(r.CPU), r.AllOps)
	f[report.ServerPerOp] = measure.Quotient(int64(o.run.cpu), r.AllOps)
	o.addWaits(f)
	if len(r.HandOffTimes) > 0 {
		slices.Sort(r.HandOffTimes)
		f[report.HandOffP50] = float64(measure.Percentile(r.HandOffTimes, 50))
		f[report.HandOffP99] = float64(measure.Percentile(r.HandOffTimes, 99))
	}
	f[report.JainWorkers] = measure.Jain(r.PerWorker)
	f[report.JainClients] = measure.Jain(measure.GroupSums(r.PerWorker, o.w.Goroutines))
	o.addConnections(f)
}

func (o observation) addCrowd(f report.Figures) {
	f[report.Drain] = float64(o.result.Drain)
	f[report.Commands] = o.idle.commandsPerSecond()
	f[report.ServerCount] = measure.Quotient(o.idle.counted, o.idle.took.Seconds())
	f[report.CommandsPerOp] = measure.Quotient(o.run.commands-o.idle.commands, o.result.AllOps)
	o.addWaits(f)
	o.addConnections(f) // includes the few connections of the holder's client
	o.addMemory(f, o.w.Workers())
}

func (o observation) addHolds(f report.Figures) {
	f[report.Commands] = o.run.commandsPerSecond()
	f[report.CPU] = measure.Quotient(int64(o.result.CPU), int64(o.result.Elapsed))
	f[report.LostHolds] = float64(o.result.LostHolds)
	o.addMemory(f, o.w.Keys)
}

func (o observation) addWaits(f report.Figures) {
	waits := o.result.Waits
	if len(waits) == 0 {
		return
	}
	slices.Sort(waits)
	f[report.WaitP50] = float64(measure.Percentile(waits, 50))
	f[report.WaitP99] = float64(measure.Percentile(waits, 99))
	f[report.WaitMax] = float64(waits[len(waits)-1])
}

func (o observation) addConnections(f report.Figures) {
	f[report.Connections] = measure.Quotient(o.end.connections, int64(o.w.Clients))
	f[report.Subscribers] = measure.Quotient(o.end.subscribers, int64(o.w.Clients))
}

// addMemory adds the memory of each of n waiters or holds.
func (o observation) addMemory(f report.Figures, n int) {
	if o.result.Heap <= 0 { // unknown, or smaller than the noise
		return
	}
	f[report.HeapEach] = measure.Quotient(o.result.Heap, int64(n))
	if o.result.Stack > 0 {
		f[report.StackEach] = measure.Quotient(o.result.Stack, int64(n))
	}
	f[report.GoroutineEach] = measure.Quotient(o.result.Goroutines, int64(n))
}
