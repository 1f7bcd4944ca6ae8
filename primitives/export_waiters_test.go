package primitives

// LocalWaiters returns the number of acquisitions in the local wait queues of c. EventWait is
// emitted a moment before an acquisition joins its queue, so tests that depend on the order of
// arrival poll this instead.
func LocalWaiters(c *Client) (n int) {
	c.rooms.mu.Lock()
	defer c.rooms.mu.Unlock()
	for _, r := range c.rooms.open {
		for w := r.head; w != nil; w = w.next {
			n++
		}
	}
	return n
}
