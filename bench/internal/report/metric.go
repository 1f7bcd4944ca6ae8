package report

import (
	"fmt"
	"math"
	"time"
)

// The keys of the metrics, as in Figures and in the JSON results.
const (
	Ops           = "ops"
	HandOffs      = "handOffs"
	HandOffTime   = "handOffTime"
	Reads         = "reads"
	Writes        = "writes"
	CommandsPerOp = "commandsPerOp"
	CommandsEach  = "commandsPerHandOff"
	Commands      = "commands"
	ServerCount   = "serverCount"
	AllocsPerOp   = "allocsPerOp"
	CPUPerOp      = "cpuPerOp"
	ServerPerOp   = "serverPerOp"
	CPU           = "cpu"
	WaitP50       = "waitP50"
	WaitP99       = "waitP99"
	WaitMax       = "waitMax"
	HandOffP50    = "handOffP50"
	HandOffP99    = "handOffP99"
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

// Metric describes a measured quantity.
type Metric struct {
	Title        string // column title
	format       func(v float64) string
	lessIsBetter bool
}

// LessIsBetter reports whether a smaller value is better.
func (m Metric) LessIsBetter() bool { return m.lessIsBetter }

// Format formats a value with its unit.
func (m Metric) Format(v float64) string { return m.format(v) }

// MetricOf returns the metric of a key. An unknown key is its own title.
func MetricOf(key string) Metric {
	switch key {
	case Ops:
		return Metric{"ops/s", number, false}
	case HandOffs:
		return Metric{"hand-offs/s", number, false}
	case HandOffTime:
		return Metric{"time per hand-off", duration, true}
	case Reads:
		return Metric{"reads/s", number, false}
	case Writes:
		return Metric{"writes/s", number, false}
	case CommandsPerOp:
		return Metric{"commands/op", number, true}
	case CommandsEach:
		return Metric{"commands/hand-off", number, true}
	case Commands:
		return Metric{"commands/s", number, true}
	case ServerCount:
		return Metric{"Redis's count/s", number, true}
	case AllocsPerOp:
		return Metric{"allocs/op", number, true}
	case CPUPerOp:
		return Metric{"client CPU/op", duration, true}
	case ServerPerOp:
		return Metric{"server CPU/op", duration, true}
	case CPU:
		return Metric{"client CPU, cores", number, true}
	case WaitP50:
		return Metric{"acquire p50", duration, true}
	case WaitP99:
		return Metric{"acquire p99", duration, true}
	case WaitMax:
		return Metric{"acquire max", duration, true}
	case HandOffP50:
		return Metric{"hand-off p50", duration, true}
	case HandOffP99:
		return Metric{"hand-off p99", duration, true}
	case JainWorkers:
		return Metric{"Jain, goroutines", number, false}
	case JainClients:
		return Metric{"Jain, clients", number, false}
	case Connections:
		return Metric{"connections/client", number, true}
	case Subscribers:
		return Metric{"subscribers/client", number, true}
	case Drain:
		return Metric{"drain time", duration, true}
	case HeapEach:
		return Metric{"heap each", size, true}
	case StackEach:
		return Metric{"stack each", size, true}
	case GoroutineEach:
		return Metric{"goroutines each", number, true}
	case LostHolds:
		return Metric{"lost holds", number, true}
	default:
		return Metric{key, number, false}
	}
}

// number formats v with about three significant digits, and large values without decimals.
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

// duration formats v nanoseconds.
func duration(v float64) string {
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
