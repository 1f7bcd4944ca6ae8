package faults

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// modelNames is Redisson's naming, as doc/wire.md states it, written a second time: the keys and
// channels of a primitive on the wire. A request key ends in any text.
type modelNames struct {
	keys     []string // that may stay while it is held
	channels []string
	requests string // what a key that remembers a request begins with
}

func modelOf(kind, raw string) (m modelNames) {
	prefix := func(p string) string { return p + ":{" + raw + "}" }
	suffix := func(s string) string { return "{" + raw + "}:" + s }
	if strings.ContainsRune(raw, '{') {
		prefix = func(p string) string { return p + ":" + raw }
		suffix = func(s string) string { return raw + ":" + s }
	}
	m.requests = prefix("redisson_unlock_latch") + ":"
	m.keys = []string{raw}
	switch kind {
	case "lock", "fenced", "fair":
		m.channels = []string{prefix("redisson_lock__channel")}
	case "reader", "writer":
		m.channels = []string{prefix("redisson_rwlock")}
		m.keys = append(m.keys, prefix("redlatch_rwlock_claim"))
	case "semaphore", "permits":
		m.channels = []string{prefix("redisson_sc")}
	case "latch":
		m.channels = []string{"redisson_countdownlatch__channel__{" + raw + "}"}
	}
	switch kind {
	case "fenced":
		m.keys = append(m.keys, prefix("redisson_lock_token"))
	case "fair":
		for _, p := range []string{"redisson_lock_queue", "redisson_lock_timeout", "redlatch_lock_waiters",
			"redlatch_lock_clients"} {
			m.keys = append(m.keys, prefix(p))
		}
	case "permits":
		m.keys = append(m.keys, suffix("timeout"))
	case "reader":
		m.keys = append(m.keys, suffix("")) // what the keys of counts begin with
	}
	return m
}

// oneSlot reports whether all names fall into one cluster slot.
func (m modelNames) oneSlot() bool {
	slots := map[uint16]bool{}
	for _, name := range slices.Concat(m.keys, m.channels, []string{m.requests}) {
		if _, rest, found := strings.Cut(name, "{"); found {
			if tag, _, found := strings.Cut(rest, "}"); found && tag != "" {
				name = tag
			}
		}
		var crc uint16 // CRC-16/XMODEM, bit by bit
		for i := range len(name) {
			crc ^= uint16(name[i]) << 8
			for range 8 {
				if top := crc & 0x8000; top != 0 {
					crc = crc<<1 ^ 0x1021
				} else {
					crc <<= 1
				}
			}
		}
		slots[crc%16384] = true
	}
	return len(slots) == 1
}

// keysHook records the keys of scripts.
type keysHook struct {
	redis.Hook
	mu   sync.Mutex
	keys []string
}

func (h *keysHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { h.record(cmd); return next(ctx, cmd) }
}

func (h *keysHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *keysHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.record(cmd)
		}
		return next(ctx, cmds)
	}
}

func (h *keysHook) record(cmd redis.Cmder) {
	if cmd.Name() != "evalsha" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	n, _ := cmd.Args()[2].(int)
	for _, key := range cmd.Args()[3 : 3+n] {
		switch key := key.(type) {
		case string:
			h.keys = append(h.keys, key)
		case interface{ String() string }:
			h.keys = append(h.keys, key.String())
		}
	}
}

