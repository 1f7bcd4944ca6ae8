package interop_test

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/interop/redisson"
)

const limit = time.Minute // for one test, and for any single wait

// shortWait is the wait of Java calls that must time out. It must be long enough to subscribe,
// otherwise Redisson throws a timeout exception.
const shortWait = 500 * time.Millisecond

// lease is the lease of locks with an explicit lease. Times are compared after rounding up to a
// multiple of slice, so that a pause of the machine is not a difference.
const (
	lease = 60 * time.Second
	slice = 5 * time.Second
)

// state maps keys to their content, as rendered by wire.state. The name is rendered as N, and owner
// and permit ids as their labels. Future times are rounded up to 5 s.
type state map[string]string

// wire observes the keys and channels of one name while a Java client uses it.
type wire struct {
	t       *testing.T
	ctx     context.Context
	rdb     *redis.Client
	client  *redisson.Client
	major   string // version of Redisson
	monitor *monitor
	name    string
	labels  map[string]string // owner id or permit id to its label
	seen    int               // number of the monitor's lines that commands has returned
}

func newWire(t *testing.T, driver *redisson.Driver) *wire {
	server := redistest.Redis(t)
	return wireOf(t, redistest.Name(t), server, driver, redisson.Config{Addr: server.Addr()})
}

// wireOf observes a client with the given configuration. server is the server that stores the name.
func wireOf(
	t *testing.T, name string, server *redistest.Server, driver *redisson.Driver, config redisson.Config,
) *wire {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return &wire{
		t:       t,
		ctx:     ctx,
		rdb:     server.Client(t),
		client:  driver.Client(t, config),
		major:   driver.Redisson()[:1],
		monitor: startMonitor(t, server.Addr()),
		name:    name,
		labels:  map[string]string{},
	}
}

// id returns the owner id of a Java thread.
func (w *wire) id(thread string) string {
	w.t.Helper()
	id, err := w.client.Owner(w.ctx, thread)
	require.NoError(w.t, err)
	return id
}

// owner labels the owner id of a Java thread with the thread's name, and returns the name.
func (w *wire) owner(thread string) string {
	w.t.Helper()
	w.labels[w.id(thread)] = thread
	return thread
}

// step checks the error of a call, the resulting state in Redis, and the published messages. A
// message has the form "channel payload".
func (w *wire) step(err error, want state, published ...string) {
	w.t.Helper()
	require.NoError(w.t, err)
	require.Equal(w.t, want, w.state())
	if published == nil {
		published = []string{}
	}
	require.Equal(w.t, published, w.published())
}

