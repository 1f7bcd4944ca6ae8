package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

const moment = 100 * time.Millisecond // time to wait for an event that must not happen

// impatient makes a client fail soon and not retry.
func impatient(o *redis.Options) {
	o.MaxRetries, o.ReadTimeout, o.DialerRetries = -1, moment, 1
}

// value reads key on a connection that bypasses the proxy.
func value(t *testing.T, s *Server, key string) string {
	t.Helper()
	v, err := s.Client(t).Get(t.Context(), key).Result()
	if !errors.Is(err, redis.Nil) {
		require.NoError(t, err)
	}
	return v
}

func TestProxyDropsReplies(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		p := s.Proxy(t)
		key := Name(t)
		for _, tt := range []struct {
			name    string
			tweak   func(*redis.Options)
			wantErr error
			want    string // of the key, afterwards
		}{
			{"without retries the command is executed and fails", once, io.EOF, "1"},
			{"with retries the command is executed twice", func(*redis.Options) {}, nil, "3"},
		} {
			rdb := p.Client(t, tt.tweak)
			p.DropReplies(1, Named("incr"))
			require.ErrorIs(t, rdb.Incr(t.Context(), key).Err(), tt.wantErr, tt.name)
			require.Equal(t, tt.want, value(t, s, key), tt.name)
		}
	})
}

// Commands before the dropped one in a pipeline are not affected.
func TestProxyDropsInsideAPipeline(t *testing.T) {
	for _, tt := range []struct {
		name string
		drop func(p *Proxy, n int, match Match)
		want string // of the key, afterwards
	}{
		{"replies", (*Proxy).DropReplies, "1"},
		{"commands", (*Proxy).DropCommands, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Redis(t)
			p := s.Proxy(t)
			first, key, last := Name(t), Name(t), Name(t)
			tt.drop(p, 1, Mentions(key))
			conn := dialRaw(t, p)
			write(t, conn, incr(first)+incr(key)+incr(last))
			got, err := io.ReadAll(conn)
			require.NoError(t, err)
			require.Equal(t, ":1\r\n", string(got))
			require.Equal(t, "1", value(t, s, first))
			require.Equal(t, tt.want, value(t, s, key))
			require.NoError(t, p.Client(t, once).Incr(t.Context(), key).Err(), "the fault lasted longer than one command")
		})
	}
}

func incr(key string) string {
	return fmt.Sprintf("*2\r\n$4\r\nINCR\r\n$%d\r\n%s\r\n", len(key), key)
}

func TestProxyDropsRandomlyBySeed(t *testing.T) {
	s := Redis(t)
	outcomes := func(seed uint64) (out []bool) {
		p := s.Proxy(t)
		rdb := p.Client(t, once)
		key := Name(t)
		p.DropRepliesRandomly(0.3, seed, Named("INCR"))
		for range 100 {
			out = append(out, rdb.Incr(t.Context(), key).Err() == nil)
		}
		require.Equal(t, "100", value(t, s, key))
		return out
	}
	a := outcomes(1)
	require.Equal(t, a, outcomes(1), "the same seed selected other commands")
	require.NotEqual(t, a, outcomes(2))
	require.Contains(t, a, true)
	require.Contains(t, a, false)
}

func TestProxyHoldsReplies(t *testing.T) {
	s := Redis(t)
	p := s.Proxy(t)
	rdb := p.Client(t, once)
	key := Name(t)
	release := p.HoldReplies(Named("INCR"))
	got := make(chan error, 1)
	go func() { got <- rdb.Incr(context.Background(), key).Err() }()
	WaitFor(t, 5*time.Second, func() bool { return p.Held() == 1 }, "a reply is held")
	require.Equal(t, "1", value(t, s, key), "the command has been executed")
	require.NoError(t, rdb.Ping(t.Context()).Err(), "other connections are not affected")
	require.Empty(t, got)
	release()
	release()
	require.NoError(t, <-got)
	require.Zero(t, p.Held())
	require.NoError(t, rdb.Incr(t.Context(), key).Err(), "the fault has ended")
}

