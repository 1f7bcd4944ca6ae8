package watchdog

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// leaseCase is the life of one lease, kept at the start of a bubble on schedule().
type leaseCase struct {
	name     string
	schedule func(*Schedule) // changes the schedule
	reply    func(request) reply
	act      func(d *Dog, k *keeper) // runs after Keep
	run      time.Duration           // of the whole case
	want     []string                // events
	without  string                  // kind of event to leave out of them
	requests []string                // "ttl@at" of each call; nil: not checked
	valid    time.Duration
	len      int
}

// valid is the validity of a lease on schedule().
const valid = ttl - margin

var (
	renewed = reply{state: Renewed}
	unknown = reply{}
	refused = reply{state: Lost}
	hang    = reply{hang: true}
)

// until replies before until a point in time, then after.
func until(end time.Duration, before, after reply) func(request) reply {
	return func(q request) reply {
		if q.at < end {
			return before
		}
		return after
	}
}

// calls gives each call its reply. The last reply is repeated.
func calls(replies ...reply) func(request) reply {
	return func(q request) reply { return replies[min(q.n, len(replies)-1)] }
}

func runLeaseCases(t *testing.T, cases []leaseCase) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, k := newServer(tt.reply), newKeeper()
				d := New(s.renew)
				defer d.Close()
				sched := schedule()
				if tt.schedule != nil {
					tt.schedule(&sched)
				}
				keep(t, d, k, sched)
				if tt.act != nil {
					tt.act(d, k)
				}
				sleep(time.Until(k.start.Add(tt.run)))

				require.Equal(t, append([]string{}, tt.want...), append([]string{}, k.eventsWithout(tt.without)...))
				if tt.requests != nil {
					requests := []string{}
					for _, q := range s.requests() {
						requests = append(requests, fmt.Sprintf("%v@%v", q.batch[0].TTL, q.at))
					}
					require.Equal(t, tt.requests, requests)
				}
				require.Equal(t, tt.valid, k.validFor())
				require.Equal(t, tt.len, d.Len())
			})
		})
	}
}

// Regular renewals, refusals and retries.
var renewalCases = []leaseCase{
	{
		name:  "renewed a period after each confirmed start",
		reply: always(renewed), run: 35 * time.Second,
		want:     []string{"renewed@10s", "renewed@20s", "renewed@30s"},
		requests: []string{"30s@10s", "30s@20s", "30s@30s"}, valid: 30*time.Second + valid, len: 1,
	},
	{
		name:  "a refused lease is lost at once",
		reply: always(refused), run: time.Minute,
		want:     []string{"refused@10s"},
		requests: []string{"30s@10s"}, valid: valid,
	},
	{
		name:  "unknown until just before the deadline",
		reply: always(unknown), run: valid - 1, without: "unknown", valid: valid, len: 1,
	},
	{
		name:  "unknown until the deadline is lost exactly then",
		reply: always(unknown), run: valid, without: "unknown",
		want: []string{"expired@29.7s"}, valid: valid,
	},
	{
		name:  "unknown until after the deadline stays lost",
		reply: until(valid, unknown, renewed), run: time.Minute, without: "unknown",
		want: []string{"expired@29.7s"}, valid: valid,
	},
	{
		name:     "a short TTL is not renewed early",
		schedule: func(sched *Schedule) { sched.TTL, sched.Margin = 90*time.Millisecond, 0 },
		reply:    always(renewed), run: 100 * time.Millisecond,
		want:  []string{"renewed@30ms", "renewed@60ms", "renewed@90ms"},
		valid: 180 * time.Millisecond, len: 1,
	},
}

func TestLeaseIsRenewedWhileValid(t *testing.T) { runLeaseCases(t, renewalCases) }

