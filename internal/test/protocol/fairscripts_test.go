//go:build !race

package protocol

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/scripts"
)

// redisFair is the server of a model of a fair lock on a Redis.
type redisFair struct {
	*fairSetup
	t        *testing.T
	rdb      *redis.Client
	run      *scripts.Runner
	messages <-chan *redis.Message
	began    int64 // ms; waiters of the state joined before
}

const (
	fairQueue   = "queue"
	fairScores  = "scores"
	fairWaiting = "waiters"
	fairBeats   = "clients"
	timeoutMS   = 30_000
)

var (
	fairAcquire = scripts.Load("fairlock/acquire")
	fairRelease = scripts.Load("fairlock/release")
	fairLeave   = scripts.Load("fairlock/leave_queue")
	fairRefresh = scripts.Load("fairlock/refresh")
)

func lifeOf(client int8) string { return fmt.Sprint("life", client) }

// joinedAt is the time that stands for a position; positionAt is the reverse.
func (l *redisFair) joinedAt(p since) int64 { return l.began - 10_000 + int64(p) }

func (l *redisFair) positionAt(text string) since {
	ms, err := strconv.ParseInt(text, 10, 64)
	require.NoError(l.t, err)
	if ms >= l.began {
		return joinsNow
	}
	return since(ms - l.joinedAt(notQueued))
}

// textOf returns the text by which Redis remembers a release; memoryOf is the reverse.
func (l *redisFair) textOf(m fairMemory) string {
	if m.answer == handedOff {
		return fmt.Sprint(ownerOf(m.grant.to), " ", l.joinedAt(m.grant.since), " ", leaseMS)
	}
	return map[answer]string{nothing: "0", freed: "1"}[m.answer]
}

func (l *redisFair) memoryOf(text string) fairMemory {
	switch text {
	case "":
		return fairMemory{grant: noGrant}
	case "0":
		return fairMemory{nothing, noGrant}
	case "1":
		return fairMemory{freed, noGrant}
	}
	return fairMemory{handedOff, l.parseGrant(text)}
}

// parseGrant reads a grant, whatever its lease.
func (l *redisFair) parseGrant(text string) fairGrant {
	parts := strings.Fields(text)
	require.Len(l.t, parts, 3)
	return fairGrant{l.idOf(parts[0]), l.positionAt(parts[1])}
}

func (l *redisFair) idOf(owner string) int8 {
	for id := range int8(acquisitions) {
		if owner == ownerOf(id) {
			return id
		}
	}
	require.Empty(l.t, owner)
	return nobody
}

// set makes Redis equal to a state of the model.
func (l *redisFair) set(s *fairServer) {
	ctx, pipe := l.t.Context(), l.rdb.Pipeline()
	pipe.FlushDB(ctx)
	l.began = time.Now().UnixMilli()
	if s.holder != nobody {
		pipe.HSet(ctx, lockKey, ownerOf(s.holder), s.count)
		pipe.PExpire(ctx, lockKey, leaseMS*time.Millisecond)
	}
	for i, id := range s.queue {
		if id == nobody {
			break
		}
		pipe.RPush(ctx, fairQueue, ownerOf(id))
		pipe.ZAdd(ctx, fairScores, redis.Z{Score: float64(l.began + timeoutMS + int64(i)), Member: ownerOf(id)})
		entry := fmt.Sprint(lifeOf(l.of[id]), " ", timeoutMS)
		if l.kinds[id] == byGrant {
			entry += fmt.Sprint(" ", leaseMS, " ", l.joinedAt(s.joined[id]))
		}
		pipe.HSet(ctx, fairWaiting, ownerOf(id), entry)
		beat := l.began - 2*timeoutMS
		if s.fresh[l.of[id]] {
			beat = l.began - 1000
		}
		pipe.HSet(ctx, fairBeats, lifeOf(l.of[id]), beat)
	}
	for id, m := range s.memory {
		if m.answer != notSent {
			pipe.Set(ctx, memoryKeyOf(int8(id)), l.textOf(m), 0)
		}
	}
	_, err := pipe.Exec(ctx)
	require.NoError(l.t, err)
}

