package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/redisutil"
)

// Why a first PING fails. A new connection takes several round trips, so a server that answers each
// command in time may still need longer than one timeout. And an end of the connection says little:
// a second connection, made by hand, shows what is there.

// sight is what a connection of its own has shown. The zero value: nothing.
type sight struct {
	answered  time.Duration // how long an answer of any kind took; 0: there was none
	closed    bool          // the connection was accepted, and closed without an answer
	speaksTLS bool          // it was closed, but TLS works there
}

// ping pings Redis. If that takes long, ping finds out whether the server is slow or silent.
func (e *exam) ping(ctx context.Context) error {
	seen := make(chan sight, 1)
	looking := time.AfterFunc(e.Timeout/4, func() { seen <- e.look(ctx) })
	bound, cancel := e.bounded(ctx)
	defer cancel()
	err := redisutil.Ping(bound, e.Redis)
	isAnswer := err == nil || answered(err)
	switch notBegun := looking.Stop(); {
	case isAnswer:
		return err
	case notBegun:
		e.seen = e.look(ctx)
	default:
		e.seen = <-seen
	}
	if e.seen.answered == 0 {
		return err
	}
	e.latency = e.seen.answered
	patient, stop := e.bounded(ctx)
	defer stop()
	return redisutil.Ping(patient, e.Redis)
}

// look connects once, without go-redis, and asks for anything. It takes as long as the timeout at
// most, and as long again to try TLS.
func (e *exam) look(ctx context.Context) (seen sight) {
	client, ok := e.Redis.(*redis.Client)
	if !ok {
		return seen
	}
	o := client.Options()
	ctx, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	conn, err := o.Dialer(ctx, o.Network, o.Addr)
	if err != nil {
		return seen
	}
	defer func() { _ = conn.Close() }()
	began := time.Now()
	_ = conn.SetDeadline(began.Add(e.Timeout))
	_, err = io.WriteString(conn, "*1\r\n$4\r\nPING\r\n")
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	silent, ok := errors.AsType[net.Error](err)
	switch {
	case err == nil:
		seen.answered = time.Since(began)
	case ok && silent.Timeout():
	default:
		seen.closed = true
		seen.speaksTLS = o.TLSConfig == nil && speaksTLS(ctx, o)
	}
	return seen
}

// wasClosed reports whether the server has closed the connection, and err, of a PING, does not say
// why.
func (e *exam) wasClosed(err error) bool { return e.seen.closed && !answered(err) && !isAlert(err) }

// isAlert reports whether the server has refused the connection by an alert of TLS, such as for
// want of a certificate.
func isAlert(err error) bool {
	remote, ok := errors.AsType[*net.OpError](err)
	return ok && remote.Op == "remote error" // as crypto/tls says it
}

// speaksTLS reports whether a server completes a handshake, or refuses one, such as for want of a
// certificate.
func speaksTLS(ctx context.Context, o *redis.Options) bool {
	conn, err := o.Dialer(ctx, o.Network, o.Addr)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	err = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx) //nolint:gosec // nothing is sent
	_, refused := errors.AsType[tls.AlertError](err)
	return err == nil || refused
}

// unreached names the server in the error of a PING, and adds what was seen of it.
func (e *exam) unreached(err error) error {
	if e.wasClosed(err) {
		return fmt.Errorf("%s accepts connections, and closes them without an answer: %w", e.Where(), err)
	}
	return e.named(e.Where(), err)
}

// closedFix is what to do about a server that closes connections.
func (e *exam) closedFix() string {
	if e.seen.speaksTLS {
		return "the server speaks TLS: rediss:// instead of redis://"
	}
	return "if that is a proxy or a load balancer, look whether the Redis behind it is up; else look at the server's " +
		"log: " +
		"it closes connections at once if it has too many (maxclients)"
}
