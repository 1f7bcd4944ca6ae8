package scripts

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/redlatch/redlatch/internal/failure"
)

// How replies are read. A reply whose form differs from the script's header comes from something
// that is not Redis, such as a proxy. It must not pass for an answer, so the call fails, and its
// outcome is unknown. The functions here return the reply in any case, because it says whether the
// call is in doubt.

// Unreadable is the error of a reply of the wrong form. An acquisition that gets one is rolled
// back.
func Unreadable(value any) error {
	unknown := failure.Failure{Outcome: failure.Unknown}
	return &failure.Error{Failure: unknown, Err: fmt.Errorf("a %T that no script returns", value)}
}

// Number is a reply that is a number.
type Number struct {
	Reply

	Number int64
}

func readNumber(reply Reply, err error) (Number, error) {
	got := Number{Reply: reply}
	if err != nil {
		return got, err
	}
	n, ok := reply.Value.(int64)
	if !ok {
		return got, Unreadable(reply.Value)
	}
	got.Number = n
	return got, nil
}

// IDs is the reply of a script that ends others' holds: the ids of the former holders.
type IDs struct {
	Reply

	Found bool // somebody held it
	IDs   []string
}

func readIDs(reply Reply, err error) (IDs, error) {
	got := IDs{Reply: reply}
	if reply.Value == int64(0) {
		return got, err
	}
	got.Reply, got.IDs, err = readTexts(reply, err)
	got.Found = err == nil
	return got, err
}

func readTexts(reply Reply, err error) (Reply, []string, error) {
	_, list, err := readList(reply, err)
	var texts []string
	for err == nil && list.more() {
		texts = append(texts, list.text())
	}
	if err == nil {
		err = list.err
	}
	return reply, texts, err
}

// Kept is the reply to a [Batch]. It says for each call whether the lease was kept.
type Kept struct {
	Reply

	Kept   []bool
	Longer map[int]time.Duration // by position: how long a lease lasts, if longer than asked for; nil if none does
	Now    int64                 // the server's time, in ms, if there are such leases
}

// Refusal says why a lock was refused, unless the reason is that somebody else holds it.
type Refusal string

// The refusals.
const (
	Over  Refusal = "over"  // this acquisition was rolled back or released before, so the command is a late copy
	Again Refusal = "again" // a second count of the same id is forbidden
	Lost  Refusal = "lost"  // the hold to nest under is gone
	Unset Refusal = "unset" // the number of permits is not set yet
)

// Acquired is the reply of the scripts that acquire a lock or permits.
type Acquired struct {
	Reply

	Granted bool
	Token   int64   // if granted, the last fencing token that was reserved, or the epoch of a semaphore; 0 if none
	Left    int64   // how many permits are left
	Refusal Refusal // if not granted: "" if somebody else holds or may claim the lock, or if too few permits are left
	PTTL    int64   // if somebody else holds the lock, for how long, in ms; -1 for ever; -2 if unknown
	Holder  string  // the id of the holder; "" if there is none
}

// readAcquired also returns the elements that follow the holder, or the text "in".
func readAcquired(reply Reply, err error) (Acquired, elements, error) {
	got := Acquired{Reply: reply}
	if err != nil {
		return got, elements{}, err
	}
	switch value := reply.Value.(type) {
	case int64:
		got.Granted = value == 0
		if got.Granted {
			return got, elements{}, nil
		}
	case string:
		switch refusal := Refusal(value); refusal {
		case Over, Again, Lost:
			got.Refusal = refusal
			return got, elements{}, nil
		case Unset: // it is never sent as a text
		}
		got.Token = TokenOf(value)
		if got.Token > 0 {
			got.Granted = true
			return got, elements{}, nil
		}
	case []any:
		list := elements{rest: value}
		if len(value) > 0 && value[0] == "in" {
			list.next()
			got.Granted = true
			return got, list, nil
		}
		got.PTTL = list.number()
		if list.more() {
			got.Holder = list.text()
		}
		return got, list, list.err
	}
	return got, elements{}, Unreadable(reply.Value)
}

// TokenOf returns a fencing token that a script returned as text, or 0 if there is none.
func TokenOf(text string) int64 {
	token, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return token
}

// Holders is the reply of the scripts that read who holds a lock.
type Holders struct {
	Reply

	PTTL    int64 // the PTTL of the lock's hash
	Holders []Holder
}

// Holder is one of [Holders].
type Holder struct {
	ID    string
	Count int64
	PTTL  int64
}