// Slow and missing answers.
var lateAnswerCases = []leaseCase{
	{
		name:  "validity counts from before the call",
		reply: always(reply{state: Renewed, after: 2 * time.Second}), run: 23 * time.Second,
		want: []string{"renewed@12s", "renewed@22s"}, valid: 20*time.Second + valid, len: 1,
	},
	{
		name:  "hanging calls are hedged and do not delay the loss",
		reply: always(hang), run: time.Minute,
		want:     []string{"overdue@15s", "overdue@20s", "overdue@25s", "expired@29.7s"},
		requests: []string{"30s@10s", "30s@15s", "30s@20s", "30s@25s"}, valid: valid,
	},
	{
		name:  "a hanging call is hedged by a second one",
		reply: calls(hang, renewed), run: 26 * time.Second,
		want:     []string{"overdue@15s", "renewed@15s", "renewed@25s"},
		requests: []string{"30s@10s", "30s@15s", "30s@25s"}, valid: 25*time.Second + valid, len: 1,
	},
	{
		name:  "a late answer counts from its own start",
		reply: calls(reply{state: Renewed, after: 7 * time.Second}, hang), run: 18 * time.Second,
		want:     []string{"overdue@15s", "renewed@17s"},
		requests: []string{"30s@10s", "30s@15s"}, valid: 10*time.Second + valid, len: 1,
	},
	{
		name:  "a late answer older than a confirmation changes nothing",
		reply: calls(reply{state: Renewed, after: 7 * time.Second}, renewed), run: 18 * time.Second,
		want:     []string{"overdue@15s", "renewed@15s"},
		requests: []string{"30s@10s", "30s@15s"}, valid: 15*time.Second + valid, len: 1,
	},
	{
		name:  "a late refusal counts while nothing newer is confirmed",
		reply: calls(reply{state: Lost, after: 7 * time.Second}, hang), run: 18 * time.Second,
		want: []string{"overdue@15s", "refused@17s"}, valid: valid,
	},
	{
		name:  "a late refusal against a newer confirmation is checked again",
		reply: calls(reply{state: Lost, after: 7 * time.Second}, renewed), run: 18 * time.Second,
		want:     []string{"overdue@15s", "renewed@15s", "renewed@17s"},
		requests: []string{"30s@10s", "30s@15s", "30s@17s"}, valid: 17*time.Second + valid, len: 1,
	},
	{
		name:  "a late refusal that the next answer confirms is a loss",
		reply: calls(reply{state: Lost, after: 7 * time.Second}, renewed, refused),
		run:   18 * time.Second,
		want:  []string{"overdue@15s", "renewed@15s", "refused@17s"}, valid: 15*time.Second + valid,
	},
	{
		name:  "a hanging call is reported once, regardless of its hedges",
		reply: calls(hang, reply{after: time.Millisecond}), run: 18 * time.Second,
		without: "unknown",
		want:    []string{"overdue@15s"}, valid: valid, len: 1,
	},
	{
		name:     "with a short TTL an answer has 50 ms",
		schedule: func(sched *Schedule) { sched.TTL, sched.Margin = 150*time.Millisecond, 0 },
		reply:    always(reply{state: Renewed, after: 40 * time.Millisecond}), run: 100 * time.Millisecond,
		want:     []string{"renewed@90ms"},
		requests: []string{"150ms@50ms", "150ms@100ms"}, valid: 200 * time.Millisecond, len: 1,
	},
	{
		name:  "a late unknown is not reported again",
		reply: calls(reply{after: 7 * time.Second}, reply{state: Renewed, after: 4 * time.Second}), run: 20 * time.Second,
		want: []string{"overdue@15s", "renewed@19s"}, valid: 15*time.Second + valid, len: 1,
	},
	{
		name: "a late refusal against a newer confirmation does not repeat an attempt in flight",
		reply: calls(
			reply{state: Lost, after: 17 * time.Second}, renewed, reply{state: Renewed, after: 3 * time.Second},
		),
		run:      29 * time.Second,
		want:     []string{"overdue@15s", "renewed@15s", "renewed@28s"},
		requests: []string{"30s@10s", "30s@15s", "30s@25s"}, valid: 25*time.Second + valid, len: 1,
	},
	{
		name:     "an answer to an older attempt leaves the newer one, also with an End that is far",
		schedule: func(sched *Schedule) { sched.End = time.Now().Add(time.Hour) },
		reply: calls(
			reply{state: Renewed, after: 6 * time.Second}, reply{state: Renewed, after: 4 * time.Second}, renewed,
		),
		run:      20 * time.Second,
		want:     []string{"overdue@15s", "renewed@16s", "renewed@19s"},
		requests: []string{"30s@10s", "30s@15s"}, valid: 15*time.Second + valid, len: 1,
	},
	{
		name:  "an answer at the deadline is too late",
		reply: calls(reply{state: Renewed, after: valid - 10*time.Second}, hang), run: time.Minute,
		without: "overdue",
		want:    []string{"expired@29.7s"}, valid: valid,
	},
}

