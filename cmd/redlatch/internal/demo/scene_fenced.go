package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var fencedScene = Scene{
	Name:  "fenced",
	Shows: "a holder that is paused beyond its lease writes too late; the store rejects its token",
	run:   runFenced,
}

const fencedLease = 500 * time.Millisecond

// store is the resource that holders write to. It rejects a token older than the newest one.
type store struct {
	newest int64
	text   string
}

func (st *store) write(token int64, text string) error {
	if token < st.newest {
		return fmt.Errorf("token %d is older than %d", token, st.newest)
	}
	st.newest, st.text = token, text
	return nil
}

// runFenced lets a lease expire. Its holder then writes although it no longer holds the lock.
func runFenced(ctx context.Context, s *stage) error {
	procs, err := s.newProcesses("anna", "ben", "cleo")
	if err != nil {
		return err
	}
	anna, ben := procs[0], procs[1]
	var tokens []int64
	for _, p := range procs {
		hold, err := p.FencedLock("page").Acquire(ctx)
		if err != nil {
			return err
		}
		tokens = append(tokens, hold.Token())
		if err := hold.Release(ctx); err != nil {
			return err
		}
	}
	s.say("all", "held it in turn, with tokens %d", tokens)
	late, err := anna.FencedLock("page").Acquire(ctx, primitives.WithLease(fencedLease))
	if err != nil {
		return err
	}
	s.say(anna.name, "holds it for %v with token %d, and is paused", fencedLease, late.Token())
	next, err := ben.FencedLock("page").Acquire(ctx)
	if err != nil {
		return err
	}
	st := &store{}
	if err := st.write(next.Token(), "by ben"); err != nil {
		return err
	}
	s.say(ben.name, "holds it with token %d, and writes", next.Token())
	rejected := st.write(late.Token(), "by anna")
	s.say(anna.name, "resumes and writes; the error is: %v", rejected)
	tokens = append(tokens, late.Token(), next.Token())
	s.check("tokens", tokens, "increasing", increasing(tokens))
	s.confirm("the late write was rejected", rejected != nil)
	s.check("stored text", st.text, "by ben", st.text == "by ben")
	return next.Release(ctx)
}

// increasing reports whether each number is greater than the previous one.
func increasing(numbers []int64) bool {
	for i := 1; i < len(numbers); i++ {
		if numbers[i] <= numbers[i-1] {
			return false
		}
	}
	return true
}
