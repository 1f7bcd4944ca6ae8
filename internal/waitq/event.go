package waitq

import "time"

// EventKind is a kind of event.
type EventKind uint8

// The events of a queue.
const (
	Joined    EventKind = iota // a request has joined the queue
	Confirmed                  // the head has seen that one more subscription is confirmed, or was refused
	Begins                     // a due waiter's attempt begins
	Batching                   // that attempt is about to acquire for other waiters too
	Tried                      // an attempt has ended without acquiring
	Answered                   // the command that offered a waiter the lock has ended
	Left                       // a waiter leaves
	Alarm                      // the time is TryAt
	Releasing                  // a release by this client is about to be sent
	Yielded                    // the reply to a release that left the lock to other clients

	// Messages.
	Missed     // messages may have been lost, or it is not known whether the lock is free
	Heard      // a release message
	OurTurn    // a message at this client's place: it is its turn
	OthersTurn // a message at this client's place: it is another client's turn
	Listen     // a message at this client's place: hear the common messages too
)

// Event is what happens, and when.
type Event struct {
	Kind EventKind
	Now  time.Time
	Who  *Waiter // Joined to Left: the waiter

	// OthersTurnEnds is when a turn of other clients ends that this client's own release has begun.
	// It matters to the first waiter of a queue. Zero if there is no such turn.
	OthersTurnEnds time.Time // Joined

	// Joined, Tried, Left: how long the holder's lease lasts; negative if unknown.
	RetryAfter    time.Duration
	Granted       bool   // Answered, Left: the waiter has the lock
	Doubt         bool   // Tried, Answered: see [Progress]
	Untried       bool   // Answered: the command did not try for it after all
	GivesUp       bool   // Tried: see [Progress.Tried]
	Free          int    // Tried, Left: permits that are still free
	Holder        string // Tried: the id that holds the lock
	InLine        bool   // Begins: the client hears messages to its place; Tried: the reply is about the place
	Since         int64  // Tried: when the client took its place; 0: unknown
	NeedNotListen bool   // Tried: the client need not listen

	HandsOff   bool // Releasing: the release may hand the lock off
	HasHadTurn bool // Releasing: the client has had the lock for long enough
	Permits    int  // Releasing: how many are released
	// Releasing, Yielded: for how long the client may have kept the lock without a command, by a
	// cohort or by lingering; 0 if it has not.
	KeptFor time.Duration
	// Yielded: when the release was sent, and how many other clients were told of it.
	Sent   time.Time
	Others int
}

// ActionKind is a kind of action.
type ActionKind uint8

// The actions.
const (
	Wake        ActionKind = iota // let a waiter look at its state
	Try                           // send the waiter's attempt, with the place
	Offer                         // try for the waiter too, or release in its favor, with the place
	Yield                         // release, and move the place to the end of the line
	Subscribe                     // to the common messages: see [Queue.Subscribed]
	JoinLine                      // subscribe to a place, if the kind has a line: see [Queue.Subscribed]
	Unsubscribe                   // from the common messages
	LeaveLine                     // unsubscribe from the place, and give it up if its number is not 0
)

// Action is something to be done.
type Action struct {
	Kind         ActionKind
	Who          *Waiter
	Place        Place
	HearsRelease bool // Yield: this client hears the message of the release
}

// Place is a client's place in line, as a command sends it. The zero value means that the client
// does not stand in line.
type Place struct {
	Number uint64 // unique on the client
	Since  int64  // the server's time when the client took the place; 0: the server knows it if the place exists
	Last   bool   // the request is the client's only waiter: granting it gives up the place
}
