package primitives

import (
	"time"

	"github.com/redlatch/redlatch/pubsub"
)

// LateCopies is how long Redis remembers the release of an acquisition in doubt.
func LateCopies(l *Lock) time.Duration { return l.c.run.Memory() }

// Notice passes a payload to c as if it came on the channel of its holders.
func Notice(c *Client, payload string) {
	c.presence.receive(pubsub.Signal{Payload: payload})
}
