package main

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A hung seed of a cluster or a hung Sentinel must not use up the time of a command that the others
// could serve. go-redis asks one seed after another for the slots, and waits for the answers of all
// Sentinels. After a failover it leaves a hung Sentinel only if its attempts to ask that one end
// sooner than a dial may.

// lookupLimit returns how long one server may take to tell where the masters are.
func lookupLimit(answerLimit time.Duration) time.Duration {
	return max(answerLimit/5, 300*time.Millisecond) // less could be too little on a busy machine
}

// hurryLookups is a hook of a cluster's nodes that limits how long one of them may take to tell the
// slots.
type hurryLookups time.Duration

func (hurryLookups) DialHook(next redis.DialHook) redis.DialHook { return next }

func (hurryLookups) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (limit hurryLookups) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.EqualFold(cmd.FullName(), "cluster slots") {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Duration(limit))
			defer cancel()
		}
		return next(ctx, cmd)
	}
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// hurrySentinels returns dial, or a plain dialer if it is nil, with a limit for each answer of the
// Sentinels. It calls found with the address of each master that they name.
func hurrySentinels(
	dial dialer, sentinels []string, timeout, limit time.Duration, found func(master string),
) dialer {
	if dial == nil {
		dial = (&net.Dialer{Timeout: timeout}).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if !slices.Contains(sentinels, addr) {
			found(addr)
			return dial(ctx, network, addr)
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &hurriedConn{conn, limit}, nil
	}
}

// behindSentinels returns a client of the master that Sentinels know, and a function that names it.
// limit is for the answers of the Sentinels.
func behindSentinels(o *redis.UniversalOptions, limit time.Duration) (rdb redis.UniversalClient, where func() string) {
	var known atomic.Value
	o.Dialer = hurrySentinels(o.Dialer, o.Addrs, o.DialTimeout, limit, func(master string) { known.Store(master) })
	return redis.NewUniversalClient(o), func() string {
		if addr, ok := known.Load().(string); ok {
			return addr + " (the master of the Sentinels)"
		}
		return "the master of the Sentinels"
	}
}

// hurriedConn is a connection with a limit for each read that has a deadline. Subscriptions read
// without one.
type hurriedConn struct {
	net.Conn
	limit time.Duration
}

func (c *hurriedConn) SetReadDeadline(t time.Time) error { return c.Conn.SetReadDeadline(c.earlier(t)) }

func (c *hurriedConn) SetDeadline(t time.Time) error { return c.Conn.SetDeadline(c.earlier(t)) }

func (c *hurriedConn) earlier(t time.Time) time.Time {
	if latest := time.Now().Add(c.limit); t.After(latest) {
		return latest
	}
	return t
}

// Read returns another error than that of a deadline, after which go-redis would ask the same
// Sentinel again.
func (c *hurriedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errSilentSentinel
	}
	return n, err
}

var errSilentSentinel = errors.New("the Sentinel does not answer")
