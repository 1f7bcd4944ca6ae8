//go:build !race

package protocol

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/scripts"
)

// The plain lock with shared ids: A and B acquire with WithOwner and the same id, C with another
// one. The lock counts, and each release must return its own count only. As for the semaphore, what
// Redis remembers of a release or a rollback expires once no copy is under way. A lease does not
// end before it ends for a holder.

// sharedSide is the client's side of an acquisition.
type sharedSide struct {
	phase   phase
	latest  answer // to the latest attempt
	doubt   bool   // an attempt was not answered
	late    bool   // copies of attempts may be executed for which nobody waits
	stale   bool   // the lease that it was granted has ended before it knew
	freeing answer // to the latest release or rollback
	lateEnd bool   // copies of the release may be executed for which nobody waits
	clean   bool   // the client was told that it has no count, or has sent nothing that could take one
}

// sharedServer is what Redis knows.
type sharedServer struct {
	owner  int8 // of the lock: 0, 1 or nobody
	count  int8
	has    [acquisitions]bool // the acquisitions that the counts belong to
	memory [acquisitions]memory
}

type sharedState struct {
	server sharedServer
	side   [acquisitions]sharedSide
}

var sharedOwners = processes{0, 0, 1}

// sharedDefects are mistakes that the model must find.
type sharedDefects struct {
	freesAll        bool // a release frees the lock, whatever its count
	takesAny        bool // a release takes a count of its id, whosever it is
	countsCopies    bool // a copy of an acquisition counts again
	forgetsRelease  bool // a release is not remembered
	forgetsRollback bool // a rollback that finds nothing is not remembered
	forgetsTooSoon  bool // what is remembered is forgotten while copies are under way
	leavesInDoubt   bool // an acquisition in doubt is not rolled back
	forgetsDoubt    bool // the answer to a later attempt settles an earlier one
	enters          bool // the id of the holder is not compared
	expiresEarly    bool // the lease may end while a hold is valid
}

// The server's side: what the scripts lock/acquire_shared and lock/release_shared do.

func (s *sharedServer) acquire(i int, d *sharedDefects) answer {
	owner := sharedOwners[i]
	switch {
	case s.memory[i] != unknown:
		return over
	case s.owner == nobody:
		s.owner, s.count, s.has = owner, 0, [acquisitions]bool{}
	case s.owner != owner && !d.enters:
		return refused
	case s.has[i] && !d.countsCopies:
		return granted
	}
	s.count++
	s.has[i] = true
	return granted
}

func (s *sharedServer) release(i int, d *sharedDefects) answer {
	switch s.memory[i] {
	case gaveBack:
		return freed
	case mustNotAgain:
		return nothing
	default:
	}
	if s.owner != sharedOwners[i] || !s.has[i] && !d.takesAny {
		if !d.forgetsRollback {
			s.memory[i] = mustNotAgain
		}
		return nothing
	}
	s.has[i] = false
	if s.count--; s.count == 0 || d.freesAll {
		s.free()
	}
	if !d.forgetsRelease {
		s.memory[i] = gaveBack
	}
	return freed
}

func (s *sharedServer) free() { s.owner, s.count, s.has = nobody, 0, [acquisitions]bool{} }

func sharedModel(d sharedDefects) model[sharedState] {
	start := sharedState{server: sharedServer{owner: nobody}}
	for i := range start.side {
		start.side[i].clean = true
	}
	equal := sharedOwners.equals()
	return model[sharedState]{
		start: start,
		check: func(s sharedState) string { return s.check() },
		same:  func(s sharedState) sharedState { sortNames(equal, s.rank, s.swap); return s },
		steps: func(s sharedState, steps []step[sharedState]) []step[sharedState] {
			do := func(label string, id int, change func(s *sharedState)) {
				steps = append(steps, step[sharedState]{label: label, actor: id, next: s})
				change(&steps[len(steps)-1].next)
			}
			for i := range s.side {
				sharedAttemptSteps(&s, i, &d, do)
				sharedReleaseSteps(&s, i, &d, do)
				sharedForgetSteps(&s, i, &d, do)
			}
			if s.server.owner != nobody && (d.expiresEarly || !s.isUsed()) {
				do("the lease of %s's id ends", int(s.server.owner)*2, func(s *sharedState) {
					for i := range s.side {
						s.side[i].stale = s.side[i].stale || s.server.has[i] && s.side[i].phase == trying
					}
					s.server.free()
				})
			}
			return steps
		},
	}
}

// isUsed reports whether a hold is valid.
func (s *sharedState) isUsed() bool {
	for i := range s.side {
		if s.side[i].phase == holding {
			return true
		}
	}
	return false
}

func (s *sharedState) execute(i int, d *sharedDefects) answer {
	got := s.server.acquire(i, d)
	if got == granted {
		s.side[i].stale = false
	}
	return got
}