// A watcher sees each command, and changes nothing.
func TestProxyWatches(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		p, key := s.Proxy(t), Name(t)
		seen := make(chan string, 100)
		stop := p.Watch(func(args []string) { seen <- args[0] })
		rdb := p.Client(t, once)
		require.NoError(t, rdb.Incr(t.Context(), key).Err())
		for name := ""; name != "incr"; {
			name = <-seen
		}
		stop()
		require.NoError(t, rdb.Incr(t.Context(), key).Err())
		require.Empty(t, seen)
		require.Equal(t, "2", value(t, s, key))
	})
}

// Neither a command that was lost nor one that Redis has refused was executed.
func TestProxyWatchesWhatIsExecuted(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		p, key := s.Proxy(t), Name(t)
		seen := make(chan string, 100)
		p.WatchExecuted(func(args []string) { seen <- strings.Join(args, " ") })
		p.DropCommands(1, Named("INCR"))
		rdb := p.Client(t, once)
		require.Error(t, rdb.Incr(t.Context(), key).Err())
		require.NoError(t, rdb.RPush(t.Context(), key, "a").Err())
		require.Error(t, rdb.IncrBy(t.Context(), key, 1).Err(), "of a list")
		require.NoError(t, rdb.Incr(t.Context(), key+"2").Err())
		p.Heal()
		require.NoError(t, rdb.Incr(t.Context(), key+"2").Err())
		close(seen)
		var counts []string
		for command := range seen {
			if strings.HasPrefix(command, "incr") {
				counts = append(counts, command)
			}
		}
		require.Equal(t, []string{"incr " + key + "2"}, counts)
	})
}

func TestProxyBlackHolesTimeOut(t *testing.T) {
	for _, tt := range []struct {
		name string
		hole func(p *Proxy, on bool)
		want string // of a key that was incremented in the black hole
	}{
		{"of everything", (*Proxy).BlackHole, ""},
		{"of replies", (*Proxy).BlackHoleReplies, "1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Redis(t)
			p := s.Proxy(t)
			rdb := p.Client(t, impatient)
			key := Name(t)
			require.NoError(t, rdb.Ping(t.Context()).Err())
			tt.hole(p, true)
			require.ErrorContains(t, rdb.Incr(t.Context(), key).Err(), "i/o timeout", "an open connection")
			require.Equal(t, tt.want, value(t, s, key))
			require.ErrorContains(t, rdb.Ping(t.Context()).Err(), "i/o timeout", "a new connection")
			tt.hole(p, false)
			WaitFor(t, 10*time.Second, func() bool { return rdb.Ping(t.Context()).Err() == nil }, "it answers again")
		})
	}
}

// After a black hole, a connection that lost data must not deliver a reply to the wrong command.
func TestProxyBlackHoleKeepsDamagedConnectionsSilent(t *testing.T) {
	s := Redis(t)
	for _, tt := range []struct {
		name string
		hole func(p *Proxy, on bool)
	}{
		{"of everything", (*Proxy).BlackHole},
		{"of replies", (*Proxy).BlackHoleReplies},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := s.Proxy(t)
			conn := dialRaw(t, p)
			tt.hole(p, true)
			write(t, conn, "*2\r\n$4\r\nECHO\r\n$1\r\na\r\n")
			p.awaitLoss(t)
			tt.hole(p, false)
			write(t, conn, "*2\r\n$4\r\nECHO\r\n$1\r\nb\r\n")
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(moment)))
			n, err := conn.Read(make([]byte, 16))
			require.ErrorContains(t, err, "i/o timeout")
			require.Zero(t, n)
			require.Equal(t, 1, p.Reset())
		})
	}
}

// awaitLoss waits until a connection has lost a command or a reply.
func (p *Proxy) awaitLoss(t *testing.T) {
	t.Helper()
	WaitFor(t, 5*time.Second, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for l := range p.open {
			if l.lostReplies {
				return true
			}
		}
		return false
	}, "a connection has lost data")
}

// dialRaw opens a connection through p with a read deadline.
func dialRaw(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
	return conn
}

func write(t *testing.T, conn net.Conn, s string) {
	t.Helper()
	_, err := conn.Write([]byte(s))
	require.NoError(t, err)
}