// readHolders also returns the elements that follow the holders.
func readHolders(reply Reply, err error) (Holders, elements, error) {
	got := Holders{Reply: reply}
	_, list, err := readList(reply, err)
	if err != nil {
		return got, list, err
	}
	got.PTTL = list.number()
	holders := list.list()
	for holders.more() {
		got.Holders = append(got.Holders, Holder{holders.text(), holders.number(), holders.number()})
	}
	list.err = cmp.Or(list.err, holders.err)
	return got, list, list.err
}

// Released is the reply of the scripts that free something, or hand it off.
type Released struct {
	Reply

	Held      bool  // there was something to release
	Gone      bool  // there was nothing, and no copy of this call can be the reason
	HandedOff bool  // it was handed off to the successor
	Token     int64 // if handed off, the last fencing token that was reserved; 0 if there is none
	Left      int64 // if handed off, the permits that are left
	Heard     int64 // if not handed off, how many clients have received the message
	Polled    bool  // if not handed off, whether clients poll, if the call has asked for that
}

// polled is the second element of the reply to a release without a successor, if clients poll.
const polled = "polled"

// readReleased also returns the elements that follow the first one, if the lock was handed off.
func readReleased(reply Reply, err error) (Released, elements, error) {
	got := Released{Reply: reply}
	if err != nil {
		return got, elements{}, err
	}
	freed, isList := reply.Value.([]any)
	if isList && len(freed) == 2 && freed[1] == polled {
		reply.Value = freed[0]
		got.Polled = true
	}
	switch value := reply.Value.(type) {
	case int64:
		got.Held = value > 0
		got.Gone = value < 0
		got.Heard = value - 1
		return got, elements{}, nil
	case []any:
		list := elements{rest: value}
		got.Held = true
		got.HandedOff = true
		if len(value) > 0 {
			text, _ := value[0].(string)
			got.Token = TokenOf(text)
		}
		if got.Token == 0 {
			got.Left = list.number()
		}
		return got, list, list.err
	}
	return got, elements{}, Unreadable(reply.Value)
}

// FairReleased is the reply to the release of a fair lock.
type FairReleased struct {
	Reply

	Held  bool   // there was something to release
	Grant string // the payload of the grant, if the lock was granted to a waiter of the same client
}

func readFairReleased(reply Reply, err error) (FairReleased, error) {
	if grant, ok := reply.Value.(string); ok && err == nil {
		return FairReleased{reply, true, grant}, nil
	}
	n, err := readNumber(reply, err)
	return FairReleased{Reply: reply, Held: n.Number != 0}, err
}

// readPermits reads the reply to an acquisition of permits. It is {1, left, epoch} if it was
// granted, and otherwise {0, left, ms until a lease ends}, or {0} if no number is set. Not every
// kind has the last element.
func readPermits(reply Reply, err error) (Acquired, error) {
	got := Acquired{Reply: reply, PTTL: -2}
	if err == nil && reply.Value == string(Over) {
		got.Refusal = Over
		return got, nil
	}
	_, list, err := readList(reply, err)
	if err != nil {
		return got, err
	}
	granted := list.number() == 1
	last := &got.PTTL
	if granted {
		last = &got.Token
	} else if !list.more() {
		got.Refusal = Unset
		return got, list.err
	}
	got.Left = list.number()
	if list.more() {
		*last = list.number()
	}
	got.Granted = granted && list.err == nil
	return got, list.err
}

// readList reads a reply that is a list.
func readList(reply Reply, err error) (Reply, elements, error) {
	list, ok := reply.Value.([]any)
	if err == nil && !ok {
		err = Unreadable(reply.Value)
	}
	return reply, elements{rest: list, err: err}, err
}

// elements reads the elements of a list one after another. A missing element, or an element of
// another type, sets err, and is read as the zero value.
type elements struct {
	rest []any
	err  error
}

// more reports whether there is another element, and no error yet.
func (e *elements) more() bool { return e.err == nil && len(e.rest) > 0 }

// next returns the next element, or nil if there is none.
func (e *elements) next() any {
	if len(e.rest) == 0 {
		return nil
	}
	value := e.rest[0]
	e.rest = e.rest[1:]
	return value
}

func (e *elements) number() int64 {
	value := e.next()
	n, ok := value.(int64)
	if !ok && e.err == nil {
		e.err = Unreadable(value)
	}
	return n
}

func (e *elements) flag() bool { return e.number() == 1 }

func (e *elements) text() string {
	value := e.next()
	text, ok := value.(string)
	if !ok && e.err == nil {
		e.err = Unreadable(value)
	}
	return text
}

// list reads an element that is a list itself.
func (e *elements) list() elements {
	value := e.next()
	list, ok := value.([]any)
	if !ok && e.err == nil {
		e.err = Unreadable(value)
	}
	return elements{list, e.err}
}
