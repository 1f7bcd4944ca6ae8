package joint

import "github.com/redlatch/redlatch/internal/engine"

// What the tests in package joint_test see of the inside.

const FirstPatience = firstPatience

var ErrBudget = errBudget

// Add adds the hold of a member.
func (o *Ownership) Add(member *engine.Hold) bool { return o.add(member) }