// sharedAttemptSteps lists the steps of an acquisition until it holds, or gives up.
func sharedAttemptSteps(s *sharedState, i int, d *sharedDefects, do func(string, int, func(*sharedState))) {
	send := func(s *sharedState) {
		a := &s.side[i]
		a.phase, a.latest, a.clean = trying, inFlight, false
	}
	giveUp := func(s *sharedState) {
		a := &s.side[i]
		a.stale = false
		if a.doubt && !d.leavesInDoubt {
			a.phase, a.freeing = ending, inFlight
			return
		}
		a.phase, a.clean = ended, true
	}
	a := &s.side[i]
	switch {
	case a.phase == idle:
		do("%s tries", i, send)
	case a.phase == waiting:
		do("%s tries again", i, send)
		do("%s gives up", i, giveUp)
	case a.phase != trying:
	case a.latest == notSent:
		do("%s repeats its attempt", i, send)
		do("%s gives up", i, giveUp)
	case a.latest == inFlight:
		do("%s's attempt is executed", i, func(s *sharedState) { s.side[i].latest = s.execute(i, d) })
		do("%s stops waiting for its attempt, which is under way", i, func(s *sharedState) {
			a := &s.side[i]
			a.latest, a.doubt, a.late = notSent, true, true
		})
	default:
		do("%s gets the answer to its attempt", i, func(s *sharedState) {
			a := &s.side[i]
			got, stale := a.latest, a.stale
			a.latest, a.stale = notSent, false
			a.doubt = a.doubt && !d.forgetsDoubt
			switch {
			case got == granted && !stale:
				a.phase = holding
			case got == refused:
				a.phase = waiting
			default:
				a.phase = ended
			}
		})
		do("the answer to %s's attempt is lost", i, func(s *sharedState) {
			a := &s.side[i]
			a.latest, a.doubt = notSent, true
		})
	}
}

// sharedReleaseSteps lists the steps of a hold, and of its release or rollback.
func sharedReleaseSteps(s *sharedState, i int, d *sharedDefects, do func(string, int, func(*sharedState))) {
	a := &s.side[i]
	if a.phase == holding {
		do("%s releases", i, func(s *sharedState) { s.side[i].phase, s.side[i].freeing = ending, inFlight })
		do("%s's validity ends, and its caller releases", i, func(s *sharedState) {
			s.side[i].phase, s.side[i].freeing = ending, notSent
		})
	}
	if a.phase != ending {
		return
	}
	switch a.freeing {
	case notSent:
		do("the release of %s is sent again", i, func(s *sharedState) { s.side[i].freeing = inFlight })
		do("the release of %s fails", i, func(s *sharedState) { s.side[i].phase = ended })
	case inFlight:
		do("the release of %s is executed", i, func(s *sharedState) { s.side[i].freeing = s.server.release(i, d) })
		do("nobody waits any longer for the release of %s, which is under way", i, func(s *sharedState) {
			s.side[i].freeing, s.side[i].lateEnd = notSent, true
		})
	default:
		do("the release of %s is answered", i, func(s *sharedState) {
			s.side[i].phase, s.side[i].freeing, s.side[i].clean = ended, notSent, true
		})
		do("the answer to the release of %s is lost", i, func(s *sharedState) { s.side[i].freeing = notSent })
	}
}

// sharedForgetSteps lists what happens by itself: late copies come, or come no more, and Redis
// forgets.
func sharedForgetSteps(s *sharedState, i int, d *sharedDefects, do func(string, int, func(*sharedState))) {
	a := &s.side[i]
	if a.late {
		do("a late copy of %s's attempt is executed", i, func(s *sharedState) { s.execute(i, d) })
		do("no copy of %s's attempt comes any more", i, func(s *sharedState) { s.side[i].late = false })
	}
	if a.lateEnd {
		do("a late copy of %s's release is executed", i, func(s *sharedState) { s.server.release(i, d) })
		do("no copy of %s's release comes any more", i, func(s *sharedState) { s.side[i].lateEnd = false })
	}
	if s.server.memory[i] != unknown && (a.phase == ended && !a.late && !a.lateEnd || d.forgetsTooSoon) {
		do("Redis forgets %s", i, func(s *sharedState) { s.server.memory[i] = unknown })
	}
}

// check returns the invariant that a state violates.
func (s *sharedState) check() string {
	for i := range s.side {
		a := &s.side[i]
		has := s.server.owner == sharedOwners[i] && s.server.has[i]
		if a.phase == holding && !has {
			return fmt.Sprintf("%c has a valid hold, and Redis does not know it", "ABC"[i])
		}
		if a.phase == ended && a.clean && has {
			return fmt.Sprintf("%c has nothing left to release, and has a count", "ABC"[i])
		}
	}
	counts := int8(0)
	for i, has := range s.server.has {
		if has && s.server.owner == sharedOwners[i] {
			counts++
		}
	}
	if s.server.count != counts {
		return fmt.Sprintf("the lock has %d counts, of %d acquisitions", s.server.count, counts)
	}
	return ""
}

