package primitives_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/scripts"
)

// fairModel is a model of a fair queue. Each step changes the model and runs a script, and then
// compares the two.
type fairModel struct {
	rdb      *redis.Client
	issued   int // the number of ids and clients so far
	queue    []fairEntry
	holder   fairEntry
	until    time.Time            // the end of the holder's lease
	seen     map[string]time.Time // the last heartbeat of each client
	live     []string             // the clients that have not crashed
	all      []fairEntry          // every entry that ever tried
	ended    map[fairEntry]any    // entries that have released or left, with the answers
	lastEnds []fairEntry          // the same entries, in order
	beat     time.Time            // the time of the last heartbeat
}

// fairEntry is one acquisition: a queue entry, or the holder.
type fairEntry struct{ id, client string }

const (
	modelTimeout = 10 * time.Second // the waiter timeout
	modelTTL     = time.Hour
	// An attempt counts as a heartbeat if the last one is this old.
	modelHeartbeatAge = 500 * time.Millisecond
)

var (
	modelAcquire = scripts.Load("fairlock/acquire")
	modelRelease = scripts.Load("fairlock/release")
	modelRefresh = scripts.Load("fairlock/refresh")
)

// newFairModel returns a model with three clients.
func newFairModel(rdb *redis.Client) *fairModel {
	m := &fairModel{rdb: rdb, seen: map[string]time.Time{}, ended: map[fairEntry]any{}}
	for range 3 {
		m.addClient()
	}
	return m
}

func (m *fairModel) addClient() {
	m.issued++
	m.live = append(m.live, "client"+strconv.Itoa(m.issued))
}

// run runs a script. memory is the id whose request it remembers.
func (m *fairModel) run(s *scripts.Script, memory string, args ...any) (any, error) {
	keys := []string{
		"l", "redisson_lock__channel:{l}", "memory:{l}:" + memory, "redlatch_shared_counts:{l}",
		"redisson_lock_queue:{l}", "redisson_lock_timeout:{l}", "redlatch_lock_waiters:{l}", "redlatch_lock_clients:{l}",
	}
	v, err := m.rdb.Eval(context.Background(), s.Text(), keys, args...).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return v, err
}

// left returns how long an entry stays alive without another heartbeat.
func (m *fairModel) left(p fairEntry) time.Duration {
	return time.Until(m.seen[p.client].Add(modelTimeout))
}

// free reports whether the lock is free, and drops an expired holder.
func (m *fairModel) free() bool {
	if m.holder.id != "" && !time.Now().Before(m.until) {
		m.holder = fairEntry{}
	}
	return m.holder.id == ""
}

// purge drops the dead entries before the first live one.
func (m *fairModel) purge() {
	for len(m.queue) > 0 && m.left(m.queue[0]) <= 0 {
		m.queue = m.queue[1:]
	}
}

// handOff gives the free lock to the first live entry. Its first lease ends when the entry would
// time out.
func (m *fairModel) handOff() {
	if m.purge(); len(m.queue) > 0 {
		m.holder, m.queue = m.queue[0], m.queue[1:]
		m.until = time.Now().Add(min(modelTTL, m.left(m.holder)))
	}
}

// acquire runs an attempt of p: a new one, one of a waiter or of the holder, or a late copy.
func (m *fairModel) acquire(p fairEntry) error {
	if !slices.Contains(m.all, p) {
		m.all = append(m.all, p)
	}
	_, over := m.ended[p] // such an attempt is a late copy
	granted := m.holder == p
	if m.free() && !over {
		m.purge()
		granted = len(m.queue) == 0 || m.queue[0] == p
	}
	granted = granted && !over
	// A client may have sent heartbeats before its first waiter joined.
	noted := m.rdb.HExists(context.Background(), "redlatch_lock_clients:{l}", "id "+p.client).Val()
	answer, err := m.run(modelAcquire, p.id, p.id, modelTTL.Milliseconds(), "PUBLISH", 0, 0, 2,
		modelTimeout.Milliseconds(), p.client, p.client, 0)
	if err != nil {
		return err
	}
	if granted != (answer == int64(0)) || over != (answer == "over") {
		return fmt.Errorf("acquire %v: answer %v, want granted %v, over %v", p, answer, granted, over)
	}
	switch {
	case over:
	case granted:
		if m.holder != p {
			m.holder, m.until = p, time.Time{}
			m.queue = slices.DeleteFunc(m.queue, func(q fairEntry) bool { return p == q })
		}
		if until := time.Now().Add(modelTTL); until.After(m.until) {
			m.until = until
		}
	default:
		if !slices.Contains(m.queue, p) {
			m.queue = append(m.queue, p)
		}
		if !noted || time.Since(m.seen[p.client]) >= modelHeartbeatAge {
			m.seen[p.client] = time.Now()
		}
	}
	return nil
}

