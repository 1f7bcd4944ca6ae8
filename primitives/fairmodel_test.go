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

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/scripts"
)

// fairModel is what a fair queue should be like, beside one that the scripts make.
type fairModel struct {
	rdb    *redis.Client
	minted int
	queue  []fairPlace
	holder fairPlace
	until  time.Time            // the holder's lease ends
	seen   map[string]time.Time // the last sign of life of each client
	live   []string             // clients that have not crashed
	all    []fairPlace          // that ever tried
	ended  map[fairPlace]any    // that have released or left, and what they were answered
	last   []fairPlace          // the same in order
	looked time.Time            // when a client last looked
}

type fairPlace struct{ id, client string }

const (
	modelPatience = 10 * time.Second
	modelTTL      = time.Hour
	modelSign     = 500 * time.Millisecond // so old must a sign of life be for an attempt to renew it
)

var (
	modelTake    = scripts.Load("fairlock/acquire")
	modelEnd     = scripts.Load("fairlock/release")
	modelRefresh = scripts.Load("fairlock/refresh")
)

func newFairModel(rdb *redis.Client) *fairModel {
	m := &fairModel{rdb: rdb, seen: map[string]time.Time{}, ended: map[fairPlace]any{}}
	for range 3 {
		m.comes()
	}
	return m
}

func (m *fairModel) comes() {
	m.minted++
	m.live = append(m.live, "client"+strconv.Itoa(m.minted))
}

func (m *fairModel) run(s *scripts.Script, memory string, args ...any) (any, error) {
	keys := []string{"l", "redisson_lock__channel:{l}", "memory:{l}:" + memory, "redlatch_shared_counts:{l}", "redisson_lock_queue:{l}", "redisson_lock_timeout:{l}", "redlatch_lock_waiters:{l}", "redlatch_lock_clients:{l}"}
	v, err := m.rdb.Eval(context.Background(), s.Text(), keys, args...).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return v, err
}

// left is how long a place lives without another sign of life.
func (m *fairModel) left(p fairPlace) time.Duration {
	return time.Until(m.seen[p.client].Add(modelPatience))
}

// free tells whether nobody holds the lock.
func (m *fairModel) free() bool {
	if m.holder.id != "" && !time.Now().Before(m.until) {
		m.holder = fairPlace{}
	}
	return m.holder.id == ""
}

// purge drops the dead before the first that lives.
func (m *fairModel) purge() {
	for len(m.queue) > 0 && m.left(m.queue[0]) <= 0 {
		m.queue = m.queue[1:]
	}
}

// pass gives the free lock to the next that lives, for as long as that is known to.
func (m *fairModel) pass() {
	if m.purge(); len(m.queue) > 0 {
		m.holder, m.queue = m.queue[0], m.queue[1:]
		m.until = time.Now().Add(min(modelTTL, m.left(m.holder)))
	}
}

// tries has p try, as a newcomer, as one that waits, that was given the lock, or by a late copy.
func (m *fairModel) tries(p fairPlace) error {
	if !slices.Contains(m.all, p) {
		m.all = append(m.all, p)
	}
	_, over := m.ended[p]
	granted := m.holder == p
	if m.free() && !over {
		m.purge()
		granted = len(m.queue) == 0 || m.queue[0] == p
	}
	granted = granted && !over
	answer, err := m.run(modelTake, p.id, p.id, modelTTL.Milliseconds(), "PUBLISH", 0, 0, 2, modelPatience.Milliseconds(), p.client, p.client, 0)
	if err != nil {
		return err
	}
	if granted != (answer == int64(0)) || over != (answer == "over") {
		return fmt.Errorf("%v tries: %v, should be granted: %v, be over: %v", p, answer, granted, over)
	}
	switch {
	case over:
	case granted:
		if m.holder != p {
			m.holder, m.until = p, time.Time{}
			m.queue = slices.DeleteFunc(m.queue, func(q fairPlace) bool { return p == q })
		}
		if until := time.Now().Add(modelTTL); until.After(m.until) {
			m.until = until
		}
	default:
		if !slices.Contains(m.queue, p) {
			m.queue = append(m.queue, p)
		}
		if time.Since(m.seen[p.client]) >= modelSign {
			m.seen[p.client] = time.Now()
		}
	}
	return nil
}

