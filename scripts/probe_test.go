package scripts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// isProbe reports whether a dial with this context is one of a prober. Those of go-redis have
// another timeout.
func isProbe(ctx context.Context) bool {
	until, ok := ctx.Deadline()
	return ok && time.Until(until) == probeTimeout
}

// dialed is a server in memory. A test decides how dials to it end.
type dialed struct {
	p *redistest.Proxy
	r *Runner

	mu     sync.Mutex
	dial   func(ctx context.Context) error // what a dial does before it connects
	start  time.Time
	probes []time.Duration // when the dials of the prober began, since start
	ctx    context.Context //nolint:containedctx // of the latest one
	conns  []net.Conn      // that the prober has made
}

// newDialed returns a server and a runner. Only the end of a call ends its attempts: go-redis has
// long timeouts.
func newDialed(t *testing.T, timeout time.Duration) *dialed {
	t.Cleanup(func() { time.Sleep(time.Minute) }) // dials that go-redis still makes end
	d := &dialed{p: redistest.Embedded(t).Proxy(t), start: time.Now()}
	d.r = NewRunner(d.p.Client(t, longTimeouts, func(o *redis.Options) {
		connect := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			d.mu.Lock()
			dial, probe := d.dial, isProbe(ctx)
			if probe {
				d.probes, d.ctx = append(d.probes, time.Since(d.start)), ctx
			}
			d.mu.Unlock()
			if dial != nil {
				if err := dial(ctx); err != nil {
					return nil, err
				}
			}
			conn, err := connect(ctx, network, addr)
			d.mu.Lock()
			defer d.mu.Unlock()
			if probe {
				d.conns = append(d.conns, conn)
			}
			return conn, err
		}
	}), timeout)
	t.Cleanup(d.r.Close)
	return d
}

// decide runs dial before each connection is made from now on, and forgets the dials so far.
func (d *dialed) decide(dial func(ctx context.Context) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dial, d.start, d.probes, d.conns = dial, time.Now(), nil, nil
}

func (d *dialed) probesAt() []time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.probes
}

func (d *dialed) do(ctx context.Context) error {
	_, err := d.r.Do(ctx, check, []any{"k"}, "x")
	return err
}

// Four ways in which a dial can go: see decide.
func succeeds(context.Context) error { return nil }
func refused(context.Context) error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

// isBehind refuses the client's dials. The prober's dials hang, as with unreachable Sentinels.
func isBehind(ctx context.Context) error {
	if isProbe(ctx) {
		<-ctx.Done()
		return ctx.Err()
	}
	return refused(ctx)
}

func hangs(ctx context.Context) error {
	<-ctx.Done()
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) { // as the net package does it
		err = os.ErrDeadlineExceeded
	}
	return &net.OpError{Op: "dial", Net: "tcp", Err: err}
}

