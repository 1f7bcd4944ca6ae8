package timeline

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Kinds of events, as package primitives has them, and two of package eventlog.
const (
	opened      = "opened"
	dropped     = "dropped"
	wait        = "wait"
	waited      = "waited"
	acquired    = "acquired"
	notAcquired = "not-acquired"
	nested      = "nested"
	released    = "released"
	lost        = "lost"
)

// ends are the events that end a hold.
var ends = []string{released, "release-failed", lost, "leaked", "detached", "abandoned"}

// Events that no file has. The demo knows them, because it runs all processes itself.
const (
	// Kept: the lock that the process has released stays taken. Stays says until when, and Err says
	// why.
	Kept = "kept"
	// Killed: the process has died. The locks that it held stay taken. Its later events do not
	// count.
	Killed = "killed"
)

// Event is a line of a file: see package eventlog.
type Event struct {
	At      time.Time `json:"at"`
	Process string    `json:"process"`
	Event   string    `json:"event"`
	Kind    string    `json:"kind"`
	Name    string    `json:"name"`
	Base64  string    `json:"name_base64"`
	ID      string    `json:"id"`
	Waited  float64   `json:"waited_ms"`
	Held    float64   `json:"held_ms"`
	Outcome string    `json:"outcome"`
	Reason  string    `json:"reason"`
	Err     string    `json:"err"`
	Count   int64     `json:"count"`
	// Stays is until when the lock stays taken, in the events Kept and Killed.
	Stays time.Time `json:"-"`
}

// Log is what files say.
type Log struct {
	Files  int
	Events []Event
	// Broken are the lines that are no events, with file and number.
	Broken []error
	// Torn is how many lines have no end: the process was ended while it wrote. It went on after
	// that, or not.
	Torn int
}

// maxLine bounds a line. An error may be long.
const maxLine = 1 << 20

// Read adds the lines of one file. It fails only if the file cannot be read.
func (l *Log) Read(name string, in io.Reader) error {
	l.Files++
	lines := bufio.NewReaderSize(in, maxLine)
	var broken error // of the line before: nothing was opened after it so far
	for number := 1; ; number++ {
		line, err := lines.ReadSlice('\n')
		atEnd := errors.Is(err, io.EOF)
		tooLong := errors.Is(err, bufio.ErrBufferFull)
		if err != nil && !atEnd && !tooLong {
			return fmt.Errorf("%s: %w", name, err)
		}
		text := bytes.TrimSpace(line)
		e, wrong := parse(text)
		if tooLong {
			wrong = fmt.Errorf("it is longer than %d bytes", maxLine)
			skipLine(lines)
		}
		// A process that ends while it writes leaves part of a line: the last of the file, or one
		// before it starts again.
		if broken != nil && wrong == nil && e.Event == opened {
			l.Torn++
		} else if broken != nil {
			l.Broken = append(l.Broken, broken)
		}
		broken = nil
		switch {
		case len(text) == 0:
		case wrong == nil:
			l.Events = append(l.Events, e)
		case atEnd:
			l.Torn++
		default:
			broken = fmt.Errorf("%s:%d: no event: %w", name, number, wrong)
		}
		if atEnd {
			return nil
		}
	}
}

// skipLine reads the rest of a line.
func skipLine(in *bufio.Reader) {
	for {
		_, err := in.ReadSlice('\n')
		if !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// parse reads a line.
func parse(line []byte) (e Event, err error) {
	if len(line) == 0 {
		return e, nil
	}
	err = json.Unmarshal(line, &e)
	switch {
	case err != nil:
		return e, err
	case e.At.IsZero():
		return e, errors.New("it has no \"at\"")
	case e.Process == "" || e.Event == "":
		return e, errors.New("it has no \"process\" or no \"event\"")
	case e.Base64 != "":
		name, err := base64.StdEncoding.DecodeString(e.Base64)
		if err != nil {
			return e, fmt.Errorf("name_base64: %w", err)
		}
		e.Name = string(name)
	}
	return e, nil
}

// sort puts the events in order, and shifts the clocks of processes. An event that stands in two
// files counts once.
func (l *Log) sort(shifts map[string]time.Duration) {
	for i := range l.Events {
		e := &l.Events[i]
		e.At = e.At.Add(shifts[e.Process]).UTC()
	}
	slices.SortStableFunc(l.Events, func(a, b Event) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Process, b.Process))
	})
	known := make(map[Event]bool, len(l.Events))
	l.Events = slices.DeleteFunc(l.Events, func(e Event) bool {
		isKnown := known[e]
		known[e] = true
		return isKnown
	})
}
