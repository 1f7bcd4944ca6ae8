package turns

import "github.com/redlatch/redlatch/internal/engine"

// Outer returns the outer hold of a name, and its tenure, to which the engine reports the loss.
func (t *Turns) Outer(name string) (tenure engine.Group, hold *engine.Hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tn := t.entries[name].tenure
	return tn, tn.hold
}