func TestLateAnswersNeverExtendValidityTooFar(t *testing.T) { runLeaseCases(t, lateAnswerCases) }

// Limits of the lifetime, and leases without renewals.
var endCases = []leaseCase{
	{
		name:     "End: renewals request the time left",
		schedule: func(sched *Schedule) { sched.End = time.Now().Add(44 * time.Second) },
		reply:    always(renewed), run: time.Minute,
		want:     []string{"renewed@10s", "renewed@20s", "renewed@30s", "renewed@40s", "expired@43.7s"},
		requests: []string{"30s@10s", "24s@20s", "14s@30s", "4s@40s"}, valid: 44*time.Second - margin,
	},
	{
		name:     "End is cut to whole milliseconds",
		schedule: func(sched *Schedule) { sched.End = time.Now().Add(34*time.Second + 1234567) },
		reply:    always(renewed), run: time.Minute,
		want:     []string{"renewed@10s", "renewed@20s", "renewed@30s", "expired@33.701s"},
		requests: []string{"24.001s@10s", "14.001s@20s", "4.001s@30s"}, valid: 34001*time.Millisecond - margin,
	},
	{
		name:     "End before the first validity ends",
		schedule: func(sched *Schedule) { sched.End = time.Now().Add(5 * time.Second) }, reply: always(renewed),
		run:      time.Minute,
		want:     []string{"expired@5s"},
		requests: []string{}, valid: 5 * time.Second,
	},
	{
		name:  "no renewal for less than a millisecond",
		reply: calls(reply{state: Lost, after: 13 * time.Second}, renewed), run: time.Minute,
		act: func(d *Dog, k *keeper) {
			sched := schedule()
			sched.End = time.Now().Add(13*time.Second + 500*time.Microsecond)
			_ = d.Keep(&k.Lease, k, sched, time.Now().Add(5*time.Second))
			sleep(2 * time.Second)
			d.Confirm(&k.Lease, time.Now().Add(ttl))
		},
		want:     []string{"renewed@2s", "renewed@12s", "expired@13.0005s"},
		requests: []string{"13s@0s", "11s@2s", "1s@12s"}, valid: 13*time.Second + 500*time.Microsecond,
	},
	{
		name:     "a far End is no limit",
		schedule: func(sched *Schedule) { sched.End = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC) },
		reply:    always(renewed), run: 15 * time.Second,
		want: []string{"renewed@10s"}, valid: 10*time.Second + valid, len: 1,
	},
	{
		name:     "a lease without a group is only watched",
		schedule: func(sched *Schedule) { sched.Group = nil }, reply: always(renewed), run: time.Minute,
		want:     []string{"expired@29.7s"},
		requests: []string{}, valid: valid,
	},
	{
		name:  "a validity of centuries",
		reply: always(renewed), run: 200 * 365 * 24 * time.Hour,
		act: func(d *Dog, k *keeper) {
			_ = d.Keep(&k.Lease, k, Schedule{Margin: time.Hour}, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC))
		},
		requests: []string{}, valid: math.MaxInt64 - time.Hour, len: 1,
	},
	{
		name:     "a TTL of a hundred years",
		schedule: func(sched *Schedule) { sched.TTL = 100 * 365 * 24 * time.Hour }, reply: always(renewed),
		run:      40 * 365 * 24 * time.Hour,
		want:     []string{"renewed@292000h0m0s"},
		requests: []string{"876000h0m0s@292000h0m0s"},
		valid:    292000*time.Hour + 876000*time.Hour - margin, len: 1,
	},
}

func TestEndLimitsTheLease(t *testing.T) { runLeaseCases(t, endCases) }

