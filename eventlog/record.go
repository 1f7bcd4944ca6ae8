package eventlog

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/redlatch/redlatch/primitives"
)

// Events that package primitives does not have.
const (
	eventOpened  primitives.EventKind = "opened"
	eventDropped primitives.EventKind = "dropped"
)

// record is one line of the file. The command's package timeline reads it.
type record struct {
	At       time.Time            `json:"at"`
	Process  string               `json:"process"`
	Event    primitives.EventKind `json:"event"`
	Kind     string               `json:"kind,omitempty"`
	Name     string               `json:"name,omitempty"`
	Base64   string               `json:"name_base64,omitempty"`
	ID       string               `json:"id,omitempty"`
	Election bool                 `json:"election,omitempty"`
	Waited   float64              `json:"waited_ms,omitempty"`
	Held     float64              `json:"held_ms,omitempty"`
	Outcome  primitives.Outcome   `json:"outcome,omitempty"`
	Reason   string               `json:"reason,omitempty"`
	Err      string               `json:"err,omitempty"`
	Count    int64                `json:"count,omitempty"`
}

// noted is an event with the values that must be read at once.
type noted struct {
	at      time.Time
	event   primitives.Event
	outcome primitives.Outcome
}

// millis returns a duration in milliseconds, which is 0 only if the duration is.
func millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// record returns the event's record.
func (n *noted) record(process string) record {
	e := &n.event
	r := record{
		At: n.at.UTC(), Process: process, Event: e.Kind, Kind: e.Lock, Name: e.Name, ID: e.ID, Election: e.Election,
		Waited: millis(e.Waited), Held: millis(e.Held), Outcome: n.outcome,
	}
	if !utf8.ValidString(e.Name) {
		r.Base64 = base64.StdEncoding.EncodeToString([]byte(e.Name))
	}
	if loss, isLoss := errors.AsType[*primitives.LossError](e.Err); isLoss {
		r.Reason = string(loss.Reason)
	}
	if e.Err != nil {
		r.Err = e.Err.Error()
	}
	return r
}

// line returns the record as a line.
func (r record) line() []byte {
	line, err := json.Marshal(r)
	if err != nil { // for example a NaN, which no duration is
		return nil
	}
	return append(line, '\n')
}
