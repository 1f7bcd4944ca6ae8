//go:build !race

package protocol

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/scripts"
)

// Nested holds of a plain lock: the client has the lock by A, and B and C nest in A, also while A
// is being released. All share an id, and the server counts them. Each command carries the wanted
// count. A mutex, the wire lock, is held from when the count is read until the answer comes, or
// until nobody waits for it any longer.
//
// Late copies of a command may be executed at any time, in any number, or never. A command without
// an answer is repeated with the count of then. Other clients acquire whenever the lock is free. A
// lease does not end before it ends for a holder.

// nestedStage is how far a hold has come.
type nestedStage uint8

const (
	outside nestedStage = iota
	nests               // its command is under way
	inside              // it is valid
	leaves              // its release has begun: it is no longer counted
	gives               // the command of its release is under way
	isOut
)

// nestedCommand is a command of the client: the wanted count, and whether it is for a new hold.
type nestedCommand struct {
	wanted int8
	adds   bool
}

// nestedServer is what Redis knows.
type nestedServer struct {
	count  int8
	others bool // another client has the lock
}

type nestedState struct {
	server nestedServer
	stage  [acquisitions]nestedStage
	count  int8 // that the server should have
	wire   int8 // the owner of the wire lock: a hold, background, or nobody
	nestedCommand
	latest    answer // to the command of wire
	late      [2][acquisitions + 1]bool
	repeats   bool // the count is to be sent in the background
	freed     bool // the command that frees the lock was answered
	abandoned bool // the rest is left to the lease
}

// background has the wire lock for a repetition.
const background = acquisitions

// nestedDefects are mistakes that the model must find.
type nestedDefects struct {
	nestsInReleased bool // a hold nests although the release of the outer one has begun
	nestsBlindly    bool // a late copy of a nested acquisition acquires a lock that is free
	subtracts       bool // a release subtracts from the count
	freesOnRelease  bool // the release of any hold frees the lock
	doesNotRepeat   bool // a command without an answer is not repeated
	keepsCount      bool // a nested acquisition without an answer stays counted
	ignoresLoss     bool // holds stay valid after the lease has ended
}

// execute is what lock/nested_acquire, lock/nested_release and lock/release do.
func (s *nestedServer) execute(c nestedCommand, d *nestedDefects) answer {
	switch {
	case s.count == 0 && !(c.adds && d.nestsBlindly && !s.others):
		return nothing
	case c.wanted == 0:
		s.count = 0
		return freed
	case !c.adds && d.subtracts:
		s.count--
	default:
		s.count = c.wanted
	}
	return granted
}

func nestedModel(d nestedDefects) model[nestedState] {
	start := nestedState{server: nestedServer{count: 1}, count: 1, wire: nobody}
	start.stage[0] = inside
	return model[nestedState]{
		start: start,
		check: func(s nestedState) string { return s.check() },
		same:  func(s nestedState) nestedState { return s },
		steps: func(s nestedState, steps []step[nestedState]) []step[nestedState] {
			do := func(label string, id int, change func(s *nestedState)) {
				steps = append(steps, step[nestedState]{label: label, actor: id, next: s})
				change(&steps[len(steps)-1].next)
			}
			for i := range s.stage {
				nestedHoldSteps(&s, i, &d, do)
			}
			nestedCommandSteps(&s, &d, do)
			nestedServerSteps(&s, &d, do)
			return steps
		},
	}
}

type nestedStep = func(label string, actor int, change func(s *nestedState))

// nestedHoldSteps lists the steps that begin and end a hold.
func nestedHoldSteps(s *nestedState, i int, d *nestedDefects, do nestedStep) {
	switch s.stage[i] {
	case outside:
		if s.wire == nobody && (s.stage[0] == inside || d.nestsInReleased) {
			do("%s begins to nest", i, func(s *nestedState) {
				s.stage[i] = nests
				s.count++
				s.send(i, nestedCommand{s.count, true})
			})
		}
	case inside:
		do("%s's release begins", i, func(s *nestedState) {
			s.stage[i] = leaves
			s.count--
		})
	case leaves:
		if s.wire == nobody {
			do("%s's release goes on", i, func(s *nestedState) {
				switch {
				case s.freed: // by another hold
					s.stage[i] = isOut
				case d.freesOnRelease:
					s.stage[i] = gives
					s.send(i, nestedCommand{})
				default:
					s.stage[i] = gives
					s.send(i, nestedCommand{wanted: s.count})
				}
			})
		}
	default:
	}
}

func (s *nestedState) send(by int, c nestedCommand) {
	s.wire, s.nestedCommand, s.latest = int8(by), c, inFlight
}

// nestedCommandSteps lists the steps of the command under way, and of repetitions.
func nestedCommandSteps(s *nestedState, d *nestedDefects, do nestedStep) {
	const any = 0 // the label names nobody
	switch {
	case s.wire == nobody:
		if s.repeats {
			do("the count is sent in the background", any, func(s *nestedState) {
				if s.repeats = !s.freed; s.repeats {
					s.send(background, nestedCommand{wanted: s.count})
				}
			})
			do("the repetitions end", any, func(s *nestedState) { s.repeats, s.abandoned = false, true })
		}
	case s.latest == inFlight:
		do("the command is executed", any, func(s *nestedState) { s.latest = s.server.execute(s.nestedCommand, d) })
		do("nobody waits any longer for the command, which is under way", any, func(s *nestedState) {
			s.late[flag(s.adds)][s.wanted] = true
			s.unanswered(d)
		})
	default:
		do("the command is answered", any, func(s *nestedState) { s.answered() })
		do("the answer is lost", any, func(s *nestedState) { s.unanswered(d) })
	}
}

