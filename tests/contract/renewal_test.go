package contract

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestKeyOfAnotherTypeEndsNoOtherRenewal overwrites the key of one of five holds that are renewed
// in one batch.
func TestKeyOfAnotherTypeEndsNoOtherRenewal(t *testing.T) {
	t.Parallel()
	type keyOf struct {
		kinds.Kind
		key func(name string) string
	}
	var keys []keyOf
	for _, kind := range kinds.Leased() {
		keys = append(keys, keyOf{kind, kind.Renewed})
		if kind.Pool {
			kind.Name += " without a pool"
			keys = append(keys, keyOf{kind, func(name string) string { return name }})
		}
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		// Each kind has its own client. All of them wait at the same time.
		name := redistest.Name(t)
		all := map[string][]*primitives.Hold{}
		var overwritten, others []*primitives.Hold
		for _, kind := range keys {
			c := fixture.NewClient(t, s.Client(t), primitives.WithDefaults(primitives.WithWatchdog(fixture.RenewedTTL)))
			var holds []*primitives.Hold
			for i := range 5 {
				holds = append(holds, fixture.Acquire(t, t.Context(), kind.One(t, c, name+kind.Name+strconv.Itoa(i))))
			}
			all[kind.Name] = holds
			overwritten, others = append(overwritten, holds[0]), append(others, holds[1:]...)
		}
		fixture.AwaitRenewal(t, 1, append(others, overwritten...)...) // in one batch of each client from now on
		for _, kind := range keys {
			overwrite(t, s, kind.key(name+kind.Name+"0"))
		}
		for _, kind := range keys {
			t.Run(kind.Name+" is lost", func(t *testing.T) {
				fixture.RequireEnds(t, all[kind.Name][0].Context(), primitives.ErrLost)
			})
		}
		fixture.AwaitRenewal(t, 2, others...)
		for _, kind := range keys {
			t.Run(kind.Name, func(t *testing.T) {
				for _, hold := range all[kind.Name][1:] {
					require.NoError(t, hold.Check(t.Context()))
					fixture.Release(t, hold)
				}
				require.NoError(t, s.Client(t).Del(t.Context(), kind.key(name+kind.Name+"0")).Err())
			})
		}
	})
}

// overwrite gives the key a type that no lock and no pool of permits has.
func overwrite(t testing.TB, s *redistest.Server, key string) {
	t.Helper()
	rdb := s.Client(t)
	_, err := rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.Del(t.Context(), key)
		p.RPush(t.Context(), key, "x")
		return nil
	})
	require.NoError(t, err)
}

// TestForbiddenKeyEndsNoOtherRenewal takes away the permission for the key of one hold.
func TestForbiddenKeyEndsNoOtherRenewal(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	admin := s.Client(t)
	require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "u", "on", ">pw", "+@all", "~*", "&*").Err())
	heard := &fixture.Recorder{}
	c := fixture.NewClient(t, s.Client(t, func(o *redis.Options) {
		o.Username, o.Password = "u", "pw"
	}), primitives.WithDefaults(primitives.WithWatchdog(fixture.RenewedTTL)), heard.Option())
	var holds []*primitives.Hold
	for _, name := range []string{"forbidden", "a", "b", "c"} {
		holds = append(holds, fixture.Acquire(t, t.Context(), c.Lock(name)))
	}
	fixture.AwaitRenewal(t, 1, holds...)
	require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "u", "resetkeys", "~a", "~b", "~c", "~redisson*").Err())
	fixture.RequireEnds(t, holds[0].Context(), primitives.ErrLost)
	require.ErrorContains(t, heard.Await(t, primitives.EventRenewFailed).Err, "NOPERM")
	fixture.AwaitRenewal(t, 1, holds[1:]...)
	for _, hold := range holds[1:] {
		fixture.Release(t, hold)
	}
}

// TestRenewalWhereAPlainClientMeetsSlots uses a client without cluster support on a server that
// refuses keys of two slots in one command, such as a one-node cluster.
func TestRenewalWhereAPlainClientMeetsSlots(t *testing.T) {
	t.Parallel()
	node := redistest.FreshCluster(t, 1).Nodes()[0]
	p := node.Proxy(t)
	c := fixture.NewClient(t, p.Client(t), primitives.WithDefaults(primitives.WithWatchdog(fixture.RenewedTTL)))
	var holds []*primitives.Hold
	for _, kind := range kinds.Leased() {
		for i := range 4 {
			holds = append(holds, fixture.Acquire(t, t.Context(), kind.One(t, c, fmt.Sprint(kind.Name, i))))
		}
	}
	same := fixture.Acquire(t, t.Context(), c.Lock("{lock0}"))
	holds = append(holds, same)
	fixture.AwaitRenewal(t, 2, holds...)
	// New holds are renewed by slot from the start, and Locks lists by slot.
	late := fixture.Acquire(t, t.Context(), c.Lock("late"))
	fixture.AwaitRenewal(t, 1, append(holds, late)...)
	listed := 0
	for info, err := range c.Locks(t.Context(), "*") {
		require.NoError(t, err)
		require.NotEmpty(t, info.Holders)
		listed++
	}
	require.Equal(t, 22, listed)
	overwrite(t, node, "lock0")
	fixture.RequireEnds(t, holds[0].Context(), primitives.ErrLost)
	fixture.AwaitRenewal(t, 1, append(holds[1:], late)...)
	for _, hold := range append(holds[1:], late) {
		fixture.Release(t, hold)
	}
}

