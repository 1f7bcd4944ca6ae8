package watchdog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	ttl    = 30 * time.Second
	margin = 300 * time.Millisecond
)

var errDown = errors.New("down")

// reply is what a fake server does with a call.
type reply struct {
	state State
	after time.Duration // answers so much later, whether somebody waits or not
	hang  bool          // answers when nobody waits any more
}

// server is a Renew that answers by script and remembers what it was asked.
type server struct {
	start time.Time
	reply func(q request) reply

	mu    sync.Mutex
	asked []request
	ended int // calls whose context ended before they answered
}

type request struct {
	n     int           // number of the call, from 0
	at    time.Duration // since start
	group any
	batch []Ask
}

func newServer(r func(q request) reply) *server {
	return &server{start: time.Now(), reply: r}
}

func always(r reply) func(request) reply { return func(request) reply { return r } }

func (s *server) renew(ctx context.Context, group any, batch []Ask) ([]State, error) {
	s.mu.Lock()
	q := request{len(s.asked), time.Since(s.start), group, slices.Clone(batch)}
	s.asked = append(s.asked, q)
	s.mu.Unlock()
	r := s.reply(q)
	switch {
	case r.hang:
		<-ctx.Done()
	case r.after > 0:
		time.Sleep(r.after)
	}
	if ctx.Err() != nil {
		s.mu.Lock()
		s.ended++
		s.mu.Unlock()
	}
	if r.hang || r.state == Unknown {
		return nil, errDown
	}
	return slices.Repeat([]State{r.state}, len(batch)), nil
}

func (s *server) requests() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// keeper writes down what it is told, and when.
type keeper struct {
	Lease
	start time.Time
	hook  func(what string)

	mu  sync.Mutex
	log []string
}

func newKeeper() *keeper { return &keeper{start: time.Now()} }

func (k *keeper) note(what string) {
	k.mu.Lock()
	k.log = append(k.log, fmt.Sprintf("%s@%v", what, time.Since(k.start)))
	k.mu.Unlock()
	if k.hook != nil {
		k.hook(what)
	}
}

func (k *keeper) LeaseRenewed(*Lease) { k.note("renewed") }
func (k *keeper) LeaseUnknown(_ *Lease, err error) {
	k.note(pick(errors.Is(err, ErrNoAnswer), "overdue", "unknown"))
}
func (k *keeper) LeaseLost(_ *Lease, refused bool) { k.note(pick(refused, "refused", "over")) }

func pick(first bool, a, b string) string {
	if first {
		return a
	}
	return b
}

func (k *keeper) told() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.log)
}

// but gives what k was told, without one kind of news.
func (k *keeper) but(kind string) []string {
	return slices.DeleteFunc(k.told(), func(s string) bool { return strings.HasPrefix(s, kind+"@") })
}

func (k *keeper) validFor() time.Duration { return k.ValidUntil().Sub(k.start) }

func terms() Terms { return Terms{Group: "g", TTL: ttl, Margin: margin} }

// keep registers a lease that was taken just now.
func keep(t testing.TB, d *Dog, k *keeper, tm Terms) {
	t.Helper()
	require.NoError(t, d.Keep(&k.Lease, k, tm, time.Now().Add(tm.TTL-tm.Margin)))
}