func TestProxyBlackHoleHidesThatTheServerDied(t *testing.T) {
	s := Fresh(t)
	p := s.Proxy(t)
	conn := dialRaw(t, p)
	p.BlackHole(true)
	write(t, conn, incr("k"))
	p.awaitLoss(t)
	require.NoError(t, s.Kill())
	rdb := p.Client(t, impatient)
	require.ErrorContains(t, rdb.Ping(t.Context()).Err(), "i/o timeout", "a new connection")
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(moment)))
	_, err := conn.Read(make([]byte, 16))
	require.ErrorContains(t, err, "i/o timeout", "an open connection")

	p.BlackHole(false)
	require.Error(t, rdb.Ping(t.Context()).Err())
	require.NoError(t, s.Restart())
	WaitFor(t, 10*time.Second, func() bool { return rdb.Ping(t.Context()).Err() == nil }, "the server is back")
}

func TestProxyDelaysReplies(t *testing.T) {
	s := Redis(t)
	p := s.Proxy(t)
	rdb := p.Client(t, once)
	require.NoError(t, rdb.Ping(t.Context()).Err())
	p.Delay(moment)
	start := time.Now()
	require.NoError(t, rdb.Ping(t.Context()).Err())
	require.GreaterOrEqual(t, time.Since(start), moment)
	p.Delay(0)
	require.NoError(t, rdb.Ping(t.Context()).Err())
}

// eachProtocol runs f on each server with RESP2 and with RESP3.
func eachProtocol(t *testing.T, f func(t *testing.T, s *Server, protocol func(*redis.Options))) {
	Each(t, func(t *testing.T, s *Server) {
		for _, version := range []int{2, 3} {
			t.Run("RESP"+strconv.Itoa(version), func(t *testing.T) {
				f(t, s, func(o *redis.Options) { o.Protocol = version })
			})
		}
	})
}

func TestProxyDropsMessages(t *testing.T) {
	eachProtocol(t, func(t *testing.T, s *Server, protocol func(*redis.Options)) {
		p := s.Proxy(t)
		direct := s.Client(t)
		a, b, pattern := Name(t), Name(t), Name(t)
		ctx := t.Context()

		sub := p.Client(t, protocol).Subscribe(ctx, a)
		defer sub.Close()
		receive(t, sub, "subscribe")
		require.NoError(t, direct.Publish(ctx, a, "first").Err())
		receive(t, sub, "first")

		p.DropMessages(true)
		require.NoError(t, sub.Subscribe(ctx, b))
		receive(t, sub, "subscribe")
		require.NoError(t, sub.PSubscribe(ctx, pattern+"*"))
		receive(t, sub, "psubscribe")
		for _, channel := range []string{a, b, pattern} {
			require.EqualValues(t, 1, direct.Publish(ctx, channel, "lost").Val(), channel)
		}
		// Miniredis replies to PUBLISH and to later commands before it writes to the subscribers.
		WaitFor(t, 5*time.Second, func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.dropped == 3
		}, "three messages are dropped")
		require.NoError(t, sub.Ping(ctx, "still there"))
		receive(t, sub, "still there")

		p.DropMessages(false)
		require.NoError(t, direct.Publish(ctx, pattern, "last").Err())
		receive(t, sub, "last")
		require.NoError(t, sub.Unsubscribe(ctx))
		receive(t, sub, "unsubscribe")
		receive(t, sub, "unsubscribe")
	})
}

// receive receives from sub and checks the kind of a confirmation, or the payload of a message or
// pong.
func receive(t *testing.T, sub *redis.PubSub, want string) {
	t.Helper()
	got, err := sub.ReceiveTimeout(t.Context(), 5*time.Second)
	require.NoError(t, err)
	switch got := got.(type) {
	case *redis.Subscription:
		require.Equal(t, want, got.Kind)
	case *redis.Message:
		require.Equal(t, want, got.Payload)
	case *redis.Pong:
		require.Equal(t, want, got.Payload)
	default:
		t.Fatalf("unexpected %T", got)
	}
}

