package fence

import (
	"context"
	_ "embed" // the script
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed set.lua
var setSource string

var setScript = redis.NewScript(setSource)

// fencePrefix is the prefix of a fence's key.
const fencePrefix = "redlatch_fence:"

// Key is a string in Redis that refuses stale writers.
type Key struct {
	rdb   redis.Scripter
	key   string
	token int64
}

// Redis returns the string at key for the holder of a token. It does no I/O. The fence has a key of
// its own, without a TTL, in the same cluster slot: redlatch_fence:{<key>}, or redlatch_fence:<key>
// if key has a hash tag.
//
// On a cluster, a name with a "}" and no hash tag cannot have a key in its slot. Then Set fails.
func Redis(rdb redis.Scripter, key string, token int64) *Key { return &Key{rdb, key, token} }

// Set sets the string to value, or fails with [ErrStale] if a greater token has set it. The
// comparison and the write are one script. A ttl of 0 means no expiry. A ttl is rounded up to
// milliseconds. value may be anything that [redis.Cmdable].Set takes. Calls with equal tokens are
// not ordered: the last one wins.
func (k *Key) Set(ctx context.Context, value any, ttl time.Duration) error {
	err := check(k.key, k.token)
	if err == nil && ttl < 0 {
		err = fmt.Errorf("fence: %q: a negative ttl, %v", k.key, ttl)
	}
	if err != nil {
		return err
	}
	ms := ttl.Milliseconds()
	if ttl > time.Duration(ms)*time.Millisecond {
		ms++
	}
	keys := []string{k.key, fenceOf(k.key)}
	done, err := setScript.Run(ctx, k.rdb, keys, strconv.FormatInt(k.token, 10), value, ms).Int()
	switch {
	case err != nil:
		return fmt.Errorf("fence: %q: %w", k.key, err)
	case done == 0:
		return stale(k.key, k.token)
	}
	return nil
}

// fenceOf returns the fence's key, which is in key's slot.
func fenceOf(key string) string {
	_, rest, hasBrace := strings.Cut(key, "{")
	tag, _, isClosed := strings.Cut(rest, "}")
	hasTag := hasBrace && isClosed && tag != ""
	if hasTag {
		return fencePrefix + key
	}
	return fencePrefix + "{" + key + "}"
}
