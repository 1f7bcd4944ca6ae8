package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// leftovers notes the keys of all scripts that clients send, so that they can be removed: most
// kinds remember their requests for up to 3 minutes. It is a hook of go-redis.
type leftovers struct {
	marker string // is part of all names
	mu     sync.Mutex
	keys   map[string]bool
}

// note starts to note the keys that rdb sends. It must be called before other goroutines use rdb.
func note(ctx context.Context, rdb redis.UniversalClient, marker string) *leftovers {
	l := &leftovers{marker: marker, keys: map[string]bool{}}
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		// Pipelines of a cluster are sent by the clients of its nodes.
		cluster.OnNewNode(func(n *redis.Client) { n.AddHook(l) })
		_ = cluster.ForEachShard(ctx, func(_ context.Context, n *redis.Client) error { n.AddHook(l); return nil })
	}
	rdb.AddHook(l)
	return l
}

// remove deletes the keys. No command with them may be in flight. A key that the user may not
// delete because of its name was never written, because Redis checks the names of a script's keys
// before it runs.
func (l *leftovers) remove(ctx context.Context, rdb redis.UniversalClient) error {
	l.mu.Lock()
	keys := slices.Collect(maps.Keys(l.keys))
	l.mu.Unlock()
	if len(keys) == 0 {
		return nil
	}
	pipe := rdb.Pipeline()
	for _, key := range keys {
		pipe.Del(ctx, key)
	}
	cmds, err := pipe.Exec(ctx)
	if err != nil && !answered(err) {
		return err
	}
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && deniedCommand.MatchString(err.Error()) {
			return err
		}
	}
	return nil
}

func (l *leftovers) add(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if strings.Contains(key, l.marker) {
		l.keys[key] = true
	}
}

func (l *leftovers) noteKeys(cmd redis.Cmder) {
	args := cmd.Args()
	if len(args) < 3 || !strings.HasPrefix(strings.ToLower(fmt.Sprint(args[0])), "eval") {
		return
	}
	n := 0
	_, _ = fmt.Sscan(fmt.Sprint(args[2]), &n)
	for _, key := range args[3:min(3+n, len(args))] {
		l.add(fmt.Sprint(key))
	}
}

func (l *leftovers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *leftovers) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		l.noteKeys(cmd)
		return next(ctx, cmd)
	}
}

func (l *leftovers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			l.noteKeys(cmd)
		}
		return next(ctx, cmds)
	}
}
