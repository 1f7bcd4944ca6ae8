package turns

import "github.com/redlatch/redlatch/internal/engine"

// Outer returns the tenure hold of a name, and its tenure, to which the engine reports the loss.
func (t *Turns) Tenure(name string) (tenure engine.Group, hold *engine.Hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tn := t.entries[name].tenure
	return tn, tn.hold
}
