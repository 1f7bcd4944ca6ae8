package pubsub

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// FuzzLink lets listeners come and go while the server sends any bytes. The link takes each reply
// or ends; it never panics, and it stores little more than what arrives.
func FuzzLink(f *testing.F) {
	const message = ">3\r\n+message\r\n+a\r\n"
	for _, wire := range []string{
		"+PONG\r\n", ">3\r\n+subscribe\r\n+a\r\n:1\r\n" + message + "+0\r\n", "*3\r\n+unsubscribe\r\n+a\r\n:0\r\n",
		"-NOPERM no\r\n", "-ERR\r\n-ERR\r\n", "-NOAUTH\r\n", "!9\r\nMOVED 1 x\r\n", ">3\r\n+ssubscribe\r\n+b\r\n:1\r\n",
		">3\r\n+sunsubscribe\r\n+a\r\n:0\r\n", ">1\r\n+subscribe\r\n", ">3\r\n+subscribe\r\n_\r\n:1\r\n", "*0\r\n*-1\r\n",
		message + "$536870912\r\nabc", message + bulk(maxText+1), strings.Repeat("*1\r\n", 100), "*536870912\r\n",
		strings.Repeat(message+"+0\r\n", 50), message + "%1\r\n+0\r\n+1\r\n", "+pong\r\n*2\r\n+pong\r\n+\r\n",
		"-CROSSSLOT\r\n",
	} {
		for _, sharded := range []bool{false, true} {
			f.Add([]byte("+PONG\r\n"+wire), []byte{0, 1, 9, 0, 4, 9, 5}, sharded)
			f.Add([]byte(wire), []byte{0, 9, 0, 0, 0, 0}, sharded)
		}
	}
	dialer := func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed }
	rdb := redis.NewClient(&redis.Options{Dialer: dialer, MaxRetries: -1, DialerRetries: 1})
	f.Cleanup(func() { _ = rdb.Close() })
	f.Fuzz(func(t *testing.T, wire, steps []byte, sharded bool) {
		before := allocated()
		h := New(rdb, Config{})
		defer h.Close()
		l := newLink(h, server{name: plainServer, sharded: sharded})
		h.mu.Lock()
		h.links[plainServer] = l
		h.mu.Unlock()
		d := newDecoder(bytes.NewReader(wire))
		var subs []*Subscription
		signals := 0
		for i := 0; ; i++ {
			step := 0
			if i < len(steps) {
				step = int(steps[i]) % 10
			}
			switch {
			case step >= 1 && step <= 3:
				subs = append(subs, h.Subscribe(fmt.Sprintf("%c", 'a'+step-1), func(Signal) { signals++ }))
			case step == 4 && len(subs) > 0:
				subs[0].Close()
				subs = subs[1:]
			case step >= 5:
				l.nextCommands()
			default:
				r, err := d.next()
				if err == nil {
					err = l.handle(r)
				}
				if err != nil {
					if used := allocated() - before; used > uint64(1<<20+64*len(wire)) {
						t.Fatalf("%d bytes for %d", used, len(wire))
					}
					return
				}
			}
		}
	})
}
