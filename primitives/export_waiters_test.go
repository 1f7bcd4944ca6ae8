package primitives

// LocalWaiters returns the number of acquisitions of c that wait. EventWait is emitted a moment
// before an acquisition joins its queue, so tests that depend on the order of arrival poll this.
func LocalWaiters(c *Client) int { return c.core.Waiters() }

// EarlyGrants returns the number of grants that c keeps for waiters that it does not know yet.
func EarlyGrants(c *Client) int {
	c.queues.mu.Lock()
	defer c.queues.mu.Unlock()
	return len(c.queues.early)
}
