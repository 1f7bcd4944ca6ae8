package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var fencedScene = scene{
	name:  "fenced",
	shows: "one that sleeps beyond its lease writes too late; the store sees it by the token",
	run:   runFenced,
}

const fencedLease = 500 * time.Millisecond

// store stands for what holders write to. It refuses whoever comes with an older token than somebody before.
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

// runFenced lets a lease run out, and its holder write all the same.
func runFenced(ctx context.Context, s *stage) error {
	cast, err := s.cast("anna", "ben", "cleo")
	if err != nil {
		return err
	}
	anna, ben := cast[0], cast[1]
	var tokens []int64
	for _, m := range cast {
		hold, err := m.FencedLock("page").Acquire(ctx)
		if err != nil {
			return err
		}
		tokens = append(tokens, hold.Token())
		if err := hold.Release(ctx); err != nil {
			return err
		}
	}
	s.say("all", "have held it in turn, with the tokens %d", tokens)
	late, err := anna.FencedLock("page").Acquire(ctx, primitives.WithLease(fencedLease))
	if err != nil {
		return err
	}
	s.say(anna.name, "holds it for %v, token %d, and falls asleep", fencedLease, late.Token())
	next, err := ben.FencedLock("page").Acquire(ctx)
	if err != nil {
		return err
	}
	st := &store{}
	if err := st.write(next.Token(), "by ben"); err != nil {
		return err
	}
	s.say(ben.name, "holds it, token %d, and writes", next.Token())
	refused := st.write(late.Token(), "by anna")
	s.say(anna.name, "wakes up and writes, and hears: %v", refused)
	tokens = append(tokens, late.Token(), next.Token())
	s.check("tokens", tokens, "rising", rising(tokens))
	s.confirm("the late writer was refused", refused != nil)
	s.check("what is written", st.text, "by ben", st.text == "by ben")
	return next.Release(ctx)
}

// rising tells whether each number is greater than the one before.
func rising(numbers []int64) bool {
	for i := 1; i < len(numbers); i++ {
		if numbers[i] <= numbers[i-1] {
			return false
		}
	}
	return true
}
