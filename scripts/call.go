package scripts

import (
	"context"
	"math"
	"sync/atomic"
	"time"
)

// What the generated calls have in common: how they are sent, and the forms of their arguments.

// Sender sends calls with a runner, in one of three ways.
type Sender struct {
	runner   *Runner
	once     bool
	replicas int
	timeout  time.Duration
	patience Patience // the patience of a patient sender
}

// Sender returns a sender that uses [Runner.Do].
func (r *Runner) Sender() Sender { return Sender{runner: r} }

// OnceSender returns a sender that uses [Runner.Once].
func (r *Runner) OnceSender() Sender { return Sender{runner: r, once: true} }

// PatientSender returns a sender that uses [Runner.Once], but waits longer for the answer than the
// runner's timeout. A call returns when its context ends.
func (r *Runner) PatientSender(patience Patience) Sender {
	return Sender{runner: r, once: true, patience: patience}
}

// ReplicatedSender returns a sender that uses [Runner.RunReplicated]. With 0 replicas it is like
// [Runner.Sender].
func (r *Runner) ReplicatedSender(replicas int, timeout time.Duration) Sender {
	return Sender{runner: r, replicas: replicas, timeout: timeout}
}

// send sends a script. The first required keys and the first needed arguments are always sent.
// Further ones are left out at the end if they are nil, zero, empty or false. Both slices belong to
// the caller, and are not kept.
func (s Sender) send(
	ctx context.Context, script *Script, keys []any, required int, args []any, needed int,
) (Reply, error) {
	for len(keys) > required && keys[len(keys)-1] == nil {
		keys = keys[:len(keys)-1]
	}
	for i, key := range keys {
		switch {
		case key != nil: // given
		case i >= required: // an optional key, and a later one is given
			keys[i] = keys[0] // any key of the slot
		default: // Redis would otherwise take the empty name for the key
			panic("scripts: " + script.name + " without one of its keys")
		}
	}
	for len(args) > needed && isZero(args[len(args)-1]) {
		args = args[:len(args)-1]
	}
	switch {
	case s.once:
		return s.runner.once(ctx, s.patience, script, keys, args)
	case s.replicas > 0:
		return s.runner.RunReplicated(ctx, s.replicas, s.timeout, script, keys, args...)
	}
	return s.runner.Do(ctx, script, keys, args...)
}

// isZero reports whether an argument is zero, false or empty.
func isZero(arg any) bool {
	switch v := arg.(type) {
	case int:
		return v == 0
	case int64:
		return v == 0
	case bool:
		return !v
	case string:
		return v == ""
	}
	return false
}

// CeilMillis returns d in whole milliseconds, rounded up, so that no TTL is 0 or shorter than asked
// for.
func CeilMillis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// durations makes arguments of durations. It keeps the latest ones, because a number above 255
// takes an allocation, and most calls have one of a few durations.
type durations [61]atomic.Value // each contains an int64

// millis returns a duration as an argument: see [CeilMillis].
func (ds *durations) millis(d time.Duration) any {
	ms := CeilMillis(d)
	place := &ds[uint64(ms)%uint64(len(ds))]
	arg := place.Load()
	if arg != ms {
		arg = ms
		place.Store(arg)
	}
	return arg
}

// millis returns a duration as an argument, from the runner's durations.
func (s Sender) millis(d time.Duration) any { return s.runner.durations.millis(d) }

// The commands by which scripts publish. SPublish is for sharded channels, on a cluster.
const (
	Publish  = "publish"
	SPublish = "spublish"
)

// Publish is the command by which scripts publish.
func (r *Runner) Publish() string { return r.publish.Load().(string) }

// PublishSharded makes scripts publish by SPublish from now on.
func (r *Runner) PublishSharded() { r.publish.Store(SPublish) }

// maxMillis is the longest duration in ms.
const maxMillis = int64(math.MaxInt64 / time.Millisecond)

// noKindKeys stands for the keys of a kind that has none of its own.
var noKindKeys KindKeys

// own returns the keys that only some kinds have.
func (k *Keys) own() *KindKeys {
	if k.KindKeys == nil {
		return &noKindKeys
	}
	return k.KindKeys
}

// Change is a call of a script that changes a number, such as a semaphore's permits, or ends
// others' holds. Redis remembers the answer at the memory key, and gives it to each copy.
type Change struct {
	*Keys

	MemoryKey any
	MemoryTTL time.Duration
	Amount    int64 // for the scripts that need one
}

// send sends a script with the keys that all changes have, and with further ones.
func (c Change) send(ctx context.Context, by Sender, script *Script, others ...any) (Reply, error) {
	keys := append(append(make([]any, 0, 8), c.Main, c.Channel, c.MemoryKey), others...)
	args := []any{by.runner.publish.Load(), by.millis(c.MemoryTTL), c.Amount}
	return by.send(ctx, script, keys, len(keys), args, len(args))
}

// Batch is many calls of one script in one command. The zero Batch is empty. Calls are added by
// their methods AddTo; all must be of the same script. A Batch with calls must not be copied.
type Batch struct {
	script     *Script
	keys, args []any
	size       int
	latest     any // the argument for the latest duration

	// The fields above and the reply refer to these in a batch of one call, so that it takes no
	// allocations.
	one struct {
		keys, args [3]any
		kept       [1]bool
	}
}

// NewBatch returns an empty batch with room for that many calls of two keys and two arguments.
func NewBatch(room int) Batch {
	return Batch{keys: make([]any, 0, 2*room), args: make([]any, 0, 2*room)}
}

// begin adds a call. The caller adds its keys and arguments.
func (b *Batch) begin(script *Script) {
	if b.keys == nil {
		b.keys = b.one.keys[:0]
		b.args = b.one.args[:0]
	}
	b.script = script
	b.size++
}

// millis returns a duration as an argument: see [CeilMillis]. Many calls have the same one.
func (b *Batch) millis(d time.Duration) any {
	if ms := CeilMillis(d); b.latest != ms {
		b.latest = ms
	}
	return b.latest
}

// Key returns the first key, which decides about the cluster slot.
func (b *Batch) Key() string { return b.keys[0].(string) }

// Do runs the script. The reply's Kept has an element for each call.
func (b *Batch) Do(ctx context.Context, by Sender) (Kept, error) {
	got, rest, err := readList(by.send(ctx, b.script, b.keys, len(b.keys), b.args, len(b.args)))
	if err != nil {
		return Kept{Reply: got}, err
	}
	kept := Kept{Reply: got, Kept: b.one.kept[:]}
	if b.size > 1 {
		kept.Kept = make([]bool, b.size)
	}
	for i := range kept.Kept {
		left := rest.number()
		kept.Kept[i] = left > 0
		if left > 1 {
			if kept.Longer == nil {
				kept.Longer = map[int]time.Duration{}
			}
			kept.Longer[i] = time.Duration(min(left, maxMillis)) * time.Millisecond
		}
	}
	if kept.Longer != nil {
		kept.Now = rest.number()
	}
	return kept, rest.err
}