// answered handles the answer to the command.
func (s *nestedState) answered() {
	by, got := s.wire, s.latest
	s.wire, s.latest = nobody, notSent
	s.freed = s.freed || s.wanted == 0
	switch {
	case by == background:
		s.repeats = false
	case s.adds && got == granted:
		s.stage[by] = inside
	default:
		s.stage[by] = isOut
	}
	if s.adds && got == nothing {
		s.count--
	}
	if got == nothing && s.wanted > 0 {
		s.lose()
	}
	s.nestedCommand = nestedCommand{}
}

// unanswered gives up waiting for the command. The count of then is sent in the background.
func (s *nestedState) unanswered(d *nestedDefects) {
	if s.adds && !d.keepsCount {
		s.count--
	}
	if s.wire != background {
		s.stage[s.wire] = isOut
	}
	s.repeats = !d.doesNotRepeat
	s.wire, s.latest, s.nestedCommand = nobody, notSent, nestedCommand{}
}

// lose ends all holds.
func (s *nestedState) lose() {
	for i := range s.stage {
		if s.stage[i] == inside {
			s.stage[i] = isOut
			s.count--
		}
	}
	s.abandoned = true // a release of a lost hold is only a help
}

// nestedServerSteps lists what happens by itself.
func nestedServerSteps(s *nestedState, d *nestedDefects, do nestedStep) {
	const any = 0
	for adds := range s.late {
		for wanted, is := range s.late[adds] {
			if is {
				c := nestedCommand{int8(wanted), adds == 1}
				do(fmt.Sprintf("a late copy is executed: %+v", c), any, func(s *nestedState) { s.server.execute(c, d) })
			}
		}
	}
	valid := slices.Contains(s.stage[:], inside)
	switch {
	case s.server.others:
		do("another client releases", any, func(s *nestedState) { s.server.others = false })
	case s.server.count == 0:
		do("another client acquires", any, func(s *nestedState) { s.server.others = true })
	case !valid || d.ignoresLoss:
		do("the lease ends", any, func(s *nestedState) {
			if s.server.count = 0; s.latest == granted {
				s.latest = nothing // when the answer comes, the lease that it grants is over
			}
		})
	}
	if valid {
		do("the validity ends", any, func(s *nestedState) { s.lose() })
	}
}

// check returns the invariant that a state violates.
func (s *nestedState) check() string {
	open := s.wire != nobody || s.repeats || s.freed || s.abandoned
	for i, stage := range s.stage {
		if stage == inside && s.server.count == 0 {
			return fmt.Sprintf("%c has a valid hold, and Redis does not know it", "ABC"[i])
		}
		open = open || stage != isOut && stage != outside
	}
	switch {
	case s.server.count > 0 && s.server.others:
		return "two clients have the lock"
	case s.freed && s.server.count > 0:
		return "the lock was freed, and its id holds it"
	case !open:
		return "all holds have ended, and nobody frees the lock"
	}
	return ""
}

func TestNestedProtocol(t *testing.T) {
	t.Parallel()
	servers := map[nestedServer]bool{}
	r := explore(nestedModel(nestedDefects{}), func(s nestedState) { servers[s.server] = true })
	r.requireNoViolation(t)
	compareNested(t, servers)
}

func TestNestedProtocolFindsDefects(t *testing.T) {
	for name, d := range map[string]nestedDefects{
		"a hold nests in one that is being released":     {nestsInReleased: true},
		"a late copy of a nested acquisition acquires":   {nestsBlindly: true},
		"a release subtracts from the count":             {subtracts: true},
		"the release of any hold frees the lock":         {freesOnRelease: true},
		"a command without an answer is not repeated":    {doesNotRepeat: true},
		"an acquisition without an answer stays counted": {keepsCount: true},
		"holds stay valid after the lease has ended":     {ignoresLoss: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := explore(nestedModel(d), nil)
			r.requireViolation(t)
		})
	}
}

// compareNested checks that the model's server does what the scripts do: each command, from every
// state that the server can reach.
func compareNested(t *testing.T, servers map[nestedServer]bool) {
	rdb := redistest.Miniredis(t).Client(t)
	run := runner(t, rdb)
	nest, unnest := scripts.Load("lock/nested_acquire"), scripts.Load("lock/nested_release")
	script := func(c nestedCommand) answer {
		if c.wanted == 0 {
			l := &redisLock{t, rdb, run}
			return l.release(0, nobody, false)
		}
		of := unnest
		if c.adds {
			of = nest
		}
		reply, err := run.Do(t.Context(), of, []any{lockKey, "shared counts"}, ownerOf(0), int(c.wanted), leaseMS)
		require.NoError(t, err)
		if reply.Value == int64(0) {
			return nothing
		}
		return granted
	}
	for s := range servers {
		for wanted := range int8(acquisitions + 1) {
			for _, adds := range []bool{false, wanted > 1} {
				require.NoError(t, rdb.FlushDB(t.Context()).Err())
				if s.count > 0 {
					require.NoError(t, rdb.HSet(t.Context(), lockKey, ownerOf(0), s.count).Err())
				} else if s.others {
					require.NoError(t, rdb.HSet(t.Context(), lockKey, ownerOf(1), 1).Err())
				}
				c, want := nestedCommand{wanted, adds}, s
				require.Equal(t, want.execute(c, &nestedDefects{}), script(c), "%+v in %+v", c, s)
				hash := rdb.HGetAll(t.Context(), lockKey).Val()
				got := nestedServer{others: hash[ownerOf(1)] == "1"}
				if text, held := hash[ownerOf(0)]; held {
					count, err := strconv.Atoi(text)
					require.NoError(t, err)
					got.count = int8(count)
				}
				require.Equal(t, want, got, "%+v in %+v", c, s)
			}
		}
	}
}