// A call without an answer says why, if a dial has found that out.
func TestSilentCallSaysWhy(t *testing.T) {
	const (
		short, long = 250 * time.Millisecond, 3 * time.Second
		isRefused   = "dial tcp: connect: connection refused"
	)
	warm := func(t *testing.T, d *dialed) { require.NoError(t, d.do(t.Context())) }
	cold := func(*testing.T, *dialed) {}
	calls := map[string]func(*dialed, context.Context) error{
		"Do": (*dialed).do,
		"Commands": func(d *dialed, ctx context.Context) error {
			_, err := d.r.Commands(ctx, []any{"get", "k"})
			return err
		},
	}
	for _, tt := range []struct {
		name  string
		setUp func(t *testing.T, d *dialed)
		dial  func(context.Context) error
		limit time.Duration
		why   string
		is    error // nil: no further error
	}{
		{"a server that can be dialed", warm, succeeds, short, "", nil},
		{"a handshake that hangs", cold, succeeds, short, "", nil},
		{"refused, on an open connection", warm, refused, short, isRefused, syscall.ECONNREFUSED},
		{"refused, without a connection", cold, refused, short, isRefused, syscall.ECONNREFUSED},
		{"refused, and a dial that waits for others", cold, isBehind, short, isRefused, syscall.ECONNREFUSED},
		{"refused, too early to tell", warm, refused, failure.SilentAfter - 1, "", nil},
		{"a dial that hangs for longer than the call", warm, hangs, short, "", nil},
		{"a dial that hangs, without a connection", cold, hangs, short, "", nil},
		{"a dial that hangs", warm, hangs, long, "dial tcp: i/o timeout", os.ErrDeadlineExceeded},
	} {
		for _, end := range []string{"its deadline", "a cancellation", "the command timeout"} {
			for call := range calls {
				redistest.RunBubble(t, fmt.Sprint(tt.name, ": ", call, " ended by ", end), func(t *testing.T) {
					timeout := time.Minute
					if end == "the command timeout" {
						timeout = tt.limit
					}
					d := newDialed(t, timeout)
					tt.setUp(t, d)
					time.Sleep(timeout) // a deadline that the first call has left is over
					d.p.BlackHole(true)
					d.decide(tt.dial)
					ctx, cancel := context.WithCancelCause(t.Context())
					defer cancel(nil)
					cause, parts := io.ErrNoProgress, []string{fmt.Sprint("no answer for ", tt.limit), tt.why}
					if tt.limit < failure.SilentAfter {
						parts = nil
					}
					switch end {
					case "its deadline":
						var stop context.CancelFunc
						ctx, stop = context.WithTimeoutCause(ctx, tt.limit, cause)
						defer stop()
						parts = append(parts, cause.Error())
					case "a cancellation":
						time.AfterFunc(tt.limit, func() { cancel(cause) })
						parts = append(parts, cause.Error())
					default:
						cause = failure.ErrNoAnswer
						parts = []string{cause.Error(), tt.why}
					}
					want := strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ": ")
					began := time.Now()
					err := calls[call](d, ctx)
					require.Equal(t, tt.limit, time.Since(began))
					// Without a connection a script was not sent.
					inDoubt := call != "Do" || reflect.ValueOf(tt.setUp).Pointer() == reflect.ValueOf(warm).Pointer()
					if inDoubt {
						want += " (outcome unknown)"
					}
					require.EqualError(t, err, want)
					require.ErrorIs(t, err, cause)
					require.Equal(t, inDoubt, errors.Is(err, failure.ErrOutcomeUnknown))
					if tt.is != nil {
						require.ErrorIs(t, err, tt.is)
					}
					d.decide(nil)
					d.p.Heal()
				})
			}
		}
	}
}

// A refusal needs no explanation. A server that is not ready is asked until the call ends, and its
// last answer is the error of the call.
func TestRefusalIsNotExplained(t *testing.T) {
	for answer, limit := range map[string]time.Duration{
		"LOADING Redis is loading the dataset in memory": 2 * time.Second,
		"ERR max number of clients reached":              2 * time.Second,
		"NOAUTH Authentication required.":                0,
	} {
		redistest.RunBubble(t, answer, func(t *testing.T) {
			rdb := inMemory(t, func(command string) string {
				if strings.Contains(command, "hello") { // a server that loads its data answers it
					return "-ERR unknown command\r\n"
				}
				return "-" + answer + "\r\n"
			})
			r := NewRunner(rdb, 2*time.Second)
			defer r.Close()
			r.batch.probe.ended, r.batch.probe.err = time.Now(), syscall.ECONNREFUSED
			began := time.Now()
			_, err := r.Do(t.Context(), check, []any{"k"}, "x")
			require.EqualError(t, err, answer)
			require.NotErrorIs(t, err, syscall.ECONNREFUSED)
			require.Equal(t, limit, time.Since(began))
		})
	}
}

// When a call has waited for failure.SilentAfter, a dial finds out why the server is silent.
// However many calls wait, there is one dial at a time, and at most one in each probePause.
func TestDialsOfSilentCalls(t *testing.T) {
	at := func(millis ...time.Duration) (all []time.Duration) {
		for _, n := range millis {
			all = append(all, n*time.Millisecond)
		}
		return all
	}
	for _, tt := range []struct {
		name string
		dial func(context.Context) error
		want []time.Duration // since the silence began
	}{
		{"refused", refused, at(100, 350, 600, 850, 1100, 1350, 1600, 1850)},
		{"succeeds", succeeds, at(100, 350, 600, 850, 1100, 1350, 1600, 1850)},
		{"hangs", hangs, at(100, 1350)}, // each for a second
	} {
		redistest.RunBubble(t, tt.name, func(t *testing.T) {
			d := newDialed(t, time.Minute)
			require.NoError(t, d.do(t.Context()))
			d.p.BlackHole(true)
			d.decide(tt.dial)
			var calls sync.WaitGroup
			for range 40 { // two each 50 ms, of which one has the only connection
				for range 2 {
					calls.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), failure.SilentAfter+time.Millisecond)
						defer cancel()
						_ = d.do(ctx)
					})
				}
				time.Sleep(50 * time.Millisecond)
			}
			calls.Wait()
			assert.Equal(t, tt.want, d.probesAt())
		})
	}
}

