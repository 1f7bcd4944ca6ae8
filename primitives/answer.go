package primitives

import (
	"fmt"

	"github.com/redlatch/redlatch/scripts"
)

// How replies of scripts are read. A reply of another form than the script's header states comes from
// something that is not a Redis, such as a proxy. It must not pass for an answer: the call fails, and its
// outcome is unknown.

// unreadable is the error of a reply of the wrong form. An acquisition that gets one is rolled back.
func unreadable(value any) error {
	return &scripts.Error{
		Script: "reply", Outcome: scripts.Unknown, Err: fmt.Errorf("a %T that no script returns", value),
	}
}

// readNumber reads a reply that is a number. err is the call's.
func readNumber(reply scripts.Reply, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	n, ok := reply.Value.(int64)
	if !ok {
		return 0, unreadable(reply.Value)
	}
	return n, nil
}

// readLost reads a reply that is 0 if the hold is lost.
func readLost(reply scripts.Reply, err error) (lost bool, _ error) {
	n, err := readNumber(reply, err)
	return err == nil && n == 0, err
}

// elements reads the elements of a list one after another. A missing element, or one of another type, sets
// err, and reads as the zero value.
type elements struct {
	rest []any
	err  error
}

// elementsOf reads a value that is a list. err is the call's.
func elementsOf(value any, err error) elements {
	list, ok := value.([]any)
	if err == nil && !ok {
		err = unreadable(value)
	}
	return elements{list, err}
}

// more reports whether there is another element, and no error yet.
func (e *elements) more() bool { return e.err == nil && len(e.rest) > 0 }

// next returns the next element; nil if there is none.
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
		e.err = unreadable(value)
	}
	return n
}

func (e *elements) text() string {
	value := e.next()
	text, ok := value.(string)
	if !ok && e.err == nil {
		e.err = unreadable(value)
	}
	return text
}

// list reads an element that is a list itself.
func (e *elements) list() elements {
	inner := elementsOf(e.next(), e.err)
	e.err = inner.err
	return inner
}
