package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var electionScene = Scene{
	Name:  "election",
	Shows: "a leader resigns, the next one dies; each time another one leads",
	run:   runElection,
}

const (
	electionTTL   = 2 * time.Second
	handOverLimit = time.Second     // an exchange with Redis, on a busy machine
	electionSlack = 2 * time.Second // allowed beyond the TTL, for a busy machine
)

// term is the beginning of a term.
type term struct {
	of    string // the candidate
	token int64
	at    time.Time
}

// runElection lets three candidates stand: the first one resigns, and the second one is killed.
func runElection(ctx context.Context, s *stage) error {
	terms := make(chan term)
	running, ctx := newTasks(ctx)
	stand := func(name string) (p *process, resign context.CancelFunc, err error) {
		p, err = s.newProcess(name)
		if err != nil {
			return nil, nil, err
		}
		candidacy, resign := context.WithCancel(ctx)
		running.run(func() error {
			election := p.Election("scheduler", primitives.WithWatchdog(electionTTL))
			_ = election.Run(candidacy, func(ctx context.Context, t primitives.Term) error {
				select {
				case terms <- term{name, t.Token, time.Now()}:
				case <-ctx.Done():
				}
				<-ctx.Done()
				return nil
			})
			return nil
		})
		return p, resign, nil
	}
	next := func() (t term, err error) {
		select {
		case t = <-terms:
			s.say(t.of, "leads, with token %d", t.token)
			return t, nil
		case <-ctx.Done():
			return t, context.Cause(ctx)
		}
	}

	_, resign, err := stand("anna")
	if err != nil {
		return err
	}
	first, err := next()
	if err != nil {
		return err
	}
	candidates, quits := map[string]*process{}, []context.CancelFunc{}
	for _, name := range []string{"ben", "carl"} {
		p, quit, err := stand(name)
		if err != nil {
			return err
		}
		candidates[name], quits = p, append(quits, quit)
		s.say(name, "stands")
	}
	resign()
	resigned := time.Now()
	s.say(first.of, "resigns")
	second, err := next()
	if err != nil {
		return err
	}
	took := second.at.Sub(resigned).Round(time.Millisecond)
	s.check("time from the resignation to the next leader", took, fmt.Sprintf("at most %v", handOverLimit),
		took <= handOverLimit)

	s.kill(candidates[second.of], electionTTL)
	killed := time.Now()
	s.say(second.of, "dies")
	third, err := next()
	if err != nil {
		return err
	}
	took = third.at.Sub(killed).Round(time.Millisecond)
	const limit = electionTTL + electionSlack
	s.check("time from the crash to the next leader", took, fmt.Sprintf("at most %v", limit), took <= limit)
	s.check("tokens of the terms", fmt.Sprint(first.token, second.token, third.token), "each greater than the last",
		first.token < second.token && second.token < third.token)
	for _, quit := range quits {
		quit()
	}
	return running.wait()
}