// state returns the state of the model that Redis equals.
func (l *redisFair) state() fairServer {
	ctx, pipe := l.t.Context(), l.rdb.Pipeline()
	hash, queue := pipe.HGetAll(ctx, lockKey), pipe.LRange(ctx, fairQueue, 0, -1)
	scores := pipe.ZRange(ctx, fairScores, 0, -1)
	entries, beats := pipe.HGetAll(ctx, fairWaiting), pipe.HGetAll(ctx, fairBeats)
	memory := [acquisitions]*redis.StringCmd{}
	for id := range memory {
		memory[id] = pipe.Get(ctx, memoryKeyOf(int8(id)))
	}
	_, _ = pipe.Exec(ctx)
	s := fairServer{holder: nobody}
	require.LessOrEqual(l.t, len(hash.Val()), 1)
	for owner, count := range hash.Val() {
		n, err := strconv.Atoi(count)
		require.NoError(l.t, err)
		s.holder, s.count = l.idOf(owner), int8(n)
	}
	for i := range s.queue {
		if s.queue[i] = nobody; i < len(queue.Val()) {
			s.queue[i] = l.idOf(queue.Val()[i])
		}
		s.memory[i] = l.memoryOf(memory[i].Val())
	}
	for _, owner := range scores.Val() {
		s.scored[l.idOf(owner)] = true
	}
	for owner, entry := range entries.Val() {
		id, parts := l.idOf(owner), strings.Fields(entry)
		require.Equal(l.t, lifeOf(l.of[id]), parts[0])
		if s.joined[id] = firstTime; l.kinds[id] == byGrant {
			s.joined[id] = l.positionAt(parts[3])
		}
	}
	for c := range int8(acquisitions) {
		if beat, ok := beats.Val()[lifeOf(c)]; ok {
			ms, err := strconv.ParseInt(beat, 10, 64)
			require.NoError(l.t, err)
			s.fresh[c] = ms > l.began-timeoutMS
		}
	}
	if len(queue.Val()) == 0 {
		delete(beats.Val(), "holder")
		require.Empty(l.t, beats.Val(), "an empty queue has heartbeats")
	}
	return s
}

// do runs a script. It returns the reply, and the message that the script published.
func (l *redisFair) do(script *scripts.Script, memory int8, args ...any) (any, fairGrant) {
	keys := []any{lockKey, "channel", memoryKeyOf(memory), "shared counts", fairQueue, fairScores, fairWaiting, fairBeats}
	reply, err := l.run.Do(l.t.Context(), script, keys, args...)
	require.NoError(l.t, err)
	require.NoError(l.t, l.rdb.Publish(l.t.Context(), "channel:end", "").Err())
	got := noGrant
	for m := range l.messages {
		to, _ := strings.CutPrefix(m.Channel, "channel:")
		if to == "end" {
			break
		}
		require.Equal(l.t, noGrant, got, "a second message")
		if m.Payload == "0" {
			got = fairGrant{to: l.idOf(to)}
			continue
		}
		got = l.parseGrant(m.Payload)
		require.Equal(l.t, lifeOf(l.of[got.to]), to)
	}
	return reply.Value, got
}

func (l *redisFair) acquire(id int8) (answer, since) {
	reply, message := l.do(fairAcquire, id, ownerOf(id), leaseMS, "publish", 0, 0, int(l.kinds[id]), timeoutMS,
		lifeOf(l.of[id]), "owner", 0)
	require.Equal(l.t, noGrant, message)
	switch reply := reply.(type) {
	case int64:
		return granted, notQueued
	case string:
		return over, notQueued
	case []any:
		if l.kinds[id] == doesNotWait {
			require.LessOrEqual(l.t, len(reply), 2)
			return refused, notQueued
		}
		require.Len(l.t, reply, 4)
		if l.kinds[id] == byMessage {
			require.Empty(l.t, reply[2])
			return refused, firstTime
		}
		return refused, l.positionAt(reply[2].(string))
	}
	require.FailNow(l.t, "unexpected reply", "%v", reply)
	return 0, 0
}

func (l *redisFair) release(id int8) (answer, fairGrant) {
	reply, message := l.do(fairRelease, id, ownerOf(id), "publish", memoryMS, lifeOf(l.of[id]))
	got := l.memoryOf(fmt.Sprint(reply)) // an answer is remembered as it is
	if got.answer == handedOff {
		require.Equal(l.t, noGrant, message)
		return handedOff, got.grant
	}
	return got.answer, message
}