// Confirmations by other commands.
var confirmCases = []leaseCase{
	{
		name:  "Confirm moves the next renewal",
		reply: always(renewed), run: 16 * time.Second,
		act: func(d *Dog, k *keeper) {
			sleep(5 * time.Second)
			d.Confirm(&k.Lease, time.Now().Add(valid))
		},
		want:     []string{"renewed@15s"},
		requests: []string{"30s@15s"}, valid: 15*time.Second + valid, len: 1,
	},
	{
		name:  "Confirm never shortens",
		reply: always(renewed), run: 9 * time.Second,
		act: func(d *Dog, k *keeper) {
			d.Confirm(&k.Lease, time.Now().Add(time.Second))
		},
		valid: valid, len: 1,
	},
	{
		name:     "Confirm extends a watched lease",
		schedule: func(sched *Schedule) { sched.Group = nil }, reply: always(renewed), run: 40 * time.Second,
		act: func(d *Dog, k *keeper) {
			sleep(20 * time.Second)
			d.Confirm(&k.Lease, time.Now().Add(valid))
		},
		valid: 20*time.Second + valid, len: 1,
	},
	{
		name:     "Confirm is cut to End",
		schedule: func(sched *Schedule) { sched.End = time.Now().Add(40 * time.Second) },
		reply:    always(unknown), run: time.Minute, without: "unknown",
		act: func(d *Dog, k *keeper) {
			sleep(5 * time.Second)
			d.Confirm(&k.Lease, time.Now().Add(time.Hour))
		},
		want: []string{"expired@40s"}, valid: 40 * time.Second,
	},
	{
		name:  "Confirm after the loss does not restore the lease",
		reply: always(unknown), run: 40 * time.Second, without: "unknown",
		act: func(d *Dog, k *keeper) {
			sleep(valid)
			d.Confirm(&k.Lease, time.Now().Add(valid))
		},
		want: []string{"expired@29.7s"}, valid: valid,
	},
	{
		name:  "Confirm ends the wait for a hanging attempt",
		reply: calls(hang, renewed), run: 23 * time.Second,
		act: func(d *Dog, k *keeper) {
			sleep(12 * time.Second)
			d.Confirm(&k.Lease, time.Now().Add(valid))
		},
		want:     []string{"renewed@22s"},
		requests: []string{"30s@10s", "30s@22s"}, valid: 22*time.Second + valid, len: 1,
	},
	{
		name:  "an answer that grants less than confirmed shortens nothing",
		reply: calls(reply{state: Lost, after: 3 * time.Second}, renewed),
		act: func(d *Dog, k *keeper) {
			sleep(12 * time.Second)
			d.Confirm(&k.Lease, time.Now().Add(5*time.Minute))
		},
		run:      20 * time.Second,
		want:     []string{"renewed@12s", "renewed@13s"},
		requests: []string{"30s@10s", "30s@12s", "30s@13s"}, valid: 5*time.Minute + 12*time.Second, len: 1,
	},
	{
		name:  "a Confirm of less than confirmed changes nothing",
		reply: calls(unknown, hang), run: 12 * time.Second, without: "unknown",
		act: func(d *Dog, k *keeper) {
			sleep(10 * time.Second)
			d.Confirm(&k.Lease, time.Now().Add(time.Second))
			synctest.Wait()
			if len(d.alarms.leases) != 1 || d.alarms.leases[0].failures != 1 {
				panic("the failure count was reset")
			}
		},
		valid: valid, len: 1,
	},
}

