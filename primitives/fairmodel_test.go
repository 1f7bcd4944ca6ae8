package primitives_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
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
	holder string
	seen   map[string]time.Time // the last sign of life of each client
	live   []string             // clients that have not crashed
}

type fairPlace struct{ id, client string }

const modelPatience = 10 * time.Second

var (
	modelTake    = scripts.Load("fairlock/acquire")
	modelGive    = scripts.Load("lock/release", "fairlock")
	modelLeave   = scripts.Load("fairlock/leave")
	modelRefresh = scripts.Load("fairlock/refresh")
)

func newFairModel(rdb *redis.Client) *fairModel {
	m := &fairModel{rdb: rdb, seen: map[string]time.Time{}}
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
	keys := []string{"l", "redisson_lock__channel:{l}", "memory:{l}:" + memory, "redisson_lock_queue:{l}", "redisson_lock_timeout:{l}", "redlatch_lock_waiters:{l}", "redlatch_lock_clients:{l}"}
	v, err := m.rdb.Eval(context.Background(), s.Text(), keys, args...).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return v, err
}

// purge drops the dead before the first that lives.
func (m *fairModel) purge() {
	for len(m.queue) > 0 && time.Since(m.seen[m.queue[0].client]) >= modelPatience {
		m.queue = m.queue[1:]
	}
}

// tries has p try, as a newcomer or as one that waits.
func (m *fairModel) tries(p fairPlace) error {
	m.purge()
	at := slices.Index(m.queue, p)
	granted := m.holder == "" && (len(m.queue) == 0 || at == 0)
	answer, err := m.run(modelTake, p.id, p.id, 3600000, "PUBLISH", 0, 0, 1, modelPatience.Milliseconds(), p.client)
	if err != nil {
		return err
	}
	if granted != (answer == nil) {
		return fmt.Errorf("%v tries: %v, should be granted: %v", p, answer, granted)
	}
	switch {
	case granted:
		m.holder = p.id
		if at == 0 {
			m.queue = m.queue[1:]
		}
	case at < 0:
		m.queue = append(m.queue, p)
		fallthrough
	default:
		m.seen[p.client] = time.Now()
	}
	return nil
}

// one picks a place of a client that lives.
func (m *fairModel) one(n int) (fairPlace, bool) {
	var places []fairPlace
	for _, p := range m.queue {
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
	what, n := n%8, n/8
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
		if p, ok := m.one(n); ok {
			m.queue = slices.DeleteFunc(m.queue, func(q fairPlace) bool { return p == q })
			_, err = m.run(modelLeave, "", p.id, "PUBLISH")
			if m.holder == "" { // it may have told the next
				m.purge()
			}
		}
	case 5:
		if m.holder != "" {
			_, err = m.run(modelGive, m.holder, m.holder, "PUBLISH", 15000)
			m.holder = ""
			m.purge()
		}
	case 6:
		if n%4 == 0 {
			m.live = slices.Delete(m.live, n%len(m.live), n%len(m.live)+1)
			m.comes()
		}
	case 7:
		time.Sleep(time.Duration(n%2000) * time.Millisecond)
		for _, c := range m.live {
			m.seen[c] = time.Now()
			m.purge()
			if _, err = m.run(modelRefresh, "", c, "PUBLISH", modelPatience.Milliseconds()); err != nil {
				return err
			}
		}
	}
	if err != nil {
		return err
	}
	return m.compare()
}

func (m *fairModel) compare() error {
	ctx := context.Background()
	var want []string
	for _, p := range m.queue {
		want = append(want, p.id)
	}
	list := m.rdb.LRange(ctx, "redisson_lock_queue:{l}", 0, -1).Val()
	// The dead may stand there until somebody is told.
	if !slices.Equal(want, list) {
		return fmt.Errorf("the queue is %v, should be %v", list, want)
	}
	set := m.rdb.ZRangeWithScores(ctx, "redisson_lock_timeout:{l}", 0, -1).Val()
	if len(set) != len(list) {
		return fmt.Errorf("the set is %v, the queue %v", set, list)
	}
	helpers := m.rdb.Exists(ctx, "redlatch_lock_waiters:{l}", "redlatch_lock_clients:{l}").Val()
	if len(list) == 0 {
		if helpers != 0 {
			return fmt.Errorf("%d helper keys are left", helpers)
		}
		return nil
	}
	last := m.rdb.ZScore(ctx, "redisson_lock_timeout:{l}", list[len(list)-1]).Val()
	if highest := set[len(set)-1].Score; last < highest {
		return fmt.Errorf("the tail's score is %v, another's %v", last, highest)
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
