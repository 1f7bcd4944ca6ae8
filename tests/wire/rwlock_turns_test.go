package wire

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/scripts"
)

// rwTurns sends the commands of clients that share a read-write lock. Each has one request, with
// the client's name as its id.
type rwTurns struct {
	*fixture.RWTest
	by   scripts.Sender
	took map[string]bool // clients that were noted
}

const (
	turnFor  = 85 * time.Millisecond // how long others wait for a client that does not come
	patience = 20 * time.Millisecond // how long a writer has waited before the others leave the lock to it
)

func onTurns(t *testing.T, f func(t *testing.T, x *rwTurns)) {
	t.Helper()
	fixture.RWBubble(t, func(t *testing.T, x *fixture.RWTest) {
		run := scripts.NewRunner(x.Rdb, 0)
		f(t, &rwTurns{x, run.Sender(), map[string]bool{}})
		run.Close()
	})
}

func (x *rwTurns) key() string   { return "redisson_unlock_latch:{" + x.Name + "}:turns" }
func (x *rwTurns) claim() string { return "redlatch_rwlock_claim:{" + x.Name + "}" }

func (x *rwTurns) memory(client string) string {
	return "redisson_unlock_latch:{" + x.Name + "}:" + client
}

func (x *rwTurns) keys() *scripts.Keys {
	return &scripts.Keys{
		Main: x.Name, Channel: x.Channel, SharedCounts: x.SharedCounts(),
		KindKeys: &scripts.KindKeys{ClaimKey: x.claim(), Turns: x.key()},
	}
}

// read tries to read. It returns nil when it was granted, else how soon to try again.
func (x *rwTurns) read(t *testing.T, client string) *time.Duration {
	t.Helper()
	call := scripts.RWLockReadAcquire{
		Keys: x.keys(), MemoryKey: x.memory(client), Owner: client, TTL: time.Minute, Client: client, Waits: 1,
	}
	if x.took[client] {
		call.Waits = 2
	}
	got, err := call.Do(t.Context(), x.by)
	require.NoError(t, err)
	return x.answer(client, got.Acquired)
}

// write tries to write.
func (x *rwTurns) write(t *testing.T, client string) *time.Duration {
	t.Helper()
	got, err := scripts.RWLockWriteAcquire{
		Keys: x.keys(), MemoryKey: x.memory(client), Owner: client, TTL: time.Minute,
		ClaimTTL: time.Second, Client: client, Waits: true,
	}.Do(t.Context(), x.by)
	require.NoError(t, err)
	return x.answer(client, got.Acquired)
}

func (x *rwTurns) answer(client string, got scripts.Acquired) *time.Duration {
	if got.Granted {
		return nil
	}
	x.took[client] = true
	after := time.Duration(got.PTTL) * time.Millisecond
	return &after
}

// requireWithin checks that an attempt was refused, and is to be repeated within d.
func requireWithin(t *testing.T, again *time.Duration, d time.Duration) {
	t.Helper()
	require.NotNil(t, again)
	require.Positive(t, *again)
	require.LessOrEqual(t, *again, d)
}

// writeAfterOthers is refused while it is the turn of others, and then acquires.
func (x *rwTurns) writeAfterOthers(t *testing.T, client string) {
	t.Helper()
	again := x.write(t, client)
	requireWithin(t, again, turnFor)
	time.Sleep(*again)
	require.Nil(t, x.write(t, client))
}

// stopReading releases, or gives up.
func (x *rwTurns) stopReading(t *testing.T, client string) {
	t.Helper()
	_, err := scripts.RWLockReadRelease{
		Keys: x.keys(), MemoryKey: x.memory(client), Owner: client, OnlyOwn: true, Client: client,
	}.Do(t.Context(), x.by)
	require.NoError(t, err)
}

// stopWriting releases, or gives up.
func (x *rwTurns) stopWriting(t *testing.T, client string) {
	t.Helper()
	_, err := scripts.RWLockWriteRelease{
		Keys: x.keys(), MemoryKey: x.memory(client), Owner: client, DefaultTTL: time.Minute, Client: client,
	}.Do(t.Context(), x.by)
	require.NoError(t, err)
}

