package engine

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/internal/waitq"
)

// The commands and subscriptions of clients that stand in line on the server: see package waitq.

// placeLife is longer than the server keeps a place that nobody renews.
const placeLife = 5 * time.Second

// leaveGrace is how long a call waits until its place is given up.
const leaveGrace = 5 * time.Millisecond

// Message is what a subscription hears.
type Message = waitq.EventKind

// The messages. The last three come to a place in line.
const (
	Missed     = waitq.Missed     // messages may have been lost
	Heard      = waitq.Heard      // there may be room: a reason to try again
	OurTurn    = waitq.OurTurn    // it is this client's turn
	OthersTurn = waitq.OthersTurn // it is another client's turn; sent to listeners
	Listen     = waitq.Listen     // become a listener
)

// Place is a client's place in line, as an attempt sends it. The zero value: the client does not
// stand in line.
type Place = waitq.Place

// joinLine gives the queue a place, if the clients of its kind stand in line. queues.mu is held.
func (wq *waitQueue) joinLine(number uint64) {
	line, ok := wq.r.Driver.(LineDriver)
	if !ok {
		return
	}
	if sub := line.SubscribePlace(number, wq.message); sub != nil {
		wq.atPlace = sub
		wq.unsettled = append(wq.unsettled, sub)
		wq.state.Subscribed(1, number)
	}
}

// giveUpPlace gives up a place in the background. Unless its last waiter has acquired, it blocks
// for a moment, so that the place is usually gone when the call of the waiter returns.
func (r *Resource) giveUpPlace(number uint64, acquired bool) {
	line := r.Driver.(LineDriver)
	grace := leaveGrace
	if acquired {
		grace = 0
	}
	r.inBackground(context.Background(), time.Now().Add(placeLife), grace, func(ctx context.Context) error {
		return line.GiveUpPlace(ctx, number)
	})
}