// Validity that lasts longer than a TTL. Renewals go on as they would without it.
var extendedCases = []leaseCase{
	{
		name:  "an extension postpones no renewal and is not shortened by one",
		reply: always(renewed), run: 35 * time.Second,
		act: func(d *Dog, k *keeper) {
			sleep(time.Second)
			d.Confirm(&k.Lease, time.Now().Add(time.Hour))
		},
		want:     []string{"renewed@10s", "renewed@20s", "renewed@30s"},
		requests: []string{"30s@10s", "30s@20s", "30s@30s"}, valid: time.Hour + time.Second, len: 1,
	},
	{
		name:  "a loss is found a period after an extension",
		reply: until(15*time.Second, renewed, refused), run: time.Minute,
		act: func(d *Dog, k *keeper) {
			sleep(11 * time.Second)
			d.Confirm(&k.Lease, time.Now().Add(time.Hour))
		},
		want: []string{"renewed@10s", "refused@20s"}, valid: time.Hour + 11*time.Second,
	},
	{
		name:     "an extension up to End",
		schedule: func(sched *Schedule) { sched.End = time.Now().Add(40 * time.Second) },
		reply:    until(15*time.Second, renewed, refused), run: time.Minute,
		act:  func(d *Dog, k *keeper) { d.Confirm(&k.Lease, time.Now().Add(40*time.Second)) },
		want: []string{"renewed@10s", "refused@20s"}, valid: 40 * time.Second,
	},
	{
		name:  "extended during a failure: the next attempt comes at once",
		reply: calls(unknown, hang, renewed), run: 35 * time.Second, without: "unknown",
		act: func(d *Dog, k *keeper) {
			sleep(12 * time.Second)
			d.Confirm(&k.Lease, time.Now().Add(time.Hour))
		},
		want: []string{"renewed@12s", "renewed@22s", "renewed@32s"}, valid: time.Hour + 12*time.Second, len: 1,
	},
	{
		name:  "kept with a longer validity: renewed in a period",
		reply: always(renewed), run: 15 * time.Second,
		act:  func(d *Dog, k *keeper) { _ = d.Keep(&k.Lease, k, schedule(), time.Now().Add(time.Hour)) },
		want: []string{"renewed@10s"}, valid: time.Hour, len: 1,
	},
	{
		name:  "kept again with a longer validity: renewed when it was due",
		reply: always(renewed), run: 15 * time.Second,
		act: func(d *Dog, k *keeper) {
			for range 5 {
				sleep(time.Second)
				_ = d.Keep(&k.Lease, k, schedule(), time.Now().Add(time.Hour))
			}
		},
		want: []string{"renewed@10s"}, valid: time.Hour + 5*time.Second, len: 1,
	},
	{
		name:     "a period of its own: requests are for the whole TTL",
		schedule: func(sched *Schedule) { sched.Period = 4 * time.Second },
		reply:    until(7*time.Second, renewed, refused), run: time.Minute,
		want:     []string{"renewed@2.5s", "renewed@5s", "refused@7.5s"},
		requests: []string{"30s@2.5s", "30s@5s", "30s@7.5s"}, valid: 5*time.Second + valid,
	},
	{
		name:     "a period of a third of the TTL",
		schedule: func(sched *Schedule) { sched.Period = ttl / 3 }, reply: always(renewed), run: 15 * time.Second,
		want: []string{"renewed@10s"}, valid: 10*time.Second + valid, len: 1,
	},
	{
		name:  "of too many attempts the oldest no longer counts",
		reply: calls(hang, hang, hang, hang, reply{state: Lost, after: 6 * time.Second}, hang),
		act:   func(d *Dog, k *keeper) { d.Confirm(&k.Lease, time.Now().Add(time.Hour)) },
		run:   40 * time.Second, without: "overdue",
		want: []string{"refused@36s"}, valid: time.Hour,
	},
	{
		name:     "a period is never longer than a third of the TTL",
		schedule: func(sched *Schedule) { sched.Period = time.Minute }, reply: always(renewed), run: 15 * time.Second,
		want: []string{"renewed@10s"}, valid: 10*time.Second + valid, len: 1,
	},
	{
		name:  "no answer: valid until the promised end",
		reply: always(unknown), run: time.Hour, without: "unknown",
		act:  func(d *Dog, k *keeper) { d.Confirm(&k.Lease, time.Now().Add(30*time.Minute)) },
		want: []string{"expired@30m0s"}, valid: 30 * time.Minute,
	},
}

func TestExtendedValidityChangesNoRenewal(t *testing.T) { runLeaseCases(t, extendedCases) }

// A server answers nothing for an hour, within an extended validity. It is asked again and again,
// whether calls fail or hang, and the first answer after the outage counts at once.
func TestOutageWithinAnExtendedValidity(t *testing.T) {
	for name, down := range map[string]reply{"calls fail": unknown, "calls hang": hang} {
		for answer, want := range map[State]string{Renewed: "renewed", Lost: "refused"} {
			t.Run(name+", then "+want, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, k := newServer(until(time.Hour, down, reply{state: answer})), newKeeper()
					d := New(s.renew)
					defer d.Close()
					keep(t, d, k, schedule())
					d.Confirm(&k.Lease, time.Now().Add(2*time.Hour))
					sleep(time.Hour + ttl/3)
					last := time.Duration(0)
					for _, q := range s.requests() {
						require.LessOrEqual(t, q.at-last, ttl/3)
						last = q.at
					}
					require.Less(t, len(s.requests()), 1500, "a few in a TTL")
					events := k.eventsWithout(pick(down.hang, "overdue", "unknown"))
					require.NotEmpty(t, events)
					require.Contains(t, events[0], want+"@1h0m")
				})
			})
		}
	}
}