// release runs a release of p, which ends its hold or its queue entry, or a late copy of one.
func (m *fairModel) release(p fairEntry) error {
	free, at := m.free(), slices.Index(m.queue, p)
	first, copied := m.ended[p]
	held := m.holder == p
	m.queue = slices.DeleteFunc(m.queue, func(q fairEntry) bool { return p == q })
	if held || (free && at == 0) {
		m.holder = fairEntry{}
		m.handOff()
	}
	answer, err := m.run(modelRelease, p.id, p.id, "PUBLISH", 24*time.Hour.Milliseconds(), p.client)
	if err != nil {
		return err
	}
	// The answer is 0 if p had nothing, the grant as a string if the lock went to a waiter of the
	// same client, and 1 otherwise. A copy gets the first answer, except that a grant is repeated
	// only while its waiter still holds.
	var want any = int64(0)
	switch grant, local := first.(string); {
	case copied && local && strings.HasPrefix(grant, m.holder.id+" "): // the copy extends the lease from now on
		want = first
		ms, _ := strconv.Atoi(grant[strings.LastIndex(grant, " ")+1:])
		if until := time.Now().Add(time.Duration(ms) * time.Millisecond); until.After(m.until) {
			m.until = until
		}
	case copied && local:
		want = int64(1)
	case copied:
		want = first
	case held && m.holder.client == p.client:
		grant, _ := answer.(string)
		format := fmt.Sprintf("%s %%d %d", m.holder.id, time.Until(m.until).Milliseconds())
		var since int64
		if _, err := fmt.Sscanf(grant, format, &since); err != nil {
			return fmt.Errorf("release %v: answer %v, want the format %q", p, answer, format)
		}
		want = answer
	case held:
		want = int64(1)
	}
	if answer != want {
		return fmt.Errorf("release %v: answer %v, want %v", p, answer, want)
	}
	if !copied {
		m.ended[p] = answer
		m.lastEnds = append(m.lastEnds, p)
	}
	return nil
}

// pick returns an entry of a live client, if there is one.
func (m *fairModel) pick(n int) (fairEntry, bool) {
	var entries []fairEntry
	for _, p := range append(slices.Clone(m.queue), m.holder) {
		if slices.Contains(m.live, p.client) {
			entries = append(entries, p)
		}
	}
	if len(entries) == 0 {
		return fairEntry{}, false
	}
	return entries[n%len(entries)], true
}

// step runs the step that n encodes, and compares the model with Redis.
func (m *fairModel) step(n int) error {
	what, n := n%10, n/10
	var err error
	switch what {
	case 0, 1, 2:
		m.issued++
		err = m.acquire(fairEntry{"id" + strconv.Itoa(m.issued), m.live[n%len(m.live)]})
	case 3:
		if p, ok := m.pick(n); ok {
			err = m.acquire(p)
		}
	case 4:
		p, ok := m.pick(n)
		if m.free() && len(m.queue) > 0 && n%2 == 0 {
			p, ok = m.queue[0], true // the head of a free lock may have been told that it holds
		}
		if ok {
			err = m.release(p)
		}
	case 5:
		if !m.free() {
			err = m.release(m.holder)
		}
	case 6:
		switch n % 4 {
		case 0: // a client crashes
			m.live = slices.Delete(m.live, n%len(m.live), n%len(m.live)+1)
			m.addClient()
		case 1: // no heartbeat for a while
			time.Sleep(time.Duration(n%6000) * time.Millisecond)
		}
	case 7:
		time.Sleep(time.Duration(n%2000) * time.Millisecond)
		for _, c := range m.live {
			if err = m.heartbeat(c); err != nil {
				return err
			}
		}
	case 8: // a late copy of an attempt
		if len(m.all) > 0 {
			err = m.acquire(m.all[n%len(m.all)])
		}
	case 9: // a late copy of a heartbeat, or of a release, often the last one
		switch {
		case n%4 == 0 && len(m.all) > 0:
			err = m.heartbeat(m.all[n%len(m.all)].client)
		case n%4 == 1 && len(m.lastEnds) > 0:
			err = m.release(m.lastEnds[n%len(m.lastEnds)])
		case len(m.lastEnds) > 0:
			err = m.release(m.lastEnds[len(m.lastEnds)-1])
		}
	}
	if err != nil {
		return err
	}
	if len(m.queue) == 0 {
		clear(m.seen) // the scripts delete the heartbeats of an empty queue
	}
	return m.compare()
}

// heartbeat runs a heartbeat of a client, which also hands off a free lock.
func (m *fairModel) heartbeat(client string) error {
	m.seen[client], m.beat = time.Now(), time.Now()
	m.purge()
	if m.free() {
		m.handOff()
		m.purge()
	}
	_, err := m.run(modelRefresh, "", client, "PUBLISH", modelTimeout.Milliseconds())
	if len(m.queue) == 0 {
		clear(m.seen)
	}
	return err
}