// A writer's release begins the turn of the readers that waited. Then it is the turn of the writer
// that has waited longest, although others try before it.
func TestRWLockTurns(t *testing.T) {
	onTurns(t, func(t *testing.T, x *rwTurns) {
		require.Nil(t, x.write(t, "first"))
		require.NotNil(t, x.read(t, "far reader"))
		require.NotNil(t, x.write(t, "far writer"))
		time.Sleep(patience)
		require.NotNil(t, x.write(t, "near writer"))
		x.stopWriting(t, "first")

		requireWithin(t, x.write(t, "near writer"), turnFor)
		time.Sleep(turnFor / 2)
		require.NotNil(t, x.read(t, "near reader"), "a writer has claimed the lock")
		requireWithin(t, x.write(t, "near writer"), turnFor-40*time.Millisecond)
		require.Nil(t, x.read(t, "far reader"), "it waited before the claim")
		require.NotNil(t, x.write(t, "near writer"))
		x.stopReading(t, "far reader")

		requireWithin(t, x.write(t, "near writer"), turnFor)
		requireWithin(t, x.read(t, "near reader"), turnFor)
		time.Sleep(turnFor / 2)
		require.Nil(t, x.write(t, "far writer"))
		require.Zero(t, x.Rdb.Exists(t.Context(), x.claim()).Val())
		x.stopWriting(t, "far writer")

		require.Nil(t, x.read(t, "near reader"), "it waited, too")
		x.stopReading(t, "near reader")
		require.Nil(t, x.write(t, "near writer"))
	})
}

// Writers that have not waited for long compete.
func TestRWLockWritersCompeteAtFirst(t *testing.T) {
	onTurns(t, func(t *testing.T, x *rwTurns) {
		require.Nil(t, x.write(t, "first"))
		require.NotNil(t, x.write(t, "far writer"))
		time.Sleep(patience - time.Millisecond)
		x.stopWriting(t, "first")
		require.Nil(t, x.write(t, "near writer"))
		x.stopWriting(t, "near writer")
		require.Nil(t, x.write(t, "far writer"))
	})
}

// A client that does not come delays the others by at most one turn. One that has given up does not
// delay them.
func TestRWLockTurnOfAClientThatDoesNotCome(t *testing.T) {
	type test struct {
		name  string
		wait  func(t *testing.T, x *rwTurns)
		leave func(t *testing.T, x *rwTurns)
	}
	reader := func(t *testing.T, x *rwTurns) { require.NotNil(t, x.read(t, "gone")) }
	writer := func(t *testing.T, x *rwTurns) { require.NotNil(t, x.write(t, "gone")) }
	for _, tt := range []test{
		{"reader", reader, func(t *testing.T, x *rwTurns) { x.stopReading(t, "gone") }},
		{"writer", writer, func(t *testing.T, x *rwTurns) { x.stopWriting(t, "gone") }},
	} {
		t.Run(tt.name+" has died", func(t *testing.T) {
			onTurns(t, func(t *testing.T, x *rwTurns) {
				require.Nil(t, x.write(t, "first"))
				tt.wait(t, x)
				time.Sleep(patience)
				x.stopWriting(t, "first")
				x.writeAfterOthers(t, "near writer")
				x.stopWriting(t, "near writer")
				require.Nil(t, x.write(t, "next"), "it is waited for only once")
			})
		})
		t.Run(tt.name+" has given up", func(t *testing.T) {
			onTurns(t, func(t *testing.T, x *rwTurns) {
				require.Nil(t, x.write(t, "first"))
				tt.wait(t, x)
				time.Sleep(patience)
				tt.leave(t, x)
				x.stopWriting(t, "first")
				require.Nil(t, x.write(t, "near writer"))
			})
		})
		t.Run(tt.name+" gives up in its turn", func(t *testing.T) {
			onTurns(t, func(t *testing.T, x *rwTurns) {
				require.Nil(t, x.write(t, "first"))
				tt.wait(t, x)
				time.Sleep(patience)
				x.stopWriting(t, "first")
				tt.leave(t, x)
				require.Nil(t, x.write(t, "near writer"))
			})
		})
	}
}

