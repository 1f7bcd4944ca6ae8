package report

import (
	"fmt"
	"math"
	"time"
)

// The keys of the metrics.
const (
	Ops           = "ops"
	HandOvers     = "handOvers"
	HandOverTime  = "handOverTime"
	Reads         = "reads"
	Writes        = "writes"
	CommandsPerOp = "commandsPerOp"
	CommandsEach  = "commandsPerHandOver"
	Commands      = "commands"
	AllocsPerOp   = "allocsPerOp"
	CPUPerOp      = "cpuPerOp"
	ServerPerOp   = "serverPerOp"
	CPU           = "cpu"
	WaitP50       = "waitP50"
	WaitP99       = "waitP99"
	WaitMax       = "waitMax"
	HandOverP50   = "handOverP50"
	HandOverP99   = "handOverP99"
	JainWorkers   = "jainWorkers"
	JainClients   = "jainClients"
	Connections   = "connections"
	Subscribers   = "subscribers"
	Drain         = "drain"
	HeapEach      = "heapEach"
	StackEach     = "stackEach"
	GoroutineEach = "goroutinesEach"
	LostHolds     = "lostHolds"
)

// Metric is a quantity that is measured.
type Metric struct {
	Title string // as a column has it
	unit  unit
	less  bool // the less the better
}

// LessIsBetter tells which way the ratio should go.
func (m Metric) LessIsBetter() bool { return m.less }

// Format writes a value down.
func (m Metric) Format(v float64) string { return m.unit(v) }

// MetricOf returns the metric of a key.
func MetricOf(key string) Metric {
	switch key {
	case Ops:
		return Metric{"ops/s", number, false}
	case HandOvers:
		return Metric{"hand-overs/s", number, false}
	case HandOverTime:
		return Metric{"time per hand-over", span, true}
	case Reads:
		return Metric{"reads/s", number, false}
	case Writes:
		return Metric{"writes/s", number, false}
	case CommandsPerOp:
		return Metric{"commands/op", number, true}
	case CommandsEach:
		return Metric{"commands/hand-over", number, true}
	case Commands:
		return Metric{"commands/s", number, true}
	case AllocsPerOp:
		return Metric{"allocs/op", number, true}
	case CPUPerOp:
		return Metric{"client CPU/op", span, true}
	case ServerPerOp:
		return Metric{"server CPU/op", span, true}
	case CPU:
		return Metric{"client CPU, cores", number, true}
	case WaitP50:
		return Metric{"acquire p50", span, true}
	case WaitP99:
		return Metric{"acquire p99", span, true}
	case WaitMax:
		return Metric{"longest wait", span, true}
	case HandOverP50:
		return Metric{"hand-over p50", span, true}
	case HandOverP99:
		return Metric{"hand-over p99", span, true}
	case JainWorkers:
		return Metric{"Jain, goroutines", number, false}
	case JainClients:
		return Metric{"Jain, clients", number, false}
	case Connections:
		return Metric{"connections/client", number, true}
	case Subscribers:
		return Metric{"of these for messages", number, true}
	case Drain:
		return Metric{"drained in", span, true}
	case HeapEach:
		return Metric{"heap each", size, true}
	case StackEach:
		return Metric{"stack each", size, true}
	case GoroutineEach:
		return Metric{"goroutines each", number, true}
	case LostHolds:
		return Metric{"lost", number, true}
	default:
		return Metric{key, number, false}
	}
}

type unit func(v float64) string

// number has three digits at least, as far as they say something.
func number(v float64) string {
	switch abs := math.Abs(v); {
	case v == math.Trunc(v) && abs < 1000:
		return fmt.Sprintf("%.0f", v)
	case abs >= 1000:
		return thousands(fmt.Sprintf("%.0f", v))
	case abs >= 100:
		return fmt.Sprintf("%.0f", v)
	case abs >= 10:
		return fmt.Sprintf("%.1f", v)
	case abs >= 0.01:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.4f", v)
	}
}

func thousands(digits string) string {
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// span is a duration given in nanoseconds.
func span(v float64) string {
	switch d := time.Duration(v); {
	case d >= time.Second:
		return number(v/1e9) + " s"
	case d >= time.Millisecond:
		return number(v/1e6) + " ms"
	default:
		return number(v/1e3) + " µs"
	}
}

func size(v float64) string { return number(v) + " B" }