func TestProxyDropsShardedMessages(t *testing.T) {
	s := Redis(t)
	p := s.Proxy(t)
	rdb := p.Client(t)
	channel := Name(t)
	sub := rdb.SSubscribe(t.Context(), channel)
	defer sub.Close()
	receive(t, sub, "ssubscribe")
	require.Contains(t, ShardChannels(t, s), channel)
	p.DropMessages(true)
	require.EqualValues(t, 1, rdb.SPublish(t.Context(), channel, "lost").Val())
	require.NoError(t, sub.Ping(t.Context(), "pong"))
	receive(t, sub, "pong")
}

// Faults apply to the confirmations of subscriptions. Later replies still match their commands.
func TestProxyHoldsConfirmations(t *testing.T) {
	eachProtocol(t, func(t *testing.T, s *Server, protocol func(*redis.Options)) {
		p := s.Proxy(t)
		a, b := Name(t), Name(t)
		sub := p.Client(t, protocol).Subscribe(t.Context(), a, b)
		defer sub.Close()
		receive(t, sub, "subscribe")
		receive(t, sub, "subscribe")
		release := p.HoldReplies(Named("PING"))
		require.NoError(t, sub.Unsubscribe(t.Context(), b))
		receive(t, sub, "unsubscribe")
		require.NoError(t, sub.Ping(t.Context(), "pong"))
		WaitFor(t, 5*time.Second, func() bool { return p.Held() == 1 }, "the pong is held")
		release()
		receive(t, sub, "pong")

		release = p.HoldReplies(Named("SUBSCRIBE"))
		require.NoError(t, sub.Subscribe(t.Context(), b))
		WaitFor(t, 5*time.Second, func() bool { return p.Held() == 1 }, "the confirmation is held")
		require.Contains(t, Channels(t, s), b)
		release()
		receive(t, sub, "subscribe")
	})
}

// A subscribe command has one confirmation per channel.
func TestProxyCountsConfirmations(t *testing.T) {
	s := Redis(t)
	p := s.Proxy(t)
	conn := dialRaw(t, p)
	release := p.HoldReplies(Mentions("third"))
	write(t, conn, "*3\r\n$9\r\nSUBSCRIBE\r\n$5\r\nfirst\r\n$6\r\nsecond\r\n*2\r\n$9\r\nSUBSCRIBE\r\n$5\r\nthird\r\n")
	WaitFor(t, 5*time.Second, func() bool { return p.Held() == 1 }, "the third is held")
	r := bufio.NewReader(conn)
	for _, want := range []string{"first", "second", "third"} {
		if want == "third" {
			release()
		}
		f, err := readFrame(r)
		require.NoError(t, err)
		require.Contains(t, string(f.raw), want)
	}
}

func TestProxyCutsPubSub(t *testing.T) {
	s := Redis(t)
	p := s.Proxy(t)
	rdb := p.Client(t, once)
	ctx := t.Context()
	require.NoError(t, rdb.Ping(ctx).Err())
	require.Zero(t, p.CutPubSub())
	sub := rdb.Subscribe(ctx, Name(t))
	defer sub.Close()
	receive(t, sub, "subscribe")
	require.Equal(t, 1, p.CutPubSub())
	require.NoError(t, rdb.Ping(ctx).Err(), "an ordinary connection was cut")
	_, err := sub.Receive(ctx)
	require.ErrorIs(t, err, io.EOF)
	receive(t, sub, "subscribe") // go-redis has reconnected
}

func TestProxyDuplicatesMatchingCommands(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		p := s.Proxy(t)
		rdb := p.Client(t, once)
		before, key := Name(t), Name(t)
		p.Duplicate(Mentions(key))
		var count *redis.IntCmd
		_, err := rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
			pipe.Set(t.Context(), before, 1, 0)
			count = pipe.Incr(t.Context(), key)
			pipe.Incr(t.Context(), before)
			return nil
		})
		require.NoError(t, err)
		require.EqualValues(t, 1, count.Val(), "reply of the second execution")
		require.Equal(t, "2", value(t, s, before), "other commands were duplicated or reordered")
		p.Heal()
		require.EqualValues(t, 3, rdb.Incr(t.Context(), key).Val())
	})
}