// A dial may go on for longer than the call for which it began. It ends with the runner, and leaves
// nothing.
func TestDialEndsWithItsRunner(t *testing.T) {
	for _, tt := range []struct {
		name string
		dial func(context.Context) error
		busy bool // when the call has ended
	}{{"hangs", hangs, true}, {"succeeds", succeeds, false}} {
		redistest.RunBubble(t, tt.name, func(t *testing.T) {
			d := newDialed(t, 2*time.Second)
			require.NoError(t, d.do(t.Context()))
			d.p.BlackHole(true)
			d.decide(tt.dial)
			ctx, cancel := context.WithTimeout(t.Context(), failure.SilentAfter+1)
			defer cancel()
			require.Error(t, d.do(ctx))
			require.Len(t, d.probesAt(), 1)
			synctest.Wait()
			require.Equal(t, tt.busy, d.r.batch.probe.busy)
			require.Equal(t, tt.busy, d.ctx.Err() == nil, "no timer and no goroutine is left")
			for _, conn := range d.conns {
				require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
				require.ErrorIs(t, errOf(conn.Read(make([]byte, 1))), io.ErrClosedPipe)
			}
			d.p.Recover() // the attempt ends
			closing := time.Now()
			d.r.Close()
			require.Equal(t, closing, time.Now())
			require.False(t, d.r.batch.probe.busy)
		})
	}
	redistest.RunBubble(t, "stopped before", func(t *testing.T) {
		d := newDialed(t, 2*time.Second)
		require.NoError(t, d.do(t.Context()))
		d.p.BlackHole(true)
		d.decide(succeeds)
		d.r.Stop()
		require.ErrorIs(t, d.do(t.Context()), failure.ErrNoAnswer)
		require.Empty(t, d.probesAt())
	})
}

// A call that was silent for long enough is explained by a dial that failed while it waited, or a
// moment before.
func TestExplain(t *testing.T) {
	began, failed := time.Now(), errors.New("failed")
	for _, tt := range []struct {
		name   string
		silent time.Duration
		ended  time.Duration // the dial, since the attempt began
		err    error
		want   error
	}{
		{"failed meanwhile", failure.SilentAfter, time.Millisecond, failed, failed},
		{"failed a moment before", time.Hour, -probePause + 1, failed, failed},
		{"failed earlier", time.Hour, -probePause, failed, nil},
		{"not silent", failure.SilentAfter - 1, time.Millisecond, failed, nil},
		{"succeeded", time.Hour, time.Millisecond, nil, nil},
		{"the runner stopped", time.Hour, time.Millisecond, fmt.Errorf("dial: %w", context.Canceled), nil},
	} {
		p := &prober{options: func() *redis.Options { return nil }, ended: began.Add(tt.ended), err: tt.err}
		i := &failure.Interrupted{Cause: io.EOF, Silent: tt.silent}
		require.Same(t, i, p.explain(i, began))
		require.Equal(t, &failure.Interrupted{Cause: io.EOF, Silent: tt.silent, Why: tt.want}, i, tt.name)
	}
}

// A server is back when the latest dial has succeeded, a moment ago.
func TestIsBack(t *testing.T) {
	for _, tt := range []struct {
		ago  time.Duration
		busy bool
		err  error
		want bool
	}{
		{0, false, nil, true},
		{2*probePause - 1, false, nil, true},
		{2 * probePause, false, nil, false},
		{0, true, nil, false},
		{0, false, io.EOF, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &prober{ended: time.Now(), busy: tt.busy, err: tt.err}
			time.Sleep(tt.ago)
			require.Equal(t, tt.want, p.isBack(), "%+v", tt)
		})
	}
}