// FuzzNames uses names and prefixes of any content. All keys are Redisson's; on a cluster they
// share a slot, or the name is refused; and users get back the name that they gave.
func FuzzNames(f *testing.F) {
	s := redistest.Fresh(f)
	admin := s.Client(f)
	cluster, err := primitives.New(redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}))
	require.NoError(f, err)
	f.Cleanup(func() { fixture.CloseNow(cluster) })
	done, cancel := context.WithCancel(context.Background())
	cancel()
	for _, name := range []string{
		"a", "a:b", "{a}:b", "a{b}c", "{a{b}}", "{}", "{}x", "}{", "a}b", "a{b", "", "ключ", "\x00\xff\n", "*[x]?\\",
		"[a-z", "redisson_lock_queue:{a}", strings.Repeat("n", 1<<16),
	} {
		for kind := range byte(len(kinds.Named())) {
			f.Add(kind, "", name)
		}
		f.Add(byte(0), "app*:", name)
		f.Add(byte(3), "{app}", name)
	}
	f.Fuzz(func(t *testing.T, at byte, prefix, name string) {
		named := kinds.Named()
		kind := named[int(at)%len(named)]
		ctx := t.Context()
		require.NoError(t, admin.FlushAll(ctx).Err())
		rdb := s.Client(t)
		hook := &keysHook{}
		rdb.AddHook(hook)
		c := fixture.NewClient(t, rdb, primitives.WithPrefix(prefix), primitives.WithClientName(""))
		handle := kind.Open(c, name)
		if name == "" {
			require.ErrorIs(t, fixture.ErrOf(handle.TryAcquire(ctx)), primitives.ErrInvalid)
			require.Empty(t, hook.keys)
			return
		}
		model := modelOf(kind.Name, prefix+name)
		if p, ok := handle.(kinds.Pool); ok {
			require.NoError(t, p.Add(ctx, 1))
		}
		hold := fixture.Acquire(t, ctx, handle, primitives.WithWait(5*time.Second))
		require.Equal(t, name, hold.Name())
		keys := redistest.Keys(t, s, "*")
		require.Contains(t, keys, prefix+name)
		described := handle.(interface {
			Info(context.Context) (primitives.Info, error)
			Name() string
		})
		info := fixture.InfoOf(t, described)
		require.Equal(t, []string{name, name, kind.Name}, []string{info.Name, described.Name(), info.Kind})
		if _, ok := handle.(*primitives.Lock); ok && !strings.HasPrefix(prefix+name, "redlatch_") &&
			!strings.HasPrefix(prefix+name, "redisson_unlock_latch:") {
			glob := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(name)
			var listed []string
			for info, err := range c.Locks(ctx, glob) {
				require.NoError(t, err)
				listed = append(listed, info.Name)
			}
			require.Equal(t, []string{name}, listed)
		}
		fixture.Release(t, hold)
		hook.mu.Lock()
		defer hook.mu.Unlock()
		for _, key := range slices.Concat(keys, hook.keys, redistest.Keys(t, s, "*")) {
			if !slices.Contains(model.keys, key) && !slices.Contains(model.channels, key) &&
				!strings.HasPrefix(key, model.requests) &&
				!(kind.Name == "reader" && strings.HasPrefix(key, model.keys[2])) &&
				!slices.Contains(modelOf("fenced", prefix+name).keys, key) &&
				!slices.Contains(modelOf("fair", prefix+name).keys, key) {
				t.Fatalf("%q is no key of the %s %q", key, kind.Name, prefix+name)
			}
		}

		onCluster := kind.Open(cluster, name)
		_, err = onCluster.TryAcquire(done)
		require.Equal(t, !modelOf(kind.Name, name).oneSlot(), errors.Is(err, primitives.ErrInvalid), "%q: %v", name, err)
		err = cluster.CountDownLatch(name).Wait(done)
		require.Equal(t, !modelOf("latch", name).oneSlot(), errors.Is(err, primitives.ErrInvalid), "%q: %v", name, err)
	})
}

// Each primitive works on a cluster under names of any length and content. A latch with braces in
// its name does not: its keys would be in two slots.
func TestNamesOnACluster(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t)
	for about, name := range map[string]string{
		"tag": "{a}b", "nested braces": "{a{b}}", "several tags": "{a}{b}", "colons": "a:b::", "unicode": "ключ",
		"no text": "\x00\xff\n", "glob": "*[x]?", "64 KiB": strings.Repeat("n", 1<<16),
	} {
		t.Run(about, func(t *testing.T) {
			t.Parallel()
			one, two := fixture.NewClient(t, servers.ClusterClient(t)), newFarClient(t, servers.ClusterClient(t))
			use := methodsOf
			if strings.Contains(name, "{") {
				use = methodsOfLocks
			}
			require.NoError(t, use(t.Context(), one, two, name+redistest.Name(t)))
		})
	}
}
