package measure

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSpreadOf(t *testing.T) {
	for _, tt := range []struct {
		name   string
		values []float64
		want   Spread
	}{
		{"none", nil, Spread{}},
		{"one", []float64{3}, Spread{3, 3, 3}},
		{"odd", []float64{9, 1, 2}, Spread{2, 1, 9}},
		{"even", []float64{4, 1, 2, 9}, Spread{3, 1, 9}},
	} {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.want, SpreadOf(tt.values)) })
	}
	values := []float64{2, 1}
	SpreadOf(values)
	require.Equal(t, []float64{2, 1}, values, "the argument is not sorted in place")
}

func TestPercentile(t *testing.T) {
	hundred := make([]int64, 100)
	for i := range hundred {
		hundred[i] = int64(i + 1)
	}
	for _, tt := range []struct {
		name   string
		sorted []int64
		p      float64
		want   int64
	}{
		{"none", nil, 50, 0},
		{"of one", []int64{7}, 1, 7},
		{"median", hundred, 50, 50},
		{"99th", hundred, 99, 99},
		{"100th", hundred, 100, 100},
		{"median of three", []int64{1, 2, 3}, 50, 2},
		{"99th of three", []int64{1, 2, 3}, 99, 3},
		{"smallest", hundred, 0.5, 1},
	} {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.want, Percentile(tt.sorted, tt.p)) })
	}
}

func TestJain(t *testing.T) {
	for _, tt := range []struct {
		name   string
		shares []int64
		want   float64
	}{
		{"none", nil, 1},
		{"nothing to share", []int64{0, 0}, 1},
		{"equal", []int64{5, 5, 5, 5}, 1},
		{"all to one of four", []int64{8, 0, 0, 0}, 0.25},
		{"all to two of four", []int64{8, 8, 0, 0}, 0.5},
	} {
		t.Run(tt.name, func(t *testing.T) { require.InDelta(t, tt.want, Jain(tt.shares), 1e-9) })
	}
}

func TestGroupSums(t *testing.T) {
	require.Equal(t, []int64{3, 7, 5}, GroupSums([]int64{1, 2, 3, 4, 5}, 2))
	require.Equal(t, []int64{1, 2}, GroupSums([]int64{1, 2}, 0))
	require.Empty(t, GroupSums([]int64(nil), 3))
}

func TestQuotient(t *testing.T) {
	require.InDelta(t, 0.5, Quotient(int64(1), 2.0), 1e-9)
	require.Zero(t, Quotient(int64(1), int64(0)))
}

const commandstats = "# Commandstats\r\n" +
	"cmdstat_evalsha:calls=40,usec=100,usec_per_call=2.50,rejected_calls=0,failed_calls=3\r\n" +
	"cmdstat_hexists:calls=20,usec=10,usec_per_call=0.50,rejected_calls=0,failed_calls=0\r\n" +
	"cmdstat_script|load:calls=2,usec=10,usec_per_call=5.00,rejected_calls=0,failed_calls=0\r\n" +
	"cmdstat_lpush:calls=7,usec=10,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n" +
	"cmdstat_info:calls=5,usec=10,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n" +
	"cmdstat_broken\r\n"

func TestCallsCountsCommandsOfClients(t *testing.T) {
	calls := ParseCalls(commandstats)
	require.Equal(t, Calls{"evalsha": 40, "hexists": 20, "script|load": 2, "lpush": 7, "info": 5}, calls)
	before := Calls{"evalsha": 30, "hexists": 20, "script|load": 2, "info": 5}
	require.Equal(t, Calls{"evalsha": 10, "lpush": 7}, calls.Since(before))
	require.EqualValues(t, 42, calls.ByClients(), "commands that scripts can call are left out")
	require.EqualValues(t, 49, calls.ByClients("lpush"))
	require.EqualValues(t, 42, calls.ByClients("evalsha"), "no command counts twice")

	require.EqualValues(t, 69, calls.All(), "the observer's own are left out")

	calls.Add(Calls{"evalsha": 2, "cluster|slots": 1, "pubsub|shardnumsub": 1, "command": 1}) // of another node
	require.EqualValues(t, 47, calls.ByClients())
}

func TestParseCPUIgnoresChildren(t *testing.T) {
	const info = "# CPU\r\nused_cpu_sys:1.500000\r\nused_cpu_user:0.250000\r\n" +
		"used_cpu_sys_children:9.0\r\nused_cpu_user_main_thread:7.0\r\n"
	require.Equal(t, 1750*time.Millisecond, ParseCPU(info))
	require.Zero(t, ParseCPU("no such fields"))
}

func TestMemoryCountsLiveObjects(t *testing.T) {
	old := make([]byte, 8<<20)
	before := MemoryNow()
	kept := make([]byte, 8<<20)
	more := MemoryNow().Since(before)
	require.InDelta(t, 8<<20, more.Heap, 1<<20)
	runtime.KeepAlive(old)
	runtime.KeepAlive(kept)
}

func TestCPUGrowsWhileBusy(t *testing.T) {
	if CPU() == 0 {
		t.Skip("processor time is unknown on this system")
	}
	before := CPU()
	for began := time.Now(); time.Since(began) < 20*time.Millisecond; {
	}
	require.Greater(t, CPU()-before, time.Millisecond)
}
