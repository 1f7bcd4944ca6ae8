package torture

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// Rounds with consecutive seeds have each fault as their theme, and some rounds have none. A seed
// repeats its theme.
func TestThemes(t *testing.T) {
	enabled := faults()
	met := map[string]int{}
	for seed := range uint64(len(enabled) + withoutFaults) {
		theme, pace := themeOf(1000+seed, enabled)
		again, _ := themeOf(1000+seed, enabled)
		require.Equal(t, theme, again)
		if len(theme) == 0 {
			met[string(pace)]++
			continue
		}
		require.Equal(t, paceMixed, pace)
		met[theme[0].name]++
		require.Contains(t, theme, theme.draw(seeded(seed, 0)))
	}
	require.Len(t, met, len(enabled)+2)
	for seed := range uint64(10) {
		theme, _ := themeOf(seed, enabled[:2])
		require.NotEmpty(t, theme, "a round without the faults that somebody has selected")
		theme, pace := themeOf(seed, nil)
		require.Empty(t, theme)
		require.NotEqual(t, paceMixed, pace)
	}
}

// The slots of a round have each primitive once, and follow each other.
func TestSlots(t *testing.T) {
	s := slotsOf(Primitives, paceMixed, 4*time.Second, 7)
	var all []string
	for i := range s.Groups {
		group := s.at(int64(i) * int64(s.Length))
		require.LessOrEqual(t, len(group), slotPrimitives)
		all = append(all, group...)
	}
	slices.Sort(all)
	require.Equal(t, slices.Sorted(slices.Values(Primitives)), all)
	require.Equal(t, s.at(0), s.at(int64(s.Length)*int64(len(s.Groups))))
	require.Contains(t, Primitives, s.pick(0, seeded(1, 1)))
	require.NotContains(t, slices.Concat(slotsOf([]string{"spin", "lock"}, paceCalm, time.Second, 7).Groups...), "spin")
	require.NotEmpty(t, slotsOf([]string{"spin"}, paceCalm, time.Second, 7).Groups)
	for _, p := range []pace{paceCrowd, paceCalm} {
		require.Greater(t, slotsOf(Primitives, p, 4800*time.Millisecond, 7).Length, turnTime+wakingUp/2, "of %s", p)
	}
}

// Faults wait for moments. The library's own commands begin them.
func TestMoments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proxy := redistest.Embedded(t).Proxy(t)
		seen := make(chan string, 100)
		stop := proxy.Watch(func(args []string) { seen <- momentOf(args) })
		client, err := primitives.New(proxy.Client(t))
		require.NoError(t, err)
		defer func() { require.NoError(t, client.Close(t.Context())) }()
		wait := func(want string) {
			t.Helper()
			for timeout := time.After(time.Minute); ; {
				select {
				case got := <-seen:
					if got == want {
						return
					}
				case <-timeout:
					t.Fatalf("no command of moment %q", want)
				}
			}
		}
		for _, l := range []*primitives.Lock{
			client.Lock("a"), client.FencedLock("b"), client.FairLock("c"),
			client.RWLock("d").Reader(), client.RWLock("e").Writer(),
		} {
			hold, err := l.Acquire(t.Context())
			require.NoError(t, err)
			wait(momentAcquire)
			inner, err := l.Acquire(hold.Context())
			require.NoError(t, err)
			wait(momentNest)
			wait(momentRenew)
			require.NoError(t, inner.Release(t.Context()))
			require.NoError(t, hold.Release(t.Context()))
			wait(momentRelease)
		}
		stop()
		require.Empty(t, momentOf([]string{"PING"}))
	})
}

// A fault that waits for a long hold begins with one of its own process, moment and name.
func TestStays(t *testing.T) {
	ours, others := &slot{}, &slot{}
	r := &round{healing: t.Context()}
	began := make(chan struct{})
	go func() {
		defer close(began)
		r.await(momentOld, "a", []*slot{ours})
	}()
	require.Eventually(t, func() bool {
		r.stays.mu.Lock()
		defer r.stays.mu.Unlock()
		return len(r.stays.watchers) == 1
	}, time.Second, time.Millisecond)
	for _, tt := range []struct {
		at     *slot
		moment string
		name   string
	}{{others, momentOld, "a"}, {ours, momentStay, "a"}, {ours, momentOld, "b"}} {
		r.stays.tell(tt.at, tt.moment, []string{tt.name})
		select {
		case <-began:
			t.Fatalf("it began with %v", tt)
		case <-time.After(5 * time.Millisecond):
		}
	}
	r.stays.tell(ours, momentOld, []string{"b", "a"})
	select {
	case <-began:
	case <-time.After(placing / 2):
		t.Fatal("it has not begun")
	}
	require.Empty(t, r.stays.watchers)
}
