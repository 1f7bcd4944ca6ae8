package main

import (
	"context"
	"net"
	"sync"
	"time"
)

// link is the network between a replica and its master: a proxy that delays all data in both
// directions. What is on its way when it is cut is lost, as if the master's machine had failed.
type link struct {
	delay    time.Duration
	master   string
	listener net.Listener
	isCut    chan struct{}

	mu    sync.Mutex
	conns []net.Conn
	ended sync.WaitGroup
}

// listen opens a link to the master at that address, on a port of its own.
func listen(ctx context.Context, master string, delay time.Duration) (*link, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &link{delay: delay, master: master, listener: listener, isCut: make(chan struct{})}
	l.ended.Go(l.accept)
	return l, nil
}

func (l *link) addr() string { return l.listener.Addr().String() }

// cut ends the link. It may be called again.
func (l *link) cut() {
	l.mu.Lock()
	select {
	case <-l.isCut:
	default:
		close(l.isCut)
	}
	for _, conn := range l.conns {
		_ = conn.Close()
	}
	l.conns = nil
	l.mu.Unlock()
	_ = l.listener.Close()
	l.ended.Wait()
}

func (l *link) accept() {
	for {
		replica, err := l.listener.Accept()
		if err != nil {
			return
		}
		master, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", l.master)
		if err != nil {
			_ = replica.Close()
			continue
		}
		l.mu.Lock()
		l.conns = append(l.conns, replica, master)
		select {
		case <-l.isCut:
			_, _ = replica.Close(), master.Close()
		default:
		}
		l.mu.Unlock()
		l.ended.Go(func() { l.copy(master, replica) })
		l.ended.Go(func() { l.copy(replica, master) })
	}
}

// piece is data on its way.
type piece struct {
	data []byte
	due  time.Time
}

// copy forwards data until either connection ends. Then it closes both.
func (l *link) copy(to, from net.Conn) {
	pieces := make(chan piece, 1<<16)
	l.ended.Go(func() {
		defer to.Close()
		defer from.Close()
		for p := range pieces {
			select {
			case <-time.After(time.Until(p.due)):
			case <-l.isCut:
				return
			}
			if _, err := to.Write(p.data); err != nil {
				return
			}
		}
	})
	defer close(pieces)
	for {
		data := make([]byte, 64<<10)
		n, err := from.Read(data)
		if err != nil {
			return
		}
		select {
		case pieces <- piece{data[:n], time.Now().Add(l.delay)}:
		case <-l.isCut:
			return
		}
	}
}
