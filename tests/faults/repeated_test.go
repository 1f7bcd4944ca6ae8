package faults

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// The client counts the day for which Redis remembers its permits from the latest answer. So a
// repetition that is granted again makes Redis remember them for a whole day from then on.
func TestRepeatedAcquisitionOfPermitsIsRememberedForADay(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		p := s.Proxy(t)
		sem := fixture.WithOnePermit(t, fixture.NewClient(t, p.Client(t)).Semaphore(redistest.Name(t)))
		p.Record()
		hold := fixture.Acquire(t, t.Context(), sem)
		acquired := fixture.ScriptsOf(p)[0]
		memory := acquired.Args[5]
		require.Positive(t, rdb.PTTL(t.Context(), memory).Val(), "the key of its memory")
		require.NoError(t, rdb.PExpire(t.Context(), memory, time.Minute).Err())
		require.NoError(t, fixture.Resend(rdb, acquired).Err())
		require.Greater(t, rdb.PTTL(t.Context(), memory).Val(), 23*time.Hour)
		fixture.Release(t, hold)
	})
}

// Two acquisitions share an owner id. The hold of the second one has ended, and its count is still
// there. A repetition of the first one is granted again, with its whole lease.
func TestRepeatedReaderHasItsWholeLease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		name := redistest.Name(t)
		p := s.Proxy(t)
		owner := primitives.WithOwner("w")
		p.Record()
		first := fixture.Acquire(t, t.Context(), fixture.NewClient(t, p.Client(t)).RWLock(name).Reader(),
			owner, primitives.WithLease(time.Minute))
		acquired := fixture.ScriptsOf(p)[0]
		second := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).RWLock(name).Reader(),
			owner, primitives.WithLease(fixture.ShortLease))
		leases := func() (keys []string) {
			return rdb.Keys(t.Context(), "*"+name+"*:w:rwlock_timeout:*").Val()
		}
		require.Len(t, leases(), 2)
		redistest.WaitFor(t, fixture.Soon, func() bool { return len(leases()) == 1 }, "the second hold ends")
		require.NoError(t, rdb.PExpire(t.Context(), leases()[0], 10*time.Second).Err())
		require.NoError(t, fixture.Resend(rdb, acquired).Err())
		longest := time.Duration(0)
		for _, key := range leases() {
			longest = max(longest, rdb.PTTL(t.Context(), key).Val())
		}
		require.Greater(t, longest, 50*time.Second)
		_ = second.Release(t.Context())
		_ = first.Release(t.Context())
	})
}

// A former primary that has lost its data refuses a command, like one that has them. It does not
// answer that nothing is held.
func TestEmptyReplicaRefusesBatches(t *testing.T) {
	t.Parallel()
	master := redistest.Fresh(t)
	replica := redistest.Fresh(t)
	rdb := replica.Client(t)
	host, port, _ := strings.Cut(master.Addr(), ":")
	require.NoError(t, rdb.Do(t.Context(), "replicaof", host, port).Err())
	run := scripts.NewRunner(rdb, 0)
	defer run.Close()
	const name = "n"
	keys := &scripts.Keys{
		Main: name, Channel: "c:{n}", SharedCounts: "s:{n}", Line: "l:{n}",
		KindKeys: &scripts.KindKeys{Leases: "leases:{n}"},
	}
	for what, call := range map[string]func() error{
		"release of several locks": func() error {
			_, err := scripts.LockReleaseAll{
				Owner: "me", Members: []scripts.LockReleaseAllMember{{Keys: keys}},
			}.Do(t.Context(), run.Sender())
			return err
		},
		"renewal of permits": func() error {
			batch := scripts.NewBatch(1)
			scripts.PermitSemaphoreRenew{Keys: keys, IDs: "me", TTL: time.Minute}.AddTo(&batch)
			_, err := batch.Do(t.Context(), run.PatientSender(scripts.Patience{}))
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			require.ErrorContains(t, call(), "READONLY")
		})
	}
}
