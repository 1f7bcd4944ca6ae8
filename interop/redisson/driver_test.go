package redisson

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

var shared Shared

func TestMain(m *testing.M) {
	code := redistest.Main(m)
	err := errors.Join(shared.Close(), goleak.Find())
	if err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func client(t *testing.T) *Client {
	return shared.Driver(t).Client(t, Config{Addr: redistest.Redis(t).Addr()})
}

func TestDriverReportsVersions(t *testing.T) {
	d := shared.Driver(t)
	require.Regexp(t, `^4\.`, d.Redisson())
	require.NotEmpty(t, d.Java())
	require.Same(t, d, shared.Driver(t))
}

func TestThreadKeepsItsID(t *testing.T) {
	c := client(t)
	lock := c.Lock(redistest.Name(t))
	before := time.Now()
	first, err := lock.On("A").Call(t.Context(), "lock")
	require.NoError(t, err)
	second, err := lock.On("A").Call(t.Context(), "lock")
	require.NoError(t, err)
	other, err := lock.On("B").Call(t.Context(), "getHoldCount")
	require.NoError(t, err)
	after := time.Now()

	require.Equal(t, first.ThreadID, second.ThreadID)
	require.NotEqual(t, first.ThreadID, other.ThreadID)
	thread, err := c.Thread(t.Context(), "A")
	require.NoError(t, err)
	require.Equal(t, Thread{ID: first.ThreadID, State: "WAITING"}, thread)

	const skew = 100 * time.Millisecond // between two readings of one machine's clock
	stamps := []time.Time{before.Add(-skew), first.Start, first.End, second.Start, second.End, after.Add(skew)}
	for i := range stamps[1:] {
		require.False(t, stamps[i+1].Before(stamps[i]), "%v", stamps)
	}
}

func TestInvocationFindsTheOverload(t *testing.T) {
	c := client(t)
	name := func() string { return redistest.Name(t) }
	tests := []struct {
		name   string
		object Object
		method string
		args   []any
		result string // JSON; empty for void and null
		class  string // of the exception
	}{
		{"void", c.Object("lock", name()), "lock", nil, "", ""},
		{"long and unit", c.Object("lock", name()), "lock", []any{2, "SECONDS"}, "", ""},
		{"int", c.Object("semaphore", name()), "trySetPermits", []any{2}, "true", ""},
		{"int or Duration", c.Object("semaphore", name()), "tryAcquire", []any{"PT0.01S"}, "false", ""},
		{"int and Duration", c.Object("semaphore", name()), "trySetPermits", []any{2, "PT1M"}, "true", ""},
		{"null", c.Object("permits", name()), "tryAcquire", nil, "", ""},
		{"list", c.Object("permits", name()), "tryRelease", []any{[]string{strings.Repeat("0", 32)}}, "0", ""},
		{"number", c.Object("latch", name()), "getCount", nil, "0", ""},
		{"future", c.Object("lock", name()), "tryLockAsync", []any{77}, "true", ""},
		{"exception", c.Object("lock", name()), "unlock", nil, "", "java.lang.IllegalMonitorStateException"},
		{
			"exception as cause", c.Object("permits", name()),
			"release", []any{strings.Repeat("0", 32)}, "", "IllegalArgumentException",
		},
		{"exception of a future", c.Object("lock", name()), "unlockAsync", []any{77}, "", "IllegalMonitorStateException"},
		{"no method", c.Object("lock", name()), "explode", nil, "", "NoSuchMethodException"},
		{"no overload", c.Object("lock", name()), "lock", []any{"long"}, "", "NoSuchMethodException"},
		{"no kind", c.Object("padlock", name()), "lock", nil, "", "IllegalArgumentException"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			answer, err := tt.object.Call(t.Context(), tt.method, tt.args...)
			require.Equal(t, tt.result, string(answer.Result))
			if tt.class == "" {
				require.NoError(t, err)
				return
			}
			var exception *Exception
			require.ErrorAs(t, err, &exception)
			require.True(t, exception.Has(tt.class), exception)
			require.ErrorContains(t, err, tt.class)
		})
	}
}

func TestInterruptOfAnIdleThreadAffectsItsNextCommand(t *testing.T) {
	c := client(t)
	lock := c.Lock(redistest.Name(t)).On("A")
	require.NoError(t, lock.Lock(t.Context()))
	require.NoError(t, c.Interrupt(t.Context(), "A"))
	latch := c.Latch(redistest.Name(t))
	_, err := latch.On("B").TrySetCount(t.Context(), 1)
	require.NoError(t, err)
	_, err = latch.On("A").AwaitFor(t.Context(), time.Minute) // the thread starts this call interrupted
	require.ErrorContains(t, err, "InterruptedException")
	require.NoError(t, lock.Unlock(t.Context())) // and the next one not interrupted
}

