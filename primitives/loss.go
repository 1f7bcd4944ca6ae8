package primitives

import (
	"fmt"
	"strings"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// LossReason says why a hold was lost.
type LossReason string

// The reasons of losses.
const (
	// LossExpired means that Redis did not confirm the hold until its validity ended. Silent says
	// for how long. If Redis has answered, and refused the renewals, such as with NOREPLICAS, the
	// error wraps the last refusal.
	LossExpired = LossReason(engine.LossExpired)
	// LossPaused means that validity ended while this process stood still: it was stopped, or its
	// machine or container was frozen, or got no CPU. Silent says how long it stood.
	LossPaused = LossReason(engine.LossPaused)
	// LossGone means that, according to Redis, the lock is not ours. It was deleted or evicted, a
	// restart or a failover has forgotten it, or it expired while the machine was suspended,
	// together with its clock.
	LossGone = LossReason(engine.LossGone)
	// LossForced means that ForceRelease, ReleaseID or Adopt took the lock away, and told the
	// holder's client. A renewal, or a call of the hold, may find the loss before that: then the
	// reason is LossGone.
	LossForced = LossReason(engine.LossForced)
	// LossLimit means that the lease of [WithLease], or the time of [WithMaxHold], is over.
	LossLimit = LossReason(engine.LossLimit)
	// LossMembers means that too few members of a joint lock are left. The error wraps the members'
	// errors.
	LossMembers = LossReason(engine.LossMembers)
)

// LossError says why a hold was lost. It matches [ErrLost]. It is the cause of [Hold.Context], and
// the Err of [EventLost]. The methods of a lost hold, and Do, return it in their errors: use
// [errors.As].
//
//	if loss, ok := errors.AsType[*primitives.LossError](err); ok && loss.Reason == primitives.LossExpired {
type LossError struct {
	Reason LossReason
	Kind   string        // such as "fair": see [Info].Kind
	Name   string        // the user's name
	ID     string        // the id of the hold
	Silent time.Duration // since Redis last confirmed it (LossExpired), or while the process stood still (LossPaused)

	// causes contains, for LossMembers, why members ended, and for LossExpired the last refusal. A
	// pointer keeps the type comparable.
	causes *[]error
}

// Error returns a line such as: redlatch: lock "orders:42" lost: expired: no answer from Redis for
// 21s.
func (e *LossError) Error() string {
	return fmt.Sprintf("redlatch: %s %q %s", e.Kind, e.Name, e.text())
}

// isOf reports whether e is the loss of a hold of that primitive.
func (e *LossError) isOf(kind, name string) bool { return e.Kind == kind && e.Name == name }

// text returns the reason in words.
func (e *LossError) text() string {
	text := "lost: " + string(e.Reason)
	switch e.Reason {
	case LossExpired:
		text += ": no answer from Redis for " + rounded(e.Silent).String()
		if refusals := e.Unwrap(); len(refusals) > 0 {
			text = fmt.Sprintf("lost: %s: Redis has refused to renew it, and confirmed nothing for %v: %v",
				e.Reason, rounded(e.Silent), refusals[0])
		}
	case LossPaused:
		text += ": this process stood still for " + rounded(e.Silent).String()
	case LossGone:
		text += ": Redis does not have this hold any longer"
	case LossForced:
		text += ": released or taken over by id or by force"
	case LossLimit:
		text += ": its lease or maximum hold time is over"
	case LossMembers:
		text += ": too few are left"
		var members []string
		for _, member := range e.Unwrap() {
			members = append(members, member.Error())
		}
		if len(members) > 0 {
			text += ": " + strings.Join(members, "; ")
		}
	}
	return text
}

// rounded returns d in a precision that is fit for people.
func rounded(d time.Duration) time.Duration {
	if d >= time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Millisecond)
}

// Is reports whether target is ErrLost.
func (e *LossError) Is(target error) bool { return target == ErrLost }

// Unwrap returns the errors of the members of a joint lock, or the last refusal of a renewal.
func (e *LossError) Unwrap() []error {
	if e.causes == nil {
		return nil
	}
	return *e.causes
}

// newLossError implements [engine.Errors].Lost.
func newLossError(loss engine.Loss) error {
	causes := loss.Members
	if loss.Refusal != nil {
		causes = []error{loss.Refusal}
	}
	return &LossError{
		Reason: LossReason(loss.Reason), Kind: loss.Resource.Kind, Name: loss.Resource.Name, ID: loss.ID,
		Silent: loss.Silent, causes: &causes,
	}
}