// compare returns an error if the queue, the holder or the heartbeats in Redis differ from the
// model.
func (m *fairModel) compare() error {
	ctx := context.Background()
	var want []string
	for _, p := range m.queue {
		want = append(want, p.id)
	}
	list := m.rdb.LRange(ctx, "redisson_lock_queue:{l}", 0, -1).Val()
	if !slices.Equal(want, list) {
		return fmt.Errorf("the queue is %v, want %v", list, want)
	}
	set := m.rdb.ZRangeWithScores(ctx, "redisson_lock_timeout:{l}", 0, -1).Val()
	if len(set) != len(list) {
		return fmt.Errorf("the set of deadlines is %v, but the queue is %v", set, list)
	}
	if ours := m.rdb.HLen(ctx, "redlatch_lock_waiters:{l}").Val(); int(ours) != len(list) {
		return fmt.Errorf("%d waiters are registered, but the queue is %v", ours, list)
	}
	if err := m.compareHolder(ctx); err != nil {
		return err
	}
	if len(list) == 0 {
		// Only the holder's field may be left, while there is a holder.
		left := m.rdb.HKeys(ctx, "redlatch_lock_clients:{l}").Val()
		if len(left) > 1 || (len(left) == 1 && (left[0] != "holder" || m.free())) {
			return fmt.Errorf("the heartbeats of an empty queue are %v", left)
		}
		return nil
	}
	// Redisson computes the deadline of a new waiter from that of the tail, so the tail's must be
	// the highest.
	last := m.rdb.ZScore(ctx, "redisson_lock_timeout:{l}", list[len(list)-1]).Val()
	if highest := set[len(set)-1].Score; last < highest {
		return fmt.Errorf("the deadline of the tail is %v, but the highest is %v", last, highest)
	}
	first := m.rdb.ZScore(ctx, "redisson_lock_timeout:{l}", list[0]).Val()
	// Redisson drops a head whose deadline is over, so heartbeats must keep that of a live head
	// ahead.
	ahead := time.Until(time.UnixMilli(int64(first)))
	if ahead <= 0 && m.left(m.queue[0]) > 0 && time.Since(m.beat) < modelTimeout/2 {
		return fmt.Errorf("the deadline of the live head was %v ago", -ahead)
	}
	return nil
}

// compareHolder returns an error if the holder or its lease in Redis differs from the model.
func (m *fairModel) compareHolder(ctx context.Context) error {
	m.free() // drops an expired holder
	holders := m.rdb.HGetAll(ctx, "l").Val()
	if m.holder.id == "" {
		if len(holders) > 0 {
			return fmt.Errorf("the holders are %v, want none", holders)
		}
		return nil
	}
	if len(holders) != 1 || holders[m.holder.id] != "1" {
		return fmt.Errorf("the holders are %v, want %v", holders, m.holder)
	}
	if ttl, left := m.rdb.PTTL(ctx, "l").Val(), time.Until(m.until); (ttl - left).Abs() > 2*time.Millisecond {
		return fmt.Errorf("the lease lasts %v, want %v", ttl, left)
	}
	return nil
}

// play runs steps in fake time, each on a model and on the scripts.
func play(t *testing.T, steps []int) (err error) {
	synctest.Test(t, func(t *testing.T) {
		m := newFairModel(redistest.Embedded(t).Client(t))
		for i, n := range steps {
			if err = m.step(n); err != nil {
				err = fmt.Errorf("step %d: %w", i, err)
				return
			}
		}
	})
	return err
}

// The scripts keep the queue of the model: the order of the waiters, their timeouts, the holder and
// its lease. Clients crash, and late copies of commands come in any order.
func TestFairLockModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		if err := play(t, rapid.SliceOfN(rapid.IntRange(0, 1<<16), 1, 40).Draw(rt, "steps")); err != nil {
			rt.Fatal(err)
		}
	})
}

// In these steps a client sends a heartbeat before its first waiter joins the queue, 5 ms later.
func TestFairLockModelHeartbeatBeforeTheFirstWaiter(t *testing.T) {
	t.Parallel()
	require.NoError(t, play(t, []int{0, 10, 9, 56, 0, 4, 5}))
}

// modelSteps is the number of steps of TestFairLockModelLong.
const modelSteps = 1500

// The model holds over a long run, in which errors of the scripts could add up.
func TestFairLockModelLong(t *testing.T) {
	t.Parallel()
	steps := make([]int, modelSteps)
	if !redistest.Full() {
		steps = steps[:modelSteps/10]
	}
	for i := range steps {
		steps[i] = rand.IntN(1 << 16)
	}
	require.NoError(t, play(t, steps))
}

// In these steps no client looks at the queue for 12 s. Then a refresh hands off the free lock, and
// the new head has a score that lies ahead.
func TestFairLockModelHandOffAfterSilence(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(194, 1))
	steps := make([]int, 400)
	for i := range steps {
		steps[i] = r.IntN(1 << 16)
	}
	require.NoError(t, play(t, steps))
}