func TestProxyDuplicatesInTheSameDatabase(t *testing.T) {
	s := Fresh(t)
	p := s.Proxy(t)
	rdb := p.Client(t, once, func(o *redis.Options) { o.DB = 3 })
	p.Duplicate(Named("INCR"))
	require.EqualValues(t, 1, rdb.Incr(t.Context(), "k").Val())
	require.Equal(t, "2", rdb.Get(t.Context(), "k").Val())
}

func TestProxyRecordsCommands(t *testing.T) {
	s := Redis(t)
	p := s.Proxy(t)
	rdb := p.Client(t, once)
	key := Name(t)
	require.NoError(t, rdb.Ping(t.Context()).Err())
	require.Empty(t, p.Commands())
	p.Record()
	start := time.Now()
	require.NoError(t, rdb.Set(t.Context(), key, "a\r\nb", 0).Err())
	require.NoError(t, rdb.Get(t.Context(), key).Err())
	got := p.Commands()
	require.Len(t, got, 2)
	require.Equal(t, []string{"set", key, "a\r\nb"}, got[0].Args)
	require.Equal(t, []string{"get", key}, got[1].Args)
	require.Equal(t, 1, got[0].Conn)
	require.False(t, got[0].Time.Before(start))
	p.Record()
	require.Empty(t, p.Commands())
}

func TestProxyRefusesNewConnections(t *testing.T) {
	s := Redis(t)
	p := s.Proxy(t)
	rdb := p.Client(t, impatient)
	require.NoError(t, rdb.Ping(t.Context()).Err())
	p.Refuse(true)
	require.NoError(t, rdb.Ping(t.Context()).Err(), "an open connection was cut")
	require.Equal(t, 1, p.Reset())
	require.Error(t, rdb.Ping(t.Context()).Err())
	require.ErrorIs(t, rdb.Ping(t.Context()).Err(), syscall.ECONNREFUSED)
	p.Refuse(false)
	require.NoError(t, p.Client(t).Ping(t.Context()).Err())
	p.Refuse(true)
	p.Heal()
	require.NoError(t, p.Client(t).Ping(t.Context()).Err())
}

func TestProxyWorksInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Embedded(t)
		p := s.Proxy(t)
		rdb := p.Client(t, once)
		ctx := t.Context()

		p.DropReplies(1, Named("INCR"))
		require.ErrorIs(t, rdb.Incr(ctx, "k").Err(), io.EOF)
		p.Duplicate(Named("INCR"))
		require.EqualValues(t, 2, rdb.Incr(ctx, "k").Val(), "a dropped reply, and this one")
		p.Heal()

		p.Delay(2 * time.Second)
		start := time.Now()
		require.NoError(t, rdb.Get(ctx, "k").Err())
		require.Equal(t, 2*time.Second, time.Since(start))
		p.Heal()

		p.BlackHole(true)
		start = time.Now()
		require.ErrorContains(t, rdb.Get(ctx, "k").Err(), "i/o timeout")
		require.Equal(t, 5*time.Second, time.Since(start))
		p.BlackHole(false)
		require.Equal(t, "3", rdb.Get(ctx, "k").Val())

		release := p.HoldReplies(Named("GET"))
		var reader sync.WaitGroup
		reader.Go(func() { require.Equal(t, "3", rdb.Get(ctx, "k").Val()) })
		synctest.Wait()
		require.Equal(t, 1, p.Held())
		release()
		reader.Wait()

		p.Refuse(true)
		p.Reset()
		synctest.Wait()
		require.Error(t, rdb.Get(ctx, "k").Err())
	})
}

func TestProxyCloseEndsPendingCommands(t *testing.T) {
	s := Redis(t)
	p := s.Proxy(t)
	rdb := p.Client(t, once, func(o *redis.Options) { o.ReadTimeout = -1 })
	p.HoldReplies(Named("PING"))
	got := make(chan error, 1)
	go func() { got <- rdb.Ping(context.Background()).Err() }()
	WaitFor(t, 5*time.Second, func() bool { return p.Held() == 1 }, "a reply is held")
	p.Close()
	p.Close()
	require.Error(t, <-got)
}
