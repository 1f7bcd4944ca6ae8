package watchdog

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The second renewal hangs. It asked for the time up to End, and so does the third one, which is
// answered. Both TTLs are cut to whole milliseconds, and the second one ends half a millisecond
// later.
func TestHangingRenewalIsNotHedgedOnceEndIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(func(q request) reply {
			return reply{state: Renewed, hang: q.n == 1 || q.n > 100} // an endless loop must not hang the test
		})
		d, k := New(s.renew), newKeeper()
		defer d.Close()
		sched := schedule()
		sched.TTL, sched.End = 30_003*time.Millisecond, time.Now().Add(45*time.Second)
		keep(t, d, k, sched)
		sleep(25010 * time.Millisecond) // the third one is answered
		require.Len(t, s.requests(), 3)
		sleep(9 * time.Second)
		require.Len(t, s.requests(), 3, "the next one comes a period later")
		sleep(time.Minute)
		require.Len(t, s.requests(), 4)
	})
}
