package harness

import (
	"cmp"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/bench/internal/contend"
	"github.com/redlatch/redlatch/bench/internal/report"
)

// remoteSpecs returns some of the local workloads in a cluster and over a network.
func remoteSpecs(local []Spec) []Spec {
	network := []string{RoundTrip500us, RoundTrip2ms}
	handOffs := []string{
		report.HandOffs, report.HandOffTime, report.CommandsEach, report.WaitP50, report.WaitP99,
		report.JainWorkers,
	}
	return []Spec{
		elsewhere(local, "W2", Spec{
			ID: "W11", Title: "in a cluster of three masters", Networks: []string{Cluster},
			Rows: []Row{
				{Contender: contend.Floor},
				{Contender: contend.FloorPipelined},
				{Contender: contend.Redlatch},
				{Name: newHandle, Contender: contend.Redlatch, NewHandle: true},
			},
		}),
		elsewhere(local, "W1", Spec{
			ID: "W12", Title: "over a network", Networks: network,
			Rows: []Row{
				{Contender: contend.Floor},
				{Contender: contend.Redlatch},
			},
			Metrics: []string{report.Ops, report.WaitP50, report.WaitP99, report.CommandsPerOp},
		}),
		elsewhere(local, "W3", Spec{
			ID: "W13", Title: "over a network", Networks: network,
			Rows: []Row{
				{Contender: contend.FloorQueue},
				{Contender: contend.FloorHandOff},
				{Contender: contend.Redlatch},
				{Name: cohort, Contender: contend.Redlatch, Primitive: contend.Cohort},
			},
			Metrics: handOffs, Workload: contend.Workload{Duration: longSection},
		}),
		elsewhere(local, "W4", Spec{
			ID: "W14", Title: "over a network", Networks: network,
			Rows: []Row{
				{Contender: contend.FloorBLPOP},
				{Contender: contend.Redlatch},
				{Name: cohort, Contender: contend.Redlatch, Primitive: contend.Cohort},
			},
			Metrics: append(handOffs, report.JainClients), Workload: contend.Workload{Duration: longSection},
		}),
	}
}

// longSection is the duration where a hand-off takes milliseconds.
const longSection = 800 * time.Millisecond

// elsewhere returns s with the workload of a local spec, and with its duration and metrics if s has
// none. The title of s says where.
func elsewhere(local []Spec, id string, s Spec) Spec {
	for _, l := range local {
		if l.ID != id {
			continue
		}
		duration := cmp.Or(s.Workload.Duration, l.Workload.Duration)
		s.Workload, s.Forks = l.Workload, l.Forks
		s.Workload.Duration = duration
		s.Title = fmt.Sprintf("%s %s: %s", id, s.Title, l.Title)
		if s.Metrics == nil {
			s.Metrics = l.Metrics
		}
	}
	return s
}