// A client whose reader leaves many others is not waited for, although it was refused before.
func TestRWLockTurnOfAReaderAmongMany(t *testing.T) {
	onTurns(t, func(t *testing.T, x *rwTurns) {
		require.Nil(t, x.write(t, "first"))
		require.NotNil(t, x.read(t, "gone"))
		x.stopWriting(t, "first")
		clear(x.took) // it does not know that it was noted
		for _, client := range []string{"gone", "a", "b", "c", "d", "e", "f"} {
			require.Nil(t, x.read(t, client))
		}
		noted := func() []string { return x.Rdb.ZRange(t.Context(), x.key(), 0, -1).Val() }
		require.Contains(t, noted(), "rgone")
		x.stopReading(t, "gone")
		require.NotContains(t, noted(), "rgone")
	})
}

// Writers that have died delay the others by one turn in all. A live one is noted again when it is
// refused.
func TestRWLockTurnsOfManyWritersThatDoNotCome(t *testing.T) {
	onTurns(t, func(t *testing.T, x *rwTurns) {
		require.Nil(t, x.write(t, "first"))
		for i := range 20 {
			require.NotNil(t, x.write(t, fmt.Sprint("gone ", i)))
		}
		require.NotNil(t, x.write(t, "far writer"))
		time.Sleep(patience)
		x.stopWriting(t, "first")
		x.writeAfterOthers(t, "near writer")
		x.stopWriting(t, "near writer")

		require.Nil(t, x.write(t, "near writer"), "nobody's turn")
		require.NotNil(t, x.write(t, "far writer"))
		time.Sleep(patience)
		x.stopWriting(t, "near writer")
		requireWithin(t, x.write(t, "near writer"), turnFor)
		time.Sleep(2 * turnFor)
		require.Nil(t, x.write(t, "near writer"))
		require.NotNil(t, x.write(t, "far writer"), "late: its answer took longer than the turn")
		time.Sleep(patience)
		x.stopWriting(t, "near writer")
		requireWithin(t, x.write(t, "near writer"), turnFor)
		require.Nil(t, x.write(t, "far writer"), "it was noted again")
	})
}

// A turn that seems to have begun in the future, because the clock was set back, does not keep the
// readers from theirs.
func TestRWLockTurnAfterTheClockWasSetBack(t *testing.T) {
	onTurns(t, func(t *testing.T, x *rwTurns) {
		require.Nil(t, x.write(t, "first"))
		require.NotNil(t, x.read(t, "reader"))
		later := float64(time.Now().Add(time.Minute).UnixMilli())
		require.NoError(t, x.Rdb.ZAdd(t.Context(), x.key(), redis.Z{Score: later + 1e14, Member: "turn"}).Err())
		x.stopWriting(t, "first")
		requireWithin(t, x.write(t, "writer"), turnFor)
		require.Nil(t, x.read(t, "reader"))
	})
}

// What is noted is a help: if it cannot be used, all clients compete.
func TestRWLockTurnsThatCannotBeUsed(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, x *rwTurns){
		"another type": func(t *testing.T, x *rwTurns) {
			require.NoError(t, x.Rdb.Set(t.Context(), x.key(), "x", 0).Err())
		},
		"deleted": func(t *testing.T, x *rwTurns) { require.NoError(t, x.Rdb.Del(t.Context(), x.key()).Err()) },
		"notes of the future": func(t *testing.T, x *rwTurns) { // the clock was set back
			later := float64(time.Now().Add(time.Hour).UnixMilli())
			require.NoError(t, x.Rdb.ZAdd(t.Context(), x.key(),
				redis.Z{Score: later, Member: "rreader"}, redis.Z{Score: later - 1e14, Member: "wwriter"},
				redis.Z{Score: later + 1e14, Member: "turn"}).Err())
		},
	} {
		t.Run(name, func(t *testing.T) {
			onTurns(t, func(t *testing.T, x *rwTurns) {
				require.Nil(t, x.write(t, "first"))
				spoil(t, x)
				require.NotNil(t, x.read(t, "reader"))
				require.NotNil(t, x.write(t, "writer"))
				time.Sleep(patience)
				spoil(t, x)
				x.stopWriting(t, "first")
				require.Nil(t, x.read(t, "reader"))
				require.NotNil(t, x.write(t, "writer"))
				x.stopReading(t, "reader")
				require.Nil(t, x.write(t, "writer"))
				x.stopWriting(t, "writer")
				require.Nil(t, x.write(t, "next"))
			})
		})
	}
}
