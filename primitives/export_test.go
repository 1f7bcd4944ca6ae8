package primitives

import "github.com/redlatch/redlatch/pubsub"

// Notice passes a payload to c as if it came on the channel of its holders.
func Notice(c *Client, payload string) {
	c.presence.Receive(pubsub.Signal{Payload: payload})
}

// EarlyGrants returns the number of grants that c keeps for waiters that it does not know yet.
func EarlyGrants(c *Client) int {
	c.queues.mu.Lock()
	defer c.queues.mu.Unlock()
	return len(c.queues.early)
}
