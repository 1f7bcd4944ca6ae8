package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"golang.org/x/sync/errgroup"

	"github.com/redlatch/redlatch/bench/internal/server"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/internal/torture"
)

// cutOff is what happened to a holder that was cut off from Redis.
type cutOff struct {
	learned time.Time // when the holder knew that its lock was not valid any more
	passed  time.Time // when another client had the lock
}

// between is for how long nobody held the lock, as far as the two know. It is negative if both held
// it.
func (c cutOff) between() time.Duration { return c.passed.Sub(c.learned) }

// cuts are the ways to cut a client off. Its dials fail, or its packets vanish.
var cuts = []struct {
	name string
	cut  func(*redistest.Proxy)
}{
	{"connections break", func(p *redistest.Proxy) {
		p.Refuse(true)
		p.Reset()
	}},
	{"packets vanish", func(p *redistest.Proxy) { p.BlackHole(true) }},
}

// measureCuts cuts holders of each library off from Redis, and prints a row for each library and
// each way.
func (s *settings) measureCuts(ctx context.Context, holders int, out io.Writer) error {
	logging.Disable()
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "library\tversion\tlease\tcut\tholders\t"+
		"learned before another client had the lock by\tboth held it\t")
	var violated bool
	for _, l := range s.libraries {
		for _, way := range cuts {
			all, err := cutHolders(ctx, l, holders, way.cut)
			if err != nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
			slices.SortFunc(all, func(a, b cutOff) int { return cmp.Compare(a.between(), b.between()) })
			both := 0
			for _, c := range all {
				if c.between() < 0 {
					both++
				}
			}
			violated = violated || both > 0
			fmt.Fprintf(table, "%s\t%s\t%v\t%s\t%d\t%v to %v\t%d\t\n", l.name, l.version, l.lease, way.name, holders,
				all[0].between().Round(time.Millisecond), all[len(all)-1].between().Round(time.Millisecond), both)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if violated {
		return errViolated
	}
	return nil
}

// cutHolders cuts holders off from Redis, each at another moment of the first half of its lease.
func cutHolders(ctx context.Context, l library, holders int, cut func(*redistest.Proxy)) ([]cutOff, error) {
	redisServer, err := server.Start(ctx)
	if err != nil {
		return nil, err
	}
	defer redisServer.Close()
	all := make([]cutOff, holders)
	group, ctx := errgroup.WithContext(ctx)
	for i := range holders {
		group.Go(func() (err error) {
			after := l.lease / 2 * time.Duration(i) / time.Duration(holders)
			all[i], err = cutHolder(ctx, l, redisServer.TCP.Addr, fmt.Sprint("cut:", i), after, cut)
			return err
		})
	}
	return all, group.Wait()
}

// cutHolder acquires a lock, and cuts its client off from Redis after a while. Another client waits
// for the lock.
func cutHolder(
	ctx context.Context, l library, addr, name string, after time.Duration, cut func(*redistest.Proxy),
) (cutOff, error) {
	proxy, err := redistest.StartProxy(addr, func() (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	})
	if err != nil {
		return cutOff{}, err
	}
	defer proxy.Close()
	holder, err := l.open(torture.LibrarySetup{Addr: proxy.Addr(), Watchdog: l.lease})
	if err != nil {
		return cutOff{}, err
	}
	other, err := l.open(torture.LibrarySetup{Addr: addr, Watchdog: l.lease})
	if err != nil {
		return cutOff{}, errors.Join(err, holder.close())
	}
	limited, cancel := context.WithTimeout(ctx, 4*l.lease) // the clients may have opened slowly
	defer cancel()
	held, err := holder.acquire(limited, name, 0, l.lease)
	if err != nil {
		return cutOff{}, errors.Join(err, holder.close(), other.close())
	}
	var c cutOff
	var group errgroup.Group
	group.Go(func() error {
		c.learned = learn(limited, held)
		return nil
	})
	group.Go(func() error {
		got, err := other.acquire(limited, name, 3*l.lease, l.lease)
		c.passed = time.Now()
		if err != nil {
			return fmt.Errorf("the other client: %w", err)
		}
		return got.release(limited)
	})
	time.Sleep(after)
	cut(proxy)
	err = group.Wait()
	proxy.Close()
	_ = holder.close() // it cannot release anything: it was cut off
	return c, errors.Join(err, other.close())
}

// askInterval is how often the holder asks until when its lock is valid.
const askInterval = 100 * time.Millisecond

// learn returns when the holder knows that its lock is not valid any more: the library has told it,
// or the time that the library has named is over.
func learn(ctx context.Context, held claim) time.Time {
	for ctx.Err() == nil {
		until, pause := held.until(), askInterval
		if !until.IsZero() {
			if !time.Now().Before(until) {
				return until
			}
			pause = min(pause, time.Until(until))
		}
		select {
		case <-held.ended():
			return time.Now()
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return time.Now()
}