// Attempts that begin at about the same time share the timer after which a dial starts. A prober of
// a cluster never dials: each of its nodes has one.
func TestTimerOfAProber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialed(t, 2*time.Second)
		p, began := d.r.batch.probe, time.Now()
		due := p.due(began)
		time.Sleep(probeSharing)
		require.Equal(t, due, p.due(time.Now()), "shared")
		time.Sleep(time.Nanosecond)
		require.NotEqual(t, due, p.due(time.Now()), "it began too late")
		<-due
		require.Equal(t, began.Add(failure.SilentAfter), time.Now())
		require.Empty(t, d.probesAt())
		for range 2 {
			require.Equal(t, probeSharing, p.soon())
			synctest.Wait()
			require.Equal(t, []time.Duration{failure.SilentAfter}, d.probesAt())
			require.True(t, p.isBack())
		}
		p.due(time.Now())
		d.r.Close()
		require.Error(t, p.silent.latest.Load().Err(), "no timer is left")

		_, _, r := newClusterOfOne(t)
		defer r.Close()
		require.Nil(t, r.batch.probe.due(time.Now()))
		require.Zero(t, r.batch.probe.soon())
		require.False(t, r.batch.probe.busy)
	})
}

// go-redis may notice the end of a call before the call does. Then the error says so as if the call
// had noticed it. The error of a dial that timed out looks the same, but the call goes on.
func TestNoticed(t *testing.T) {
	own := &failure.Interrupted{Cause: context.DeadlineExceeded, NotSent: true}
	const far, near = time.Hour, probeSharing
	for _, tt := range []struct {
		name   string
		err    error
		end    time.Duration // of the call
		until  time.Duration // the deadline of its context; 0: none
		cancel time.Duration // of its context; 0: never
		want   error         // nil: err
		after  time.Duration
	}{
		{"an answer", nil, 0, 0, 0, nil, 0},
		{"a broken connection", io.EOF, 0, 0, 0, nil, 0},
		{"a dial timed out", context.DeadlineExceeded, far, 0, 0, nil, 0},
		{"a dial timed out, a moment too early", context.DeadlineExceeded, near + 1, far, 0, nil, 0},
		{"a read timed out", os.ErrDeadlineExceeded, far, near + 1, 0, nil, 0},
		{"an interruption", own, 0, 0, 0, nil, 0},
		{"the call is over", os.ErrDeadlineExceeded, 0, far, 0, failure.ErrNoAnswer, 0},
		{"the call is nearly over", context.DeadlineExceeded, near, far, 0, failure.ErrNoAnswer, near},
		{"its context is nearly over", context.DeadlineExceeded, far, near, 0, io.ErrNoProgress, near},
		{"its context is cancelled in a moment", context.DeadlineExceeded, near, 0, 1, io.ErrNoProgress, 1},
		{"its context has ended", context.Canceled, far, 0, -1, io.ErrNoProgress, 0},
	} {
		redistest.RunBubble(t, tt.name, func(t *testing.T) {
			const silent = time.Second
			p := &prober{options: func() *redis.Options { return nil }, ended: time.Now(), err: syscall.ECONNREFUSED}
			began := time.Now()
			time.Sleep(silent)
			end := (&deadlines{}).newDeadline(time.Now().Add(tt.end))
			defer end.stop()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if tt.until > 0 {
				var stop context.CancelFunc
				ctx, stop = context.WithTimeoutCause(ctx, tt.until, io.ErrNoProgress)
				defer stop()
			}
			if tt.cancel < 0 {
				cancel(io.ErrNoProgress)
			} else if tt.cancel > 0 {
				time.AfterFunc(tt.cancel, func() { cancel(io.ErrNoProgress) })
			}
			noticed := time.Now()
			got := p.noticed(ctx, end, tt.err, began)
			require.Equal(t, tt.after, time.Since(noticed))
			if tt.want == nil {
				require.Equal(t, tt.err, got)
				return
			}
			i, ok := errors.AsType[*failure.Interrupted](got)
			require.True(t, ok)
			require.Equal(t, []any{tt.want, silent + tt.after, error(syscall.ECONNREFUSED)}, []any{i.Cause, i.Silent, i.Why})
		})
	}
}
