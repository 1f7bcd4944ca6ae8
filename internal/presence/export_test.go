package presence

// Queued returns how many notices and asks wait to be read, and the bytes of the notices.
func (p *Presence) Queued() (notices, bytes, asks int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.unread), p.unreadBytes, len(p.asks)
}
