package stage

import (
	"fmt"

	"github.com/redlatch/redlatch/internal/torture/simstop"
)

// State is what the page shows. Times are in ms since the stage began.
type State struct {
	Now      float64  `json:"now"`
	Settings Settings `json:"settings"`
	Clients  []Client `json:"clients"`
	Rows     []Row    `json:"rows"`
	Log      []Entry  `json:"log"`   // the latest is the last
	Stops    bool     `json:"stops"` // processes can be stopped and killed
}

// Client is a client with its buttons.
type Client struct {
	State      string  `json:"state"`
	Cut        bool    `json:"cut"`
	Stopped    bool    `json:"stopped"`
	ValidUntil float64 `json:"valid_until"` // of its hold; 0 if it has none
	Lost       string  `json:"lost"`        // why it has lost its latest hold; "" if it has not
}

// Row is a row of the timeline.
type Row struct {
	Label  string `json:"label"`
	Spans  []Span `json:"spans"`
	Marks  []Span `json:"marks"`
	Faults []Span `json:"faults"`
}

// Span is a part of a row.
type Span struct {
	What string  `json:"what"` // a class of the style sheet
	From float64 `json:"from"`
	To   float64 `json:"to"` // 0: it lasts
	Text string  `json:"text"`
	// Short stands on the span. Most have none.
	Short string `json:"short,omitempty"`
}

// Entry is a line of the log.
type Entry struct {
	At     float64 `json:"at"`
	Client int     `json:"client"` // 0: a remark about both
	Text   string  `json:"text"`
	Class  string  `json:"class"`
}

// The classes of spans.
const (
	spanWait    = "wait"
	spanHold    = "hold"
	spanLost    = "hold lost"
	spanKilled  = "hold killed"
	spanRefused = "refused"
	spanRenewed = "renewed"
	spanCut     = "cut"
	spanStopped = "stopped"
)

// The classes of entries.
const (
	plain  = ""
	good   = "good"
	fault  = "warn"
	broken = "bad"
)

// How much the stage remembers.
const (
	keptSpans   = 200 // of each row
	keptEntries = 200
)

// row is a row of the timeline.
type row struct{ spans []Span }

// begin begins a span.
func (r *row) begin(span Span) {
	r.spans = append(r.spans, span)
	r.spans = r.spans[max(len(r.spans)-keptSpans, 0):]
}

// endAll ends all spans that last. They become what, unless that is "".
func (r *row) endAll(now float64, what string) {
	for i := range r.spans {
		span := &r.spans[i]
		if span.To != 0 {
			continue
		}
		span.To = now
		if what != "" {
			span.What = what
		}
	}
}

// tell adds a line about a client to the log. s.mu is held.
func (s *Stage) tell(c *client, text, class string) { s.add(Entry{s.now(), c.number, text, class}) }

// note adds a remark about both clients to the log. s.mu is held.
func (s *Stage) note(text, class string) { s.add(Entry{s.now(), 0, text, class}) }

func (s *Stage) add(e Entry) {
	s.log = append(s.log, e)
	s.log = s.log[max(len(s.log)-keptEntries, 0):]
}

// State returns what the page shows.
func (s *Stage) State() State {
	defer simstop.Join(simstop.Join(0))
	s.mu.Lock()
	defer s.mu.Unlock()
	state := State{Now: s.now(), Settings: s.settings, Log: list(s.log), Stops: simstop.Supported}
	for _, c := range s.clients {
		p := c.process
		shown := Client{State: p.state, Cut: p.cut, Stopped: p.stopped, Lost: p.lostBy}
		if p.hold != nil {
			shown.ValidUntil = p.validUntil
		}
		state.Clients = append(state.Clients, shown)
		state.Rows = append(state.Rows, Row{
			Label: fmt.Sprintf("Client %d", c.number), Spans: list(c.row.spans), Marks: list(c.marks.spans),
			Faults: list(c.faults.spans),
		})
	}
	state.Rows = append(state.Rows, Row{
		Label: "Redis", Spans: list(s.holderRow.spans), Marks: []Span{}, Faults: []Span{},
	})
	return state
}

// list copies a list for JSON, in which an empty one is a list, too.
func list[T any](all []T) []T { return append([]T{}, all...) }