func TestBenchCountsEntries(t *testing.T) {
	run, err := client(t).FairLock(redistest.Name(t)).Bench(t.Context(), Workload{Iterations: 5, Threads: 3})
	require.NoError(t, err)
	require.Equal(t, 15, run.Count)
	require.Positive(t, run.Took)
	count := map[int]int{}
	for _, owner := range run.Owners {
		count[owner]++
	}
	require.Equal(t, map[int]int{0: 5, 1: 5, 2: 5}, count)
	_, err = client(t).Latch(redistest.Name(t)).Bench(t.Context(), Workload{Iterations: 1, Threads: 1})
	require.ErrorContains(t, err, "IllegalArgumentException")
}

// Wait returns when its context ends. The command continues in Java.
func TestWaitEndsWithContext(t *testing.T) {
	c := client(t)
	lock := c.Lock(redistest.Name(t))
	require.NoError(t, lock.On("A").Lock(t.Context()))
	waiting := lock.On("B").Go("lock")
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("wait abandoned")
	cancel(reason)
	_, err := waiting.Wait(ctx)
	require.ErrorIs(t, err, reason)
	require.NoError(t, lock.On("A").Unlock(t.Context()))
	_, err = waiting.Wait(t.Context())
	require.NoError(t, err)
}

func TestClosedClientIsUnknown(t *testing.T) {
	c := client(t)
	require.NoError(t, c.Close(t.Context()))
	require.ErrorContains(t, c.Lock(redistest.Name(t)).Lock(t.Context()), "no such client")
}

// When the process ends, pending futures and later commands return ErrEnded.
func TestEndOfTheProcessFailsCommands(t *testing.T) {
	tests := []struct {
		name string
		end  func(d *Driver) error
	}{
		{"Close", (*Driver).Close},
		{"Kill", (*Driver).Kill},
		{"kill command", func(d *Driver) error {
			_, err := d.Call(t.Context(), Command{Op: "kill"})
			return ignoreEnded(err)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := Start(t, Options{})
			latch := d.Client(t, Config{Addr: redistest.Redis(t).Addr()}).Latch(redistest.Name(t))
			_, err := latch.TrySetCount(t.Context(), 1)
			require.NoError(t, err)
			waiting := latch.Go("await")
			require.NoError(t, tt.end(d))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err = waiting.Wait(ctx)
			require.ErrorIs(t, err, ErrEnded)
			<-d.Done()
			require.ErrorIs(t, latch.CountDown(t.Context()), ErrEnded)
			require.NoError(t, d.Kill())
			require.NoError(t, d.Close())
		})
	}
}

func ignoreEnded(err error) error {
	if errors.Is(err, ErrEnded) {
		return nil
	}
	return err
}

func TestBadFlagFailsWithJavasMessage(t *testing.T) {
	var log bytes.Buffer
	Build(t, Redisson4)
	_, err := Open(t.Context(), Options{JVM: []string{"-XX:NoSuchFlag=1"}, Stderr: &log})
	if errors.Is(err, ErrMissing) {
		requireBuilt(t, err)
	}
	require.ErrorIs(t, err, ErrEnded)
	require.ErrorContains(t, err, "NoSuchFlag")
	require.Contains(t, log.String(), "NoSuchFlag")
}

func TestConfigFileHasRedissonsFormat(t *testing.T) {
	tests := []struct {
		name   string
		config Config
		want   map[string]any
	}{
		{
			"single",
			Config{
				Addr: "h:1", Watchdog: time.Second, FairWait: time.Minute, Timeout: 2 * time.Second, RetryAttempts: -1,
			},
			map[string]any{
				"singleServerConfig": map[string]any{
					"address": "redis://h:1", "connectionMinimumIdleSize": 1, "timeout": int64(2000), "retryAttempts": 0,
				},
				"lockWatchdogTimeout": int64(1000), "fairLockWaitTimeout": int64(60000),
			},
		},
		{
			"replicas", Config{Addr: "h:1", Replicas: []string{"h:2"}},
			map[string]any{"masterSlaveServersConfig": map[string]any{
				"masterAddress": "redis://h:1", "slaveAddresses": []string{"redis://h:2"},
			}},
		},
		{
			"cluster",
			Config{Cluster: []string{"h:1", "h:2"}, Server: map[string]any{"shardedSubscriptionMode": "OFF"}},
			map[string]any{"clusterServersConfig": map[string]any{
				"nodeAddresses": []string{"redis://h:1", "redis://h:2"}, "shardedSubscriptionMode": "OFF",
			}},
		},
		{
			"sentinel",
			Config{Sentinels: []string{"h:1"}, Master: "m", Settings: map[string]any{"nettyThreads": 2}},
			map[string]any{
				"sentinelServersConfig": map[string]any{
					"sentinelAddresses": []string{"redis://h:1"}, "masterName": "m",
				},
				"nettyThreads": 2,
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.want, tt.config.file()) })
	}
}
