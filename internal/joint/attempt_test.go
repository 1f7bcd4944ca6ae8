package joint_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	. "github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/enginetest"
)

// Each case is what five servers answer to the acquisition of a red lock, and its error: the reason that decides comes
// first.
func TestRedReportsWhatItsMembersAnswer(t *testing.T) {
	const (
		budget = 2 * time.Second
		held   = "not acquired: held by other for another 1h0m0s"
		down   = "Redis unavailable: connection refused"
		mute   = "Redis unavailable: no answer"
		busy   = "Redis unavailable: busy"
	)
	faults := map[rune]Fault{'d': {Err: ErrDown}, 'f': {Err: ErrFatal}, 'b': {Err: ErrBusy}, 'm': {Mute: true}}
	for _, tt := range []struct {
		name    string
		servers string // g: grants, h: held by another, d: down, f: a lasting error, b: a temporary refusal, m: mute
		limit   time.Duration
		at      time.Duration
		want    string // without the name of the member
	}{
		{"lasting errors alone prevent a majority", "ggfff", Forever, 0, "wrong type; wrong type; wrong type"},
		{"lasting errors among others", "dfdff", Forever, 0, "wrong type; wrong type; wrong type; " + down + "; " + down},
		{"too few lasting errors", "fdfdd", Forever, 0, down + "; " + down + "; " + down + "; wrong type; wrong type"},
		{"lasting errors, the others refuse", "hfffh", NoWait, 0, "wrong type; wrong type; wrong type"},
		{"refusals prevent a majority", "hhhff", NoWait, 0, "not acquired (" + held + "; wrong type; wrong type)"},
		{"refusals and failures together", "hhffg", NoWait, 0, "not acquired (" + held + "; wrong type; wrong type)"},
		{"a refusal, failures alone do not prevent a majority", "hffgg", 10 * ms, 10 * ms, "not acquired (" + held + "; wrong type; wrong type)"},
		{"refusals and one down", "hhhdg", NoWait, 0, "not acquired (" + held + "; connection refused)"},
		{"silence, beside a refusal", "hmmmg", NoWait, budget, "no answer; no answer; no answer"},
		{"refusals together with silence", "hhmmg", NoWait, budget, "not acquired (" + held + "; no answer; no answer)"},
		{"silence for a moment", "mmmgg", 50 * ms, 50 * ms, "not acquired"},
		{"silence for a moment, and an error", "mfmmg", 50 * ms, 50 * ms, "wrong type"},
		{"silence for a moment, and one down", "mdmmg", 50 * ms, 50 * ms, down},
		{"silence until the limit", "mmmgg", time.Second, time.Second, mute},
		{"silence until the limit, and an error", "mfmmg", time.Second, time.Second, mute + "; wrong type"},
		{"silence until the limit, and one down", "mdmmg", time.Second, time.Second, mute + "; " + down},
		{"silence, and an error", "mfmmg", Forever, budget, "no answer; no answer; no answer; wrong type"},
		{"temporary refusals", "bbbgg", time.Second, time.Second, "Redis unavailable for 1s: " + busy + "; " + busy + "; " + busy},
	} {
		t.Run(tt.name, func(t *testing.T) {
			Bubble(t, func(t *testing.T, _ *Server) {
				k := newCluster(t, 5)
				for i, c := range tt.servers {
					switch s := k.servers[i]; c {
					case 'g':
					case 'h':
						s.Seize("x", "other", time.Hour)
					default:
						s.OnEach(func(cmd Command) Fault {
							if cmd.Op == "acquire" {
								return faults[c]
							}
							return Fault{}
						})
					}
				}
				began := time.Now()
				_, err := redOf(k.clients).Acquire(t.Context(), NewTerms(), tt.limit)
				assert.Equal(t, tt.want, strings.ReplaceAll(err.Error(), `lock "x": `, ""))
				assert.Equal(t, strings.HasPrefix(tt.want, "not acquired"), errors.Is(err, ErrNotAcquired))
				assert.Equal(t, tt.at, time.Since(began))
				for _, s := range k.servers {
					s.ResetFaults()
					s.Free("x")
				}
				Sleep(time.Minute)
				k.requireFree(t)
			})
		})
	}
}