// ends has p give back whatever it has, or a late copy of that.
func (m *fairModel) ends(p fairPlace) error {
	free, at := m.free(), slices.Index(m.queue, p)
	first, copied := m.ended[p]
	held := m.holder == p
	m.queue = slices.DeleteFunc(m.queue, func(q fairPlace) bool { return p == q })
	if held || (free && at == 0) {
		m.holder = fairPlace{}
		m.pass()
	}
	answer, err := m.run(modelEnd, p.id, p.id, "PUBLISH", 24*time.Hour.Milliseconds(), p.client)
	if err != nil {
		return err
	}
	var want any = int64(0)
	switch word, local := first.(string); {
	case copied && local && strings.HasPrefix(word, m.holder.id+" "): // it holds still: for as long from now
		want = first
		ms, _ := strconv.Atoi(word[strings.LastIndex(word, " ")+1:])
		if until := time.Now().Add(time.Duration(ms) * time.Millisecond); until.After(m.until) {
			m.until = until
		}
	case copied && local:
		want = int64(1)
	case copied:
		want = first
	case held && m.holder.client == p.client:
		word, _ := answer.(string)
		require := fmt.Sprintf("%s %%d %d", m.holder.id, time.Until(m.until).Milliseconds())
		var since int64
		if _, err := fmt.Sscanf(word, require, &since); err != nil {
			return fmt.Errorf("%v ends: %v, should be like %q", p, answer, require)
		}
		want = answer
	case held:
		want = int64(1)
	}
	if answer != want {
		return fmt.Errorf("%v ends: %v, should be %v", p, answer, want)
	}
	if !copied {
		m.ended[p] = answer
		m.last = append(m.last, p)
	}
	return nil
}

// one picks a place of a client that lives.
func (m *fairModel) one(n int) (fairPlace, bool) {
	var places []fairPlace
	for _, p := range append(slices.Clone(m.queue), m.holder) {
		if slices.Contains(m.live, p.client) {
			places = append(places, p)
		}
	}
	if len(places) == 0 {
		return fairPlace{}, false
	}
	return places[n%len(places)], true
}

// step does what n says, and compares.
func (m *fairModel) step(n int) error {
	what, n := n%10, n/10
	var err error
	switch what {
	case 0, 1, 2:
		m.minted++
		err = m.tries(fairPlace{"id" + strconv.Itoa(m.minted), m.live[n%len(m.live)]})
	case 3:
		if p, ok := m.one(n); ok {
			err = m.tries(p)
		}
	case 4:
		p, ok := m.one(n)
		if m.free() && len(m.queue) > 0 && n%2 == 0 {
			p, ok = m.queue[0], true // it may have been told
		}
		if ok {
			err = m.ends(p)
		}
	case 5:
		if !m.free() {
			err = m.ends(m.holder)
		}
	case 6:
		switch n % 4 {
		case 0: // a client crashes
			m.live = slices.Delete(m.live, n%len(m.live), n%len(m.live)+1)
			m.comes()
		case 1: // nobody looks for a while
			time.Sleep(time.Duration(n%6000) * time.Millisecond)
		}
	case 7:
		time.Sleep(time.Duration(n%2000) * time.Millisecond)
		for _, c := range m.live {
			if err = m.looks(c); err != nil {
				return err
			}
		}
	case 8: // a late copy of an attempt
		if len(m.all) > 0 {
			err = m.tries(m.all[n%len(m.all)])
		}
	case 9: // of an end, often the last, or of a look
		switch {
		case n%4 == 0 && len(m.all) > 0:
			err = m.looks(m.all[n%len(m.all)].client)
		case n%4 == 1 && len(m.last) > 0:
			err = m.ends(m.last[n%len(m.last)])
		case len(m.last) > 0:
			err = m.ends(m.last[len(m.last)-1])
		}
	}
	if err != nil {
		return err
	}
	if len(m.queue) == 0 {
		clear(m.seen) // nobody asks for them
	}
	return m.compare()
}