// sleep passes fake time, and lets everything happen that is due then.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestOneLease(t *testing.T) {
	until := func(end time.Duration, before, after reply) func(request) reply {
		return func(q request) reply {
			if q.at < end {
				return before
			}
			return after
		}
	}
	calls := func(replies ...reply) func(request) reply {
		return func(q request) reply { return replies[min(q.n, len(replies)-1)] }
	}
	renewed, unknown, refused, hang := reply{state: Renewed}, reply{}, reply{state: Lost}, reply{hang: true}
	const valid = ttl - margin

	for _, tt := range []struct {
		name  string
		terms func(*Terms)
		reply func(request) reply
		act   func(d *Dog, k *keeper)
		run   time.Duration
		want  []string // told
		but   string   // kind of news left out of it
		asked []string // group-less "ttl@at" of each call; nil: not looked at
		valid time.Duration
		len   int
	}{
		{
			name: "renewed a period after each confirmed start", reply: always(renewed), run: 35 * time.Second,
			want: []string{"renewed@10s", "renewed@20s", "renewed@30s"}, asked: []string{"30s@10s", "30s@20s", "30s@30s"},
			valid: 30*time.Second + valid, len: 1,
		},
		{
			name: "validity counts from before the call", reply: always(reply{state: Renewed, after: 2 * time.Second}), run: 23 * time.Second,
			want: []string{"renewed@12s", "renewed@22s"}, valid: 20*time.Second + valid, len: 1,
		},
		{
			name: "refused is lost at once", reply: always(refused), run: time.Minute,
			want: []string{"refused@10s"}, asked: []string{"30s@10s"}, valid: valid,
		},
		{
			name: "unknown until just before the deadline", reply: always(unknown), run: valid - 1, but: "unknown",
			valid: valid, len: 1,
		},
		{
			name: "unknown until the deadline is lost exactly then", reply: always(unknown), run: valid, but: "unknown",
			want: []string{"over@29.7s"}, valid: valid,
		},
		{
			name: "unknown until after the deadline stays lost", reply: until(valid, unknown, renewed), run: time.Minute, but: "unknown",
			want: []string{"over@29.7s"}, valid: valid,
		},
		{
			name: "hung calls are hedged, and do not delay the loss", reply: always(hang), run: time.Minute,
			want:  []string{"overdue@15s", "overdue@20s", "overdue@25s", "over@29.7s"},
			asked: []string{"30s@10s", "30s@15s", "30s@20s", "30s@25s"}, valid: valid,
		},
		{
			name: "a hung call is hedged by a second", reply: calls(hang, renewed), run: 26 * time.Second,
			want:  []string{"overdue@15s", "renewed@15s", "renewed@25s"},
			asked: []string{"30s@10s", "30s@15s", "30s@25s"}, valid: 25*time.Second + valid, len: 1,
		},
		{
			name: "a late answer counts from its own start", reply: calls(reply{state: Renewed, after: 7 * time.Second}, hang), run: 18 * time.Second,
			want: []string{"overdue@15s", "renewed@17s"}, asked: []string{"30s@10s", "30s@15s"}, valid: 10*time.Second + valid, len: 1,
		},
		{
			name: "a late answer older than a confirmation changes nothing", reply: calls(reply{state: Renewed, after: 7 * time.Second}, renewed), run: 18 * time.Second,
			want: []string{"overdue@15s", "renewed@15s"}, asked: []string{"30s@10s", "30s@15s"}, valid: 15*time.Second + valid, len: 1,
		},
		{
			name: "a late refusal counts while nothing newer is confirmed", reply: calls(reply{state: Lost, after: 7 * time.Second}, hang), run: 18 * time.Second,
			want: []string{"overdue@15s", "refused@17s"}, valid: valid,
		},
		{
			name: "a late refusal against a newer confirmation is asked again", reply: calls(reply{state: Lost, after: 7 * time.Second}, renewed), run: 18 * time.Second,
			want: []string{"overdue@15s", "renewed@15s", "renewed@17s"}, asked: []string{"30s@10s", "30s@15s", "30s@17s"},
			valid: 17*time.Second + valid, len: 1,
		},
		{
			name: "a late refusal that is confirmed by the next is a loss", reply: calls(reply{state: Lost, after: 7 * time.Second}, renewed, refused), run: 18 * time.Second,
			want: []string{"overdue@15s", "renewed@15s", "refused@17s"}, valid: 15*time.Second + valid,
		},
		{
			name: "a hung call is told once, whatever its hedges do", reply: calls(hang, reply{after: time.Millisecond}), run: 18 * time.Second, but: "unknown",
			want: []string{"overdue@15s"}, valid: valid, len: 1,
		},
		{
			name: "a late unknown is not told again", reply: calls(reply{after: 7 * time.Second}, hang), run: 18 * time.Second,
			want: []string{"overdue@15s"}, valid: valid, len: 1,
		},
		{
			name: "an answer at the deadline is too late", reply: calls(reply{state: Renewed, after: valid - 10*time.Second}, hang), run: time.Minute, but: "overdue",
			want: []string{"over@29.7s"}, valid: valid,
		},
		{
			name: "no early try of a short TTL", terms: func(tm *Terms) { tm.TTL, tm.Margin = 90*time.Millisecond, 0 }, reply: always(renewed), run: 100 * time.Millisecond,
			want: []string{"renewed@30ms", "renewed@60ms", "renewed@90ms"}, valid: 180 * time.Millisecond, len: 1,
		},
		{
			name: "End: the last renewal asks for what is left, then nothing", terms: func(tm *Terms) { tm.End = time.Now().Add(44 * time.Second) },
			reply: always(renewed), run: time.Minute,
			want: []string{"renewed@10s", "renewed@20s", "over@43.7s"}, asked: []string{"30s@10s", "24s@20s"}, valid: 44*time.Second - margin,
		},
		{
			name: "End is cut to whole milliseconds", terms: func(tm *Terms) { tm.End = time.Now().Add(34*time.Second + 1234567) },
			reply: always(renewed), run: time.Minute,
			want: []string{"renewed@10s", "over@33.701s"}, asked: []string{"24.001s@10s"}, valid: 34001*time.Millisecond - margin,
		},
		{
			name: "End before the first validity ends", terms: func(tm *Terms) { tm.End = time.Now().Add(5 * time.Second) },
			reply: always(renewed), run: time.Minute, want: []string{"over@5s"}, asked: []string{}, valid: 5 * time.Second,
		},
		{
			name: "nothing is asked for less than a millisecond", reply: calls(reply{state: Lost, after: 13 * time.Second}, renewed), run: time.Minute,
			act: func(d *Dog, k *keeper) {
				tm := terms()
				tm.End = time.Now().Add(13*time.Second + 500*time.Microsecond)
				_ = d.Keep(&k.Lease, k, tm, time.Now().Add(5*time.Second))
				sleep(2 * time.Second)
				d.Confirm(&k.Lease, time.Now().Add(ttl))
			},
			want: []string{"over@13.0005s"}, asked: []string{"13s@0s"}, valid: 13*time.Second + 500*time.Microsecond,
		},
		{
			name: "a far End is none", terms: func(tm *Terms) { tm.End = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC) },
			reply: always(renewed), run: 15 * time.Second, want: []string{"renewed@10s"}, valid: 10*time.Second + valid, len: 1,
		},
		{
			name: "watched only", terms: func(tm *Terms) { tm.Group = nil }, reply: always(renewed), run: time.Minute,
			want: []string{"over@29.7s"}, asked: []string{}, valid: valid,
		},
		{
			name: "Confirm moves the next renewal", reply: always(renewed), run: 16 * time.Second, act: func(d *Dog, k *keeper) {
				sleep(5 * time.Second)
				d.Confirm(&k.Lease, time.Now().Add(valid))
			},
			want: []string{"renewed@15s"}, asked: []string{"30s@15s"}, valid: 15*time.Second + valid, len: 1,
		},
		{
			name: "Confirm never shortens", reply: always(renewed), run: 9 * time.Second, act: func(d *Dog, k *keeper) {
				d.Confirm(&k.Lease, time.Now().Add(time.Second))
			},
			valid: valid, len: 1,
		},
		{
			name: "Confirm keeps a watched lease", terms: func(tm *Terms) { tm.Group = nil }, reply: always(renewed), run: 40 * time.Second,
			act: func(d *Dog, k *keeper) {
				sleep(20 * time.Second)
				d.Confirm(&k.Lease, time.Now().Add(valid))
			},
			valid: 20*time.Second + valid, len: 1,
		},
		{
			name: "Confirm is capped by End", terms: func(tm *Terms) { tm.End = time.Now().Add(40 * time.Second) }, reply: always(unknown), run: time.Minute, but: "unknown",
			act: func(d *Dog, k *keeper) {
				sleep(5 * time.Second)
				d.Confirm(&k.Lease, time.Now().Add(time.Hour))
			},
			want: []string{"over@40s"}, asked: []string{}, valid: 40 * time.Second,
		},
		{
			name: "Confirm after the loss does not bring it back", reply: always(unknown), run: 40 * time.Second, but: "unknown",
			act: func(d *Dog, k *keeper) {
				sleep(valid)
				d.Confirm(&k.Lease, time.Now().Add(valid))
			},
			want: []string{"over@29.7s"}, valid: valid,
		},
		{
			name: "Confirm makes a hung attempt uninteresting", reply: calls(hang, renewed), run: 23 * time.Second,
			act: func(d *Dog, k *keeper) {
				sleep(12 * time.Second)
				d.Confirm(&k.Lease, time.Now().Add(valid))
			},
			want: []string{"renewed@22s"}, asked: []string{"30s@10s", "30s@22s"}, valid: 22*time.Second + valid, len: 1,
		},
		{
			name: "an answer that grants less than we have shortens nothing", reply: calls(reply{state: Lost, after: 3 * time.Second}, renewed),
			act: func(d *Dog, k *keeper) {
				sleep(12 * time.Second)
				d.Confirm(&k.Lease, time.Now().Add(5*time.Minute))
			},
			run: time.Minute, want: []string{"renewed@13s"}, asked: []string{"30s@10s", "30s@13s"}, valid: 5*time.Minute + 12*time.Second, len: 1,
		},
		{
			name: "a Confirm of less than we have does not disturb", reply: calls(unknown, hang), run: 12 * time.Second, but: "unknown",
			act: func(d *Dog, k *keeper) {
				sleep(10 * time.Second)
				d.Confirm(&k.Lease, time.Now().Add(time.Second))
				synctest.Wait()
				if len(d.alarms) != 1 || d.alarms[0].fails != 1 {
					panic("the failure is forgotten")
				}
			},
			valid: valid, len: 1,
		},
		{
			name: "as good as for ever", reply: always(renewed), run: 200 * 365 * 24 * time.Hour,
			act: func(d *Dog, k *keeper) {
				_ = d.Keep(&k.Lease, k, Terms{Margin: time.Hour}, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC))
			},
			asked: []string{}, valid: math.MaxInt64 - time.Hour, len: 1,
		},
		{
			name: "dropped: nothing is told or asked", reply: always(renewed), run: time.Minute,
			act:   func(d *Dog, k *keeper) { d.Drop(&k.Lease); d.Drop(&k.Lease) },
			asked: []string{}, valid: valid,
		},
		{
			name: "dropped during a call", reply: always(reply{state: Lost, after: 2 * time.Second}), run: time.Minute,
			act:   func(d *Dog, k *keeper) { sleep(11 * time.Second); d.Drop(&k.Lease) },
			asked: []string{"30s@10s"}, valid: valid,
		},
		{
			name: "kept again: an older call's answer does not count", reply: calls(reply{state: Renewed, after: 2 * time.Second}, renewed), run: 14 * time.Second,
			act: func(d *Dog, k *keeper) {
				sleep(11 * time.Second)
				tm := terms()
				tm.TTL = 6 * time.Second
				_ = d.Keep(&k.Lease, k, tm, time.Now().Add(tm.TTL-margin))
			},
			want: []string{"renewed@13s"}, asked: []string{"30s@10s", "6s@13s"}, valid: 19*time.Second - margin, len: 1,
		},
		{
			name: "kept again to be watched", reply: always(renewed), run: time.Minute,
			act: func(d *Dog, k *keeper) {
				sleep(11 * time.Second)
				_ = d.Keep(&k.Lease, k, Terms{}, time.Now().Add(7*time.Second))
			},
			want: []string{"renewed@10s", "over@18s"}, asked: []string{"30s@10s"}, valid: 18 * time.Second,
		},
		{
			name: "kept when it is over", reply: always(renewed), run: time.Second,
			act:  func(d *Dog, k *keeper) { _ = d.Keep(&k.Lease, k, terms(), time.Now().Add(-time.Second)) },
			want: []string{"over@0s"}, valid: -time.Second,
		},
		{
			name: "taken for less than the TTL: renewed at once", reply: always(renewed), run: time.Second,
			act:  func(d *Dog, k *keeper) { _ = d.Keep(&k.Lease, k, terms(), time.Now().Add(5*time.Second)) },
			want: []string{"renewed@0s"}, valid: valid, len: 1,
		},
		{
			name: "a hundred years", terms: func(tm *Terms) { tm.TTL = 100 * 365 * 24 * time.Hour }, reply: always(renewed),
			run: 40 * 365 * 24 * time.Hour, want: []string{"renewed@292000h0m0s"}, asked: []string{"876000h0m0s@292000h0m0s"},
			valid: 292000*time.Hour + 876000*time.Hour - margin, len: 1,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, k := newServer(tt.reply), newKeeper()
				d := New(s.renew)
				defer d.Close()
				tm := terms()
				if tt.terms != nil {
					tt.terms(&tm)
				}
				keep(t, d, k, tm)
				if tt.act != nil {
					tt.act(d, k)
				}
				sleep(time.Until(k.start.Add(tt.run)))

				require.Equal(t, append([]string{}, tt.want...), append([]string{}, k.but(tt.but)...))
				if tt.asked != nil {
					asked := []string{}
					for _, q := range s.requests() {
						asked = append(asked, fmt.Sprintf("%v@%v", q.batch[0].TTL, q.at))
					}
					require.Equal(t, tt.asked, asked)
				}
				require.Equal(t, tt.valid, k.validFor())
				require.Equal(t, tt.len, d.Len())
			})
		})
	}
}
