package primitives

import (
	"time"

	"github.com/redlatch/redlatch/pubsub"
)

// SharedReleaseRepeats is how long a release of a shared id is repeated.
func SharedReleaseRepeats(l *Lock) time.Duration { return l.c.run.Repeatable() }

// Notice passes a payload to c as if it came on the channel of its holders.
func Notice(c *Client, payload string) {
	c.presence.receive(pubsub.Signal{Payload: payload})
}