func TestConfirmExtendsButNeverShortensValidity(t *testing.T) { runLeaseCases(t, confirmCases) }

// Repeated Keep, and Drop.
var registrationCases = []leaseCase{
	{
		name:  "a dropped lease has no events and no renewals",
		reply: always(renewed), run: time.Minute,
		act:      func(d *Dog, k *keeper) { d.Drop(&k.Lease); d.Drop(&k.Lease) },
		requests: []string{}, valid: valid,
	},
	{
		name:  "dropped during a call",
		reply: always(reply{state: Lost, after: 2 * time.Second}), run: time.Minute,
		act:      func(d *Dog, k *keeper) { sleep(11 * time.Second); d.Drop(&k.Lease) },
		requests: []string{"30s@10s"}, valid: valid,
	},
	{
		name:  "kept again: an older call's answer does not count",
		reply: calls(reply{state: Renewed, after: 2 * time.Second}, renewed), run: 14 * time.Second,
		act: func(d *Dog, k *keeper) {
			sleep(11 * time.Second)
			sched := schedule()
			sched.TTL = 6 * time.Second
			_ = d.Keep(&k.Lease, k, sched, time.Now().Add(sched.TTL-margin))
		},
		want:     []string{"renewed@13s"},
		requests: []string{"30s@10s", "6s@13s"}, valid: 19*time.Second - margin, len: 1,
	},
	{
		name:  "kept again to be watched",
		reply: always(renewed), run: time.Minute,
		act: func(d *Dog, k *keeper) {
			sleep(11 * time.Second)
			_ = d.Keep(&k.Lease, k, Schedule{}, time.Now().Add(7*time.Second))
		},
		want:     []string{"renewed@10s", "expired@18s"},
		requests: []string{"30s@10s"}, valid: 18 * time.Second,
	},
	{
		name:  "kept after its validity has ended",
		reply: always(renewed), run: time.Second,
		act:  func(d *Dog, k *keeper) { _ = d.Keep(&k.Lease, k, schedule(), time.Now().Add(-time.Second)) },
		want: []string{"expired@0s"}, valid: -time.Second,
	},
	{
		name:  "kept with a validity of the past that has no limit",
		reply: always(renewed), run: time.Second,
		act:  func(d *Dog, k *keeper) { _ = d.Keep(&k.Lease, k, schedule(), time.Time{}) },
		want: []string{"expired@0s"}, valid: math.MinInt64,
	},
	{
		name:  "kept after Drop with a longer validity: renewed in a period",
		reply: always(renewed), run: 23 * time.Second,
		act: func(d *Dog, k *keeper) {
			d.Drop(&k.Lease)
			sleep(12 * time.Second)
			_ = d.Keep(&k.Lease, k, schedule(), time.Now().Add(time.Hour))
		},
		want: []string{"renewed@22s"}, valid: time.Hour + 12*time.Second, len: 1,
	},
	{
		name:  "acquired for less than the TTL: renewed at once",
		reply: always(renewed), run: time.Second,
		act:  func(d *Dog, k *keeper) { _ = d.Keep(&k.Lease, k, schedule(), time.Now().Add(5*time.Second)) },
		want: []string{"renewed@0s"}, valid: valid, len: 1,
	},
}

func TestKeepAndDropStartOver(t *testing.T) { runLeaseCases(t, registrationCases) }

// The renewal is due after 10 s. It is late until it is confirmed, however often it is repeated.
func TestLateCountsFromWhenTheRenewalWasDue(t *testing.T) {
	for _, tt := range []struct {
		name  string
		reply func(request) reply
		act   func(d *Dog, k *keeper)
		after time.Duration // when to ask
		want  time.Duration
	}{
		{name: "no renewal yet", reply: always(renewed), after: 9 * time.Second},
		{name: "confirmed at once", reply: always(renewed), after: 11 * time.Second},
		{
			name:  "a slow answer",
			reply: always(reply{state: Renewed, after: 2 * time.Second}), after: 13 * time.Second, want: 2 * time.Second,
		},
		{
			name:  "the first answer is lost, a hedge is confirmed",
			reply: calls(hang, renewed), after: 16 * time.Second, want: 5 * time.Second,
		},
		{
			name:  "in time again",
			reply: calls(reply{state: Renewed, after: 2 * time.Second}, renewed), after: 21 * time.Second,
		},
		{
			name:  "new schedule that are due at once are not late",
			reply: always(renewed), after: time.Second,
			act: func(d *Dog, k *keeper) { _ = d.Keep(&k.Lease, k, schedule(), time.Now().Add(5*time.Second)) },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKeeper()
				d := New(newServer(tt.reply).renew)
				defer d.Close()
				keep(t, d, k, schedule())
				if tt.act != nil {
					tt.act(d, k)
				}
				sleep(tt.after)
				require.Equal(t, tt.want, k.Late())
			})
		})
	}
}

