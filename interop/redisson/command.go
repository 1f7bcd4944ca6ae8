package redisson

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Command is one command to the driver. Client and the objects make them; a test needs one of its own only for what they do not
// offer, such as one Java thread that uses several clients.
type Command struct {
	Op       string    `json:"op"`               // hello, open, close, ids, invoke, counter, bench, load, run, unload, interrupt, kill
	Thread   string    `json:"thread,omitempty"` // the Java thread that runs it, "main" by default
	Target   *Target   `json:"target,omitempty"`
	Method   string    `json:"method,omitempty"` // invoke: a method of Redisson's API
	Args     []any     `json:"args,omitempty"`   // invoke: numbers, strings (a TimeUnit or an ISO Duration too), lists of strings; run, unload: see Session
	Config   any       `json:"config,omitempty"` // open: in the form of Redisson's configuration file
	Workload *Workload `json:"workload,omitempty"`
	Load     any       `json:"load,omitempty"` // load: see Driver.Load
}

// Target names a client or, with a kind and a name, one of its objects. Equal targets mean the same Java object.
type Target struct {
	Client  string   `json:"client"`
	Kind    string   `json:"kind,omitempty"`
	Name    string   `json:"name,omitempty"`
	Handle  string   `json:"handle,omitempty"`  // tells apart Java objects of one name
	Members []Target `json:"members,omitempty"` // of a multi or red lock
}

// Workload enters and leaves a section again and again, in Java.
type Workload struct {
	Iterations  int    `json:"iterations"`            // how often each thread enters
	Threads     int    `json:"threads"`               // Java threads of their own, started at once
	LeaseMillis int64  `json:"leaseMillis,omitempty"` // 0: none (the watchdog, or a permit that never expires)
	Key         string `json:"key,omitempty"`         // what Counter counts in
}

// Run is what became of a Workload.
type Run struct {
	Count  int           `json:"count"`  // sections entered
	Took   time.Duration `json:"ns"`     // from the start of all threads to the end of the last
	Owners []int         `json:"owners"` // which thread was in each section, in order of entry
}

// Answer is what a command gave.
type Answer struct {
	Result      json.RawMessage // Java's result; empty for void and null
	Start, End  time.Time       // around the call in Java, without the way there and back
	ThreadID    int64           // of the Java thread that ran it
	Interrupted bool            // the thread's interrupt status when the call had ended
}

// Decode reads the result into v. An empty one leaves v as it is.
func (a Answer) Decode(v any) error {
	if len(a.Result) == 0 {
		return nil
	}
	if err := json.Unmarshal(a.Result, v); err != nil {
		return fmt.Errorf("redisson: result %s: %w", a.Result, err)
	}
	return nil
}

// result is the answer's result as a T: its zero value for void and null, and with an error.
func result[T any](a Answer, err error) (T, error) {
	var v T
	if err != nil {
		return v, err
	}
	return v, a.Decode(&v)
}

// Exception is what a Java call threw.
type Exception struct {
	Type    string // the class, with its package
	Message string
	Causes  []Cause // from the outermost to the root
}

// Cause is one cause of an exception.
type Cause struct{ Type, Message string }

// Error gives the exception and its causes in one line.
func (e *Exception) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %s", e.Type, e.Message)
	for _, cause := range e.Causes {
		fmt.Fprintf(&text, ": caused by %s: %s", cause.Type, cause.Message)
	}
	return text.String()
}

// Has tells whether the exception or one of its causes is of the class, given with or without its package.
func (e *Exception) Has(class string) bool {
	is := func(name string) bool { return name == class || strings.HasSuffix(name, "."+class) }
	return is(e.Type) || slices.ContainsFunc(e.Causes, func(c Cause) bool { return is(c.Type) })
}

// reply is an answer as it stands on its line.
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
