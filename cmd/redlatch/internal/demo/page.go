package demo

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/timeline"
	"github.com/redlatch/redlatch/primitives"
)

// record keeps an event of a process, so that the page can draw it.
func (s *stage) record(process string, e primitives.Event) {
	one := timeline.Event{
		At: time.Now(), Process: process, Event: string(e.Kind), Kind: e.Lock, Name: e.Name, ID: e.ID,
		Waited: millis(e.Waited), Held: millis(e.Held), Outcome: string(e.Outcome()),
	}
	if loss, isLoss := errors.AsType[*primitives.LossError](e.Err); isLoss {
		one.Reason = string(loss.Reason)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, one)
}

// kept tells the page that a lock stays taken after its release.
func (s *stage) kept(process, lock string, until time.Time, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, timeline.Event{
		At: time.Now(), Process: process, Event: timeline.Kept, Kind: "lock", Name: lock, Stays: until, Err: why,
	})
}

func millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// part draws the scene.
func (s *stage) part(title string) (timeline.Part, error) {
	s.mu.Lock()
	log := timeline.Log{Events: s.events}
	s.mu.Unlock()
	drawn, err := log.Draw(timeline.Options{})
	if err != nil {
		return timeline.Part{}, err
	}
	part := timeline.Part{Title: title, Timeline: drawn}
	for _, c := range s.checksOf(s.scene) {
		part.Lines = append(part.Lines, c.String())
	}
	return part, nil
}

// writePage writes the page of a run.
func (r *report) writePage(out io.Writer, where string, parts []timeline.Part) error {
	r.mu.Lock()
	failed, total := r.failures(), len(r.checks)
	r.mu.Unlock()
	verdict := fmt.Sprintf("All %d checks passed", total)
	if failed > 0 {
		verdict = fmt.Sprintf("%d of %d checks failed", failed, total)
	}
	subtitle := fmt.Sprintf("%s. %s, on %s.", verdict, r.started.Format(time.DateTime), where)
	return timeline.Page(out, "The demo of redlatch", subtitle, parts...)
}