// The silence counts from when the last confirmed command was sent, even if its answer came so late
// that the first renewal was due at once.
func TestSilenceCountsFromTheCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(always(reply{hang: true}))
		d := New(s.renew)
		defer d.Close()
		k := newKeeper()
		time.Sleep(ttl / 2) // for the answer
		require.NoError(t, d.Keep(&k.Lease, k, Schedule{Group: "a", TTL: ttl, Margin: margin}, k.start.Add(ttl-margin)))
		require.Equal(t, ttl/2, k.Silent())
		time.Sleep(ttl)
		require.Equal(t, ttl*3/2, k.Silent())

		extended := newKeeper()
		require.NoError(t, d.Keep(&extended.Lease, extended, schedule(), time.Now().Add(time.Hour)))
		require.Zero(t, extended.Silent(), "nobody knows")
		time.Sleep(ttl)
		require.Equal(t, ttl, extended.Silent())
	})
}

// After a confirmation, retries begin with the shortest delay again.
func TestRetriesBeginAnewAfterAConfirmation(t *testing.T) {
	withFakeTime(t, func(q request) reply {
		if q.at < 15*time.Second || q.at > 20*time.Second {
			return unknown
		}
		return renewed
	}, func(t *testing.T, d *Dog, s *server) {
		k := newKeeper()
		keep(t, d, k, schedule())
		sleep(20 * time.Second)
		before := len(s.requests())
		due := s.requests()[before-1].at + ttl/3
		sleep(time.Until(k.start.Add(due + minBackoff)))
		require.Len(t, s.requests(), before+2)
		require.Equal(t, ttl/3+minBackoff, k.Silent())
	})
}

// A hedge joins no batch that comes earlier.
func TestHedgesComeNoEarlier(t *testing.T) {
	withFakeTime(t, calls(hang, renewed), func(t *testing.T, d *Dog, s *server) {
		a, b := newKeeper(), newKeeper()
		keep(t, d, a, schedule())
		sleep(4500 * time.Millisecond)
		keep(t, d, b, schedule())
		sleep(11 * time.Second)
		require.Equal(t, []string{"overdue@15s", "renewed@15s"}, a.events())
		require.Equal(t, []string{"renewed@14.5s"}, b.events()[:1])
		require.Len(t, s.requests()[1].batch, 1)
	})
}

// Retries begin after a tenth of a period if that is short.
func TestFirstRetryOfAShortLease(t *testing.T) {
	withFakeTime(t, always(unknown), func(t *testing.T, d *Dog, s *server) {
		keep(t, d, newKeeper(), Schedule{Group: "g", TTL: 300 * time.Millisecond})
		sleep(111 * time.Millisecond)
		require.Len(t, s.requests(), 2)
		require.GreaterOrEqual(t, s.requests()[1].at, 107*time.Millisecond)
	})
}

// Callers may pass any time and any TTL. A sum beyond the range must not turn into its opposite: a
// lease that ended long ago would be valid for ever.
func TestInstantsSaturate(t *testing.T) {
	for _, tt := range []struct {
		at   instant
		d    time.Duration
		want instant
	}{
		{5, 3, 8},
		{5, -8, -3},
		{longAgo, 5, longAgo + 5},
		{longAgo + 5, -5, longAgo},
		{longAgo + 5, -6, longAgo},
		{never - 5, 5, never},
		{never - 5, 6, never},
		{never, -1, never - 1},
	} {
		require.Equal(t, tt.want, tt.at.add(tt.d), "%d + %d", tt.at, tt.d)
	}
}