// rank implements the argument of sortNames.
func (s *sharedState) rank(i int) (n uint64) {
	a := &s.side[i]
	for _, bit := range []bool{a.doubt, a.late, a.stale, a.lateEnd, a.clean, s.server.has[i]} {
		n <<= 1
		if bit {
			n |= 1
		}
	}
	for _, digit := range []uint64{uint64(a.phase), uint64(a.latest), uint64(a.freeing), uint64(s.server.memory[i])} {
		n = n<<4 | digit
	}
	return n
}

// swap exchanges the names of two acquisitions of one owner.
func (s *sharedState) swap(i, j int8) {
	s.side[i], s.side[j] = s.side[j], s.side[i]
	s.server.memory[i], s.server.memory[j] = s.server.memory[j], s.server.memory[i]
	s.server.has[i], s.server.has[j] = s.server.has[j], s.server.has[i]
}

// exploreShared explores the model once for all tests, and returns the states of its server, too.
var exploreShared = sync.OnceValues(func() (result, *reached[sharedServer]) {
	servers := &reached[sharedServer]{}
	r := exploreUnlessFull(sharedModel(sharedDefects{}), func(s sharedState) { servers.add(s.server) })
	return r, servers
})

func TestSharedProtocol(t *testing.T) {
	t.Parallel()
	r, _ := exploreShared()
	r.requireNoViolation(t)
}

func TestSharedProtocolFindsDefects(t *testing.T) {
	redistest.NeedFull(t, "models with defects")
	for name, d := range map[string]sharedDefects{
		"one release frees the lock of all":               {freesAll: true},
		"a release takes the count of another":            {takesAny: true},
		"a copy of an acquisition counts again":           {countsCopies: true},
		"a release is not remembered":                     {forgetsRelease: true},
		"a rollback that finds nothing is not remembered": {forgetsRollback: true},
		"Redis forgets while copies are under way":        {forgetsTooSoon: true},
		"an acquisition in doubt is not rolled back":      {leavesInDoubt: true},
		"a later answer settles an earlier attempt":       {forgetsDoubt: true},
		"another id enters":                               {enters: true},
		"the lease ends before the hold":                  {expiresEarly: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := explore(sharedModel(d), nil)
			r.requireViolation(t)
		})
	}
}

// The model's server does what the scripts do, from every state that the model reaches.
func TestSharedScriptsDoWhatTheModelSays(t *testing.T) {
	t.Parallel()
	rdb := redistest.Miniredis(t).Client(t)
	run := runner(t, rdb)
	const countsKey = "shared counts"
	var acquire, release = scripts.Load("lock/acquire_shared"), scripts.Load("lock/release_shared")
	do := func(s *scripts.Script, i int, args ...any) any {
		keys := []any{lockKey, "channel", memoryKeyOf(int8(i)), countsKey, "line"}
		reply, err := run.Do(t.Context(), s, keys, append([]any{ownerOf(sharedOwners[i])}, args...)...)
		require.NoError(t, err)
		return reply.Value
	}
	tryAcquire := func(i int) answer {
		switch do(acquire, i, leaseMS, "publish", 0, 0).(type) {
		case int64:
			return granted
		case string:
			return over
		}
		return refused
	}
	tryRelease := func(i int) answer {
		if do(release, i, "publish", memoryMS, 1, leaseMS) == int64(0) {
			return nothing
		}
		return freed
	}
	// reach makes Redis equal to a state: it acquires, and then writes the memories.
	reach := func(s sharedServer) {
		require.NoError(t, rdb.FlushDB(t.Context()).Err())
		for i, has := range s.has {
			if has {
				require.Equal(t, granted, tryAcquire(i))
			}
		}
		for i, m := range s.memory {
			if m != unknown {
				value := map[memory]int{gaveBack: 2, mustNotAgain: 3}[m]
				require.NoError(t, rdb.Set(t.Context(), memoryKeyOf(int8(i)), value, 0).Err())
			}
		}
	}
	count := func(s sharedServer) string {
		if s.owner == nobody {
			return ""
		}
		return fmt.Sprint(s.count)
	}
	_, servers := exploreShared()
	for _, s := range servers.list {
		for i := range s.has {
			for what, commands := range map[string]struct {
				model  func(*sharedServer) answer
				script func(int) answer
			}{
				"acquire": {func(m *sharedServer) answer { return m.acquire(i, &sharedDefects{}) }, tryAcquire},
				"release": {func(m *sharedServer) answer { return m.release(i, &sharedDefects{}) }, tryRelease},
			} {
				want := s
				wanted := commands.model(&want)
				reach(s)
				require.Equal(t, wanted, commands.script(i), "%s of %d in %+v", what, i, s)
				left := ""
				if want.owner != nobody {
					left = ownerOf(want.owner)
				}
				require.Equal(t, count(want), rdb.HGet(t.Context(), lockKey, left).Val(), "%s of %d in %+v", what, i, s)
				remembered := rdb.Get(t.Context(), memoryKeyOf(int8(i))).Val()
				require.Equal(t, map[memory]string{gaveBack: "2", mustNotAgain: "3"}[want.memory[i]], remembered,
					"%s of %d in %+v", what, i, s)
			}
		}
	}
}