// TestRenewalWhileASlotMoves checks that holds are renewed on the master that has their keys. A
// hold whose keys are on two masters is not lost; it is renewed when all of them have moved.
func TestRenewalWhileASlotMoves(t *testing.T) {
	t.Parallel()
	rounds := 1
	if redistest.Full() {
		rounds = 2 // one may have been under way
	}
	servers := redistest.FreshCluster(t, 3)
	c := fixture.NewClient(t, servers.ClusterClient(t),
		primitives.WithDefaults(primitives.WithWatchdog(fixture.RenewedTTL)))
	var holds []*primitives.Hold
	hold := func(l *primitives.Lock) *primitives.Hold {
		h := fixture.Acquire(t, t.Context(), l)
		holds = append(holds, h)
		return h
	}
	for i := range 3 {
		hold(c.Lock("{n}lock" + strconv.Itoa(i)))
	}
	reader := hold(c.RWLock("{n}read").Reader())
	other := hold(c.RWLock("{n}read2").Reader())
	writer := hold(c.RWLock("{n}write").Writer())
	m := servers.Migrate(t, "{n}", servers.AnotherNode(t, "{n}"))
	fixture.AwaitRenewal(t, rounds, holds...)
	m.Move(t, "{n}lock0", "{n}write")
	fixture.AwaitRenewal(t, rounds, holds...)
	m.Move(t, "{n}read")
	began := time.Now()
	fixture.AwaitRenewal(t, 1, holds[0], holds[1], holds[2], other, writer)
	briefly, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.Error(t, reader.Check(briefly),
		"Redis replies TRYAGAIN while half of the keys have moved, and Check retries")
	require.Less(t, time.Since(began), fixture.RenewedTTL+fixture.Soon, "nothing is lost")
	m.Move(t, "{n}read:"+reader.ID()+":rwlock_timeout:1")
	require.NoError(t, reader.Check(t.Context()))
	fixture.AwaitRenewal(t, rounds, holds...)
	m.Move(t, m.Keys(t)...)
	fixture.AwaitRenewal(t, 1, holds...)
	m.Finish(t)
	fixture.AwaitRenewal(t, 1, holds...)
	fixture.Release(t, holds...)
}

// C27: Redis answers each renewal, and refuses it. The loss says so, and wraps the refusal. The log
// has a line for each change, and not for each attempt.
func TestC27LossByRefusedRenewalsNamesTheRefusal(t *testing.T) {
	t.Parallel()
	for _, refusal := range []string{
		"NOREPLICAS Not enough good replicas to write.",
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
		"READONLY You can't write against a read only replica.",
		"NOPERM this user has no permissions to run the 'evalsha' command",
		"BUSY Redis is busy running a script.",
	} {
		name, _, _ := strings.Cut(refusal, " ")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := redistest.Embedded(t)
				var events fixture.Recorder
				var log fixture.LogBuffer
				c := fixture.NewClient(t, s.Client(t), primitives.WithClientName(""), events.Option(), log.Logger())
				hold := fixture.Acquire(t, t.Context(), c.Lock("x"))
				other := fixture.Acquire(t, t.Context(), c.Lock("y"), primitives.WithWatchdog(5*time.Minute))
				s.Mini().SetError(refusal)
				<-hold.Context().Done()
				cause := context.Cause(hold.Context())
				loss, ok := errors.AsType[*primitives.LossError](cause)
				require.True(t, ok)
				assert.Equal(t, primitives.LossExpired, loss.Reason)
				assert.Contains(t, loss.Error(), refusal)
				assert.NotContains(t, loss.Error(), "no answer")
				reply, ok := errors.AsType[redis.Error](cause)
				require.True(t, ok, "it wraps the answer")
				assert.Contains(t, reply.Error(), refusal)
				require.NotErrorIs(t, cause, primitives.ErrUnavailable)
				time.Sleep(100 * time.Second)
				assert.Greater(t, len(events.All(primitives.EventRenewFailed)), 5, "an event for each attempt")
				s.Mini().SetError("")
				time.Sleep(time.Minute) // longer than the pause between two attempts
				require.NoError(t, other.Context().Err())
				assert.LessOrEqual(t, len(log.Records(t, "renewal failed")), 3, log.String())
				assert.NotEmpty(t, log.Records(t, "renewal failed"))
				works := log.Records(t, "renewal works again")
				require.Len(t, works, 1)
				assert.NotZero(t, works[0]["after"])
			})
		})
	}
}

// A final answer ends the repetition of what nobody waits for: the key is a list by now, so nothing
// is left to undo.
func TestForeignKeyEndsRollbacks(t *testing.T) {
	t.Parallel()
	for _, side := range []string{"reader", "writer"} {
		t.Run(side, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := redistest.Embedded(t)
				held := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).RWLock("x").Writer(),
					primitives.WithLease(time.Hour))
				c := fixture.NewClient(t, s.Client(t), primitives.WithClientName(""))
				lock := c.RWLock("x").Writer()
				if side == "reader" {
					lock = c.RWLock("x").Reader()
				}
				failed := make(chan error, 3)
				for range cap(failed) {
					go func() {
						_, err := lock.Acquire(context.Background())
						failed <- err
					}()
				}
				fixture.AwaitWaiters(t, c, cap(failed))
				s.Mini().Del("x")
				require.NoError(t, fixture.ErrOf(s.Mini().Lpush("x", "of another program")))
				for range cap(failed) {
					require.ErrorIs(t, <-failed, primitives.ErrForeign)
				}
				held.Detach()
				time.Sleep(3 * time.Second)
				sent := sentBy(s)
				time.Sleep(10 * time.Minute)
				require.Zero(t, sent())
			})
		})
	}
}