func (m *fairModel) looks(client string) error {
	m.seen[client], m.looked = time.Now(), time.Now()
	m.purge()
	if m.free() {
		m.pass()
		m.purge()
	}
	_, err := m.run(modelRefresh, "", client, "PUBLISH", modelPatience.Milliseconds())
	if len(m.queue) == 0 {
		clear(m.seen)
	}
	return err
}

func (m *fairModel) compare() error {
	ctx := context.Background()
	var want []string
	for _, p := range m.queue {
		want = append(want, p.id)
	}
	list := m.rdb.LRange(ctx, "redisson_lock_queue:{l}", 0, -1).Val()
	if !slices.Equal(want, list) {
		return fmt.Errorf("the queue is %v, should be %v", list, want)
	}
	set := m.rdb.ZRangeWithScores(ctx, "redisson_lock_timeout:{l}", 0, -1).Val()
	if len(set) != len(list) {
		return fmt.Errorf("the set is %v, the queue %v", set, list)
	}
	if ours := m.rdb.HLen(ctx, "redlatch_lock_waiters:{l}").Val(); int(ours) != len(list) {
		return fmt.Errorf("%d are ours, the queue is %v", ours, list)
	}
	if err := m.compareHolder(ctx); err != nil {
		return err
	}
	if len(list) == 0 {
		if left := m.rdb.HKeys(ctx, "redlatch_lock_clients:{l}").Val(); len(left) > 1 || (len(left) == 1 && (left[0] != "holder" || m.free())) {
			return fmt.Errorf("%v are left among the signs of life", left)
		}
		return nil
	}
	last := m.rdb.ZScore(ctx, "redisson_lock_timeout:{l}", list[len(list)-1]).Val()
	if highest := set[len(set)-1].Score; last < highest {
		return fmt.Errorf("the tail's score is %v, another's %v", last, highest)
	}
	first := m.rdb.ZScore(ctx, "redisson_lock_timeout:{l}", list[0]).Val()
	if ahead := time.Until(time.UnixMilli(int64(first))); ahead <= 0 && m.left(m.queue[0]) > 0 && time.Since(m.looked) < modelPatience/2 {
		return fmt.Errorf("the head's score is %v ago", -ahead)
	}
	return nil
}

func (m *fairModel) compareHolder(ctx context.Context) error {
	m.free()
	holders := m.rdb.HGetAll(ctx, "l").Val()
	switch {
	case m.holder.id == "" && len(holders) > 0, m.holder.id != "" && (len(holders) != 1 || holders[m.holder.id] != "1"):
		return fmt.Errorf("the lock is held by %v, should be by %v", holders, m.holder)
	case m.holder.id == "":
		return nil
	}
	if ttl, left := m.rdb.PTTL(ctx, "l").Val(), time.Until(m.until); (ttl - left).Abs() > 2*time.Millisecond {
		return fmt.Errorf("the lease lasts %v, should %v", ttl, left)
	}
	return nil
}

// play has a model and the scripts take the same steps in fake time.
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

func TestFairLockModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		if err := play(t, rapid.SliceOfN(rapid.IntRange(0, 1<<16), 1, 40).Draw(rt, "steps")); err != nil {
			rt.Fatal(err)
		}
	})
}

// modelSteps is how long a queue is followed without a pause; a multiple of it now and then does no harm.
const modelSteps = 1500

// Many joins, leaves and crashes: the survivors are served in order.
func TestFairLockModelLong(t *testing.T) {
	steps := make([]int, modelSteps)
	if testing.Short() {
		steps = steps[:modelSteps/10]
	}
	for i := range steps {
		steps[i] = rand.IntN(1 << 16)
	}
	require.NoError(t, play(t, steps))
}