// is combines the result and the error of a call into one error, for step.
func is[T comparable](want T) func(T, error) error {
	return func(got T, err error) error {
		if err == nil && got != want {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return err
	}
}

// throws returns nil for the expected exception, and an error otherwise.
func throws(class string) func(error) error {
	return func(err error) error {
		if exception, ok := errors.AsType[*redisson.Exception](err); ok && exception.Has(class) {
			return nil
		}
		return fmt.Errorf("want %s, got: %w", class, err)
	}
}

// label replaces the name and all known ids by their labels.
func (w *wire) label(text string) string {
	text = strings.ReplaceAll(text, w.name, "N")
	for id, label := range w.labels {
		text = strings.ReplaceAll(text, id, label)
	}
	return text
}

// state renders all keys of the name, except for unlock latches, which Redisson deletes
// asynchronously.
func (w *wire) state() state {
	w.t.Helper()
	keys, err := w.rdb.Keys(w.ctx, "*"+w.name+"*").Result()
	require.NoError(w.t, err)
	got := state{}
	for _, key := range keys {
		if !strings.HasPrefix(key, "redisson_unlock_latch:") {
			got[w.label(key)] = w.label(w.content(key))
		}
	}
	return got
}

func (w *wire) content(key string) string {
	w.t.Helper()
	content := w.value(key)
	ttl, err := w.rdb.PTTL(w.ctx, key).Result()
	require.NoError(w.t, err)
	if ttl > 0 {
		content += " ttl=" + rounded(ttl).String()
	}
	return content
}

func (w *wire) value(key string) string {
	w.t.Helper()
	kind, err := w.rdb.Type(w.ctx, key).Result()
	require.NoError(w.t, err)
	switch kind {
	case "string":
		value, err := w.rdb.Get(w.ctx, key).Result()
		require.NoError(w.t, err)
		return value
	case "hash":
		fields, err := w.rdb.HGetAll(w.ctx, key).Result()
		require.NoError(w.t, err)
		parts := []string{}
		for field, value := range fields {
			parts = append(parts, w.label(field)+"="+value)
		}
		slices.Sort(parts)
		return strings.Join(parts, " ")
	case "list":
		values, err := w.rdb.LRange(w.ctx, key, 0, -1).Result()
		require.NoError(w.t, err)
		return strings.Join(values, " ")
	case "zset":
		members, err := w.rdb.ZRangeWithScores(w.ctx, key, 0, -1).Result()
		require.NoError(w.t, err)
		parts := []string{}
		for _, member := range members {
			parts = append(parts, w.member(member.Member.(string))+"="+score(member.Score))
		}
		return strings.Join(parts, " ")
	default:
		return kind
	}
}

// member renders a member of a sorted set. The 16 raw bytes of a permit become its id in hex.
func (w *wire) member(text string) string {
	if len(text) == 16 {
		return hex.EncodeToString([]byte(text))
	}
	return text
}

// never is the score of a permit without a lease.
const never = 922337203685477

func score(ms float64) string {
	if ms == never {
		return "never"
	}
	return "now+" + rounded(time.Until(time.UnixMilli(int64(ms)))).String()
}

func rounded(d time.Duration) time.Duration {
	return time.Duration(math.Ceil(float64(d)/float64(slice))) * slice
}

// published returns the messages of the name since the last call of commands.
func (w *wire) published() []string {
	w.t.Helper()
	found := []string{}
	for _, args := range w.commands() {
		if strings.EqualFold(args[0], "publish") {
			found = append(found, w.label(args[1])+" "+args[2])
		}
	}
	return found
}

// commands returns the new commands that contain the name, including those of scripts.
func (w *wire) commands() [][]string {
	w.t.Helper()
	lines := w.monitor.upToNow(w.t, w.rdb)
	fresh := lines[w.seen:]
	w.seen = len(lines)
	found := [][]string{}
	for _, args := range fresh {
		if strings.Contains(strings.Join(args, " "), w.name) {
			found = append(found, args)
		}
	}
	return found
}

// awaitSubscriber waits until a Java thread has subscribed to the channel. The thread then tries
// again.
func (w *wire) awaitSubscriber(channel string) {
	w.t.Helper()
	w.eventually("a subscriber of "+channel, func() bool {
		counts, err := w.rdb.PubSubNumSub(w.ctx, channel).Result()
		return err == nil && counts[channel] > 0
	})
}

func (w *wire) eventually(what string, ready func() bool) {
	w.t.Helper()
	require.Eventually(w.t, ready, limit, 2*time.Millisecond, what)
}

// await waits for the end of a call and returns its error.
func (w *wire) await(f *redisson.Future) error {
	_, err := f.Wait(w.ctx)
	return err
}

// monitor collects the output of MONITOR.
type monitor struct {
	mu    sync.Mutex
	lines [][]string // the arguments of each command, unescaped
}

func startMonitor(t *testing.T, addr string) *monitor {
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	_, err = conn.Write([]byte("MONITOR\r\n"))
	require.NoError(t, err)
	scanner := bufio.NewScanner(conn)
	require.True(t, scanner.Scan())
	require.Equal(t, "+OK", scanner.Text())
	m := &monitor{}
	var reading sync.WaitGroup
	reading.Go(func() {
		for scanner.Scan() {
			m.add(scanner.Text())
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		reading.Wait()
	})
	return m
}

// quoted is one argument as MONITOR prints it.
var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

func (m *monitor) add(line string) {
	args := []string{}
	for _, text := range quoted.FindAllString(line, -1) {
		arg, err := strconv.Unquote(text)
		if err != nil {
			arg = text
		}
		args = append(args, arg)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lines = append(m.lines, args)
}

// upToNow returns all commands that the server ran before this call. It sends a unique ECHO and
// waits until MONITOR shows it.
func (m *monitor) upToNow(t *testing.T, rdb *redis.Client) [][]string {
	t.Helper()
	marker := "marker-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	require.NoError(t, rdb.Echo(t.Context(), marker).Err())
	var lines [][]string
	require.Eventually(t, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		at := slices.IndexFunc(m.lines, func(args []string) bool { return slices.Contains(args, marker) })
		lines = m.lines[:max(at, 0):max(at, 0)]
		return at >= 0
	}, limit, time.Millisecond)
	return lines
}
