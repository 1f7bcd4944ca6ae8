package stage

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fixture is a stage whose time is fake.
type fixture struct {
	*Stage

	t *testing.T
}

// play runs f with a stage.
func play(t *testing.T, settings Settings, f func(f *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(settings, func() {})
		require.NoError(t, err)
		defer func() {
			for i, c := range s.State().Clients {
				if c.Cut {
					assert.NoError(t, s.Do(i, Mend))
				}
				if c.State == holding || c.State == waiting {
					assert.NoError(t, s.Do(i, Release))
				}
			}
			assert.NoError(t, s.Close(context.Background()))
			time.Sleep(time.Minute) // dials of go-redis, for which Close does not wait, end meanwhile
		}()
		f(&fixture{s, t})
	})
}

// after carries an action out, and lets some time pass.
func (f *fixture) after(index int, action string, wait time.Duration) {
	f.t.Helper()
	require.NoError(f.t, f.Do(index, action))
	time.Sleep(wait)
}

// told returns the lines of the log that contain one of the texts, in their order.
func (f *fixture) told(texts ...string) (lines []string) {
	for _, e := range f.State().Log {
		for _, text := range texts {
			if strings.Contains(e.Text, text) {
				lines = append(lines, e.Text)
			}
		}
	}
	return lines
}

var usual = Settings{Name: "orders:42", TTL: 4000}

// The holder whose wire is cut is told that it has lost the lock before the other client acquires
// it.
func TestTheHolderIsToldBeforeTheNextOneAcquires(t *testing.T) {
	for name, settings := range map[string]Settings{
		"lock":      usual,
		"fair lock": {Name: "orders:42", TTL: 4000, Fair: true},
		"short TTL": {Name: "orders:42", TTL: 1000},
		"odd name":  {Name: `<b>{"x"}</b>`, TTL: 4000},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, settings, func(f *fixture) {
				f.after(0, Acquire, time.Second)
				f.after(1, Acquire, time.Second)
				require.Equal(t, []string{holding, waiting}, []string{f.State().Clients[0].State, f.State().Clients[1].State})
				f.after(0, Cut, 2*time.Duration(settings.TTL)*time.Millisecond)
				require.Equal(t, []string{idle, holding}, []string{f.State().Clients[0].State, f.State().Clients[1].State})
				lines := f.told("lost:", "acquired the lock", "was told")
				require.Len(t, lines, 4)
				require.Equal(t, "acquired the lock", lines[0])
				require.Contains(t, lines[1], "lost: expired: no answer from Redis for")
				require.Equal(t, "acquired the lock", lines[2])
				require.Regexp(t, `^Client 1 was told that it lost the lock \d+ ms before client 2 acquired it\.$`, lines[3])
				require.Equal(t, lines[1], f.State().Clients[0].Lost)
				loss, hold, server := lastOf(f, 0), lastOf(f, 1), lastOf(f, 2)
				require.Equal(t, spanLost, loss.What)
				require.Less(t, loss.To, hold.From)
				require.Contains(t, server.Text, "client 2")
			})
		})
	}
}

// lastOf returns the latest span of a row.
func lastOf(f *fixture, index int) Span {
	spans := f.State().Rows[index].Spans
	return spans[len(spans)-1]
}

func TestTheLockGoesFromOneToTheOther(t *testing.T) {
	play(t, usual, func(f *fixture) {
		f.after(0, Acquire, 10*time.Second)
		require.NotEmpty(t, f.State().Rows[0].Marks, "the lease was renewed")
		require.Greater(t, f.State().Clients[0].ValidUntil, f.State().Now)
		f.after(1, Acquire, time.Second)
		f.after(0, Release, time.Second)
		require.Len(t, f.told("after client 1 began to release it"), 1)
		require.Equal(t, spanHold, lastOf(f, 0).What)
		f.after(0, Acquire, time.Second)
		f.after(0, Release, time.Second) // it does not wait any longer
		require.Equal(t, spanRefused, lastOf(f, 0).What)
		require.Equal(t, holding, f.State().Clients[1].State)
		require.Empty(t, f.told("defect"))
	})
}

// A client cannot do everything in each state. The page does not offer it, and the stage refuses
// it.
func TestRefusedActions(t *testing.T) {
	play(t, usual, func(f *fixture) {
		for _, action := range []string{Release, Mend, Resume, Start, Stop, Kill, "", "fly"} {
			require.ErrorIs(t, f.Do(0, action), ErrCannot, action)
		}
		require.ErrorIs(t, f.Do(2, Acquire), ErrCannot)
		require.ErrorIs(t, f.Do(-1, Acquire), ErrCannot)
		f.after(0, Acquire, time.Second)
		require.ErrorIs(t, f.Do(0, Acquire), ErrCannot)
	})
}

// The script of the page expects lists.
func TestStateHasListsFromTheBeginning(t *testing.T) {
	play(t, usual, func(f *fixture) {
		text, err := json.Marshal(f.State())
		require.NoError(t, err)
		require.NotContains(t, string(text), "null")
	})
}

func TestALockThatCannotBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := New(Settings{Name: "x", TTL: -1}, func() {})
		require.Error(t, err)
	})
}