func (l *redisFair) leave(id int8) fairGrant {
	_, message := l.do(fairLeave, id, ownerOf(id), "publish")
	return message
}

// refresh checks the reply, too: it must say who holds, who is next, and who is not in the queue.
func (l *redisFair) refresh(client int8) fairGrant {
	args := []any{lifeOf(client), "publish", timeoutMS}
	for id, of := range l.of {
		if of == client {
			args = append(args, ownerOf(int8(id)))
		}
	}
	reply, message := l.do(fairRefresh, 0, args...)
	got, s := reply.([]any), l.state()
	require.Equal(l.t, s.holder, l.idOf(got[1].(string)))
	require.Equal(l.t, s.head(), l.idOf(got[2].(string)))
	ours := s.head() != nobody && l.of[s.head()] == client
	require.Equal(l.t, ours, got[4] == int64(1))
	missing := []any{}
	for id, of := range l.of {
		if of == client && !s.scored[id] {
			missing = append(missing, ownerOf(int8(id)))
		}
	}
	require.Equal(l.t, missing, got[6:])
	return message
}

// fairSamples is how many states of a model's server are compared with Redis.
const fairSamples = 100

// The server of the fair lock's model does what the scripts do: each command, from a sample of the
// states that the server can reach.
func TestFairScriptsDoWhatTheModelSays(t *testing.T) {
	for name, f := range map[string]fairSetup{
		"three clients":                                threeClients,
		"three clients, one without grants":            oneNotified,
		"three clients, one does not wait":             oneTry,
		"two goroutines of one client":                 twoOfOne,
		"two goroutines of one client, without grants": twoNotified,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if f != threeClients {
				redistest.NeedFull(t, "many states of the server")
			}
			f.upTo = fault
			var servers reached[fairServer]
			r := explore(fairModel(&f), func(s fairState) { servers.add(s.server) })
			require.Empty(t, r.violation)
			states := servers.list
			t.Logf("%d states of the server, of which %d are compared", len(states), min(len(states), fairSamples))
			rand.New(rand.NewPCG(1, 2)).Shuffle(len(states), func(i, j int) {
				states[i], states[j] = states[j], states[i]
			})
			rdb := redistest.Miniredis(t).Client(t)
			pubsub := rdb.PSubscribe(t.Context(), "channel:*")
			t.Cleanup(func() { _ = pubsub.Close() })
			_, err := pubsub.Receive(t.Context())
			require.NoError(t, err)
			l := &redisFair{fairSetup: &f, t: t, rdb: rdb, run: runner(t, rdb), messages: pubsub.Channel()}
			for _, s := range states[:min(len(states), fairSamples)] {
				l.compare(s)
			}
		})
	}
}

// compare runs each command on the model and on Redis, from the same state.
func (l *redisFair) compare(s fairServer) {
	for id := range int8(acquisitions) {
		check := func(what string, model func(*fairServer) (any, any), script func() (any, any)) {
			want := s
			wantAnswer, wantDetail := model(&want)
			l.set(&s)
			what = fmt.Sprintf("%s of %d in %+v", what, id, s)
			answer, detail := script()
			require.Equal(l.t, []any{wantAnswer, wantDetail}, []any{answer, detail}, what)
			require.Equal(l.t, want, l.state(), what)
		}
		check("acquire",
			func(s *fairServer) (any, any) { return pair(s.acquire(id, l.fairSetup)) },
			func() (any, any) { return pair(l.acquire(id)) })
		check("release",
			func(s *fairServer) (any, any) { return pair(s.release(id, l.fairSetup)) },
			func() (any, any) { return pair(l.release(id)) })
		check("leave",
			func(s *fairServer) (any, any) { return nil, s.leave(id, l.fairSetup) },
			func() (any, any) { return nil, l.leave(id) })
		check("refresh",
			func(s *fairServer) (any, any) { return nil, s.refresh(l.of[id], l.fairSetup) },
			func() (any, any) { return nil, l.refresh(l.of[id]) })
	}
}

func pair[A, B any](a A, b B) (any, any) { return a, b }
