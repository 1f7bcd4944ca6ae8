package redisson

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Command is one command to the driver. Client and the objects make commands. A test makes one
// itself only for features that they lack, such as one Java thread that uses several clients.
type Command struct {
	// Op is one of hello, open, close, ids, invoke, counter, bench, load, run, unload, interrupt,
	// kill.
	Op     string  `json:"op"`
	Thread string  `json:"thread,omitempty"` // the Java thread that runs the command; default "main"
	Target *Target `json:"target,omitempty"`
	Method string  `json:"method,omitempty"` // for invoke: a method of Redisson's API
	// Args are, for invoke: numbers, lists of strings, and strings, which may be a TimeUnit or an
	// ISO Duration. For run and unload see Session.
	Args     []any     `json:"args,omitempty"`
	Config   any       `json:"config,omitempty"` // for open: in the format of Redisson's configuration file
	Workload *Workload `json:"workload,omitempty"`
	Load     any       `json:"load,omitempty"` // for load: see Driver.Load
}

// Target names a client or, with a kind and a name, one of its objects. Equal targets refer to the
// same Java object.
type Target struct {
	Client  string   `json:"client"`
	Kind    string   `json:"kind,omitempty"`
	Name    string   `json:"name,omitempty"`
	Handle  string   `json:"handle,omitempty"`  // distinguishes Java objects with the same name
	Members []Target `json:"members,omitempty"` // of a multi or redlock
}

// Workload enters and leaves a critical section repeatedly, in Java.
type Workload struct {
	Iterations  int    `json:"iterations"`            // entries per thread
	Threads     int    `json:"threads"`               // new Java threads, started at the same time
	LeaseMillis int64  `json:"leaseMillis,omitempty"` // 0: the watchdog, or a permit that never expires
	Key         string `json:"key,omitempty"`         // the key that Counter increments
}

// Run is the result of a Workload.
type Run struct {
	Count  int           `json:"count"`  // number of entries
	Took   time.Duration `json:"ns"`     // from the start of the threads to the end of the last one
	Owners []int         `json:"owners"` // the thread of each entry, in order
}

// Answer is the result of a command.
type Answer struct {
	Result      json.RawMessage // Java's result; empty for void and null
	Start, End  time.Time       // of the call in Java, without the communication with Java
	ThreadID    int64           // of the Java thread that ran the command
	Interrupted bool            // the thread's interrupt status at the end of the call
}

// Decode decodes the result into v. It leaves v unchanged if the result is empty.
func (a Answer) Decode(v any) error {
	if len(a.Result) == 0 {
		return nil
	}
	if err := json.Unmarshal(a.Result, v); err != nil {
		return fmt.Errorf("redisson: result %s: %w", a.Result, err)
	}
	return nil
}

// result returns the answer's result as a T. It returns the zero value for void and null, and with
// an error.
func result[T any](a Answer, err error) (T, error) {
	var v T
	if err != nil {
		return v, err
	}
	return v, a.Decode(&v)
}

// Exception is an exception that a Java call has thrown.
type Exception struct {
	Type    string // fully qualified class name
	Message string
	Causes  []Cause // from the outermost to the root
}

// Cause is one cause of an exception.
type Cause struct{ Type, Message string }

// Error returns the exception and its causes on one line.
func (e *Exception) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %s", e.Type, e.Message)
	for _, cause := range e.Causes {
		fmt.Fprintf(&text, ": caused by %s: %s", cause.Type, cause.Message)
	}
	return text.String()
}

// Has reports whether the exception or one of its causes has the given class. The package name may
// be omitted.
func (e *Exception) Has(class string) bool {
	is := func(name string) bool { return name == class || strings.HasSuffix(name, "."+class) }
	return is(e.Type) || slices.ContainsFunc(e.Causes, func(c Cause) bool { return is(c.Type) })
}

// reply is the JSON form of an Answer.
type reply struct {
	ID          int64           `json:"id"`
	Result      json.RawMessage `json:"result"`
	Error       *Exception      `json:"error"`
	Start       int64           `json:"start"`
	End         int64           `json:"end"`
	ThreadID    int64           `json:"threadId"`
	Interrupted bool            `json:"interrupted"`
}

func (r reply) answer() (Answer, error) {
	a := Answer{r.Result, time.Unix(0, r.Start), time.Unix(0, r.End), r.ThreadID, r.Interrupted}
	if r.Error != nil {
		return a, r.Error
	}
	return a, nil
}
