package pubsub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A router says on which server a channel lives. It is all that tells the kinds of pub/sub apart, but for the names of the commands.
type router interface {
	sharded() bool
	place(ctx context.Context, channel string) (server, error)
	refresh(ctx context.Context) // placements went wrong: get newer ones, in the background
}

// server is a place to subscribe at: a name that tells it from others, and how to connect.
type server struct {
	name    string
	sharded bool
	options *redis.Options
}

// plainServer is the name of the one server of plain mode.
const plainServer = ""

// single and cluster are what is needed of a client. Structs that embed one of go-redis's will do.
type (
	single interface {
		Options() *redis.Options
	}
	cluster interface {
		Options() *redis.ClusterOptions
		MasterForKey(ctx context.Context, key string) (*redis.Client, error)
		ReloadState(ctx context.Context)
		PubSubShardNumSub(ctx context.Context, channels ...string) *redis.MapStringIntCmd
	}
)

// newRouter chooses the kind of pub/sub. It may have to ask the server.
func newRouter(ctx context.Context, rdb redis.UniversalClient, sharded *bool) (router, error) {
	switch c := rdb.(type) {
	case cluster:
		on, err := wantsShards(ctx, c, sharded)
		if err != nil {
			return nil, err
		}
		if on {
			return shardRouter{c}, nil
		}
		return clusterRouter{c}, nil
	case single:
		if sharded != nil && *sharded {
			return nil, fmt.Errorf("%w: sharded pub/sub needs a cluster", ErrUnsupported)
		}
		return singleRouter{c.Options()}, nil
	default:
		return nil, fmt.Errorf("%w: %T is neither a Client nor a ClusterClient", ErrUnsupported, rdb)
	}
}

// wantsShards decides as Redisson does: what is configured, else what PUBSUB SHARDNUMSUB says. A ClusterClient that is given its slots by
// a function may stand before servers that are no cluster (Sentinel's), where Redisson is always plain.
func wantsShards(ctx context.Context, c cluster, sharded *bool) (bool, error) {
	if sharded != nil {
		return *sharded, nil
	}
	if c.Options().ClusterSlots != nil {
		return false, nil
	}
	err := c.PubSubShardNumSub(ctx, "0").Err()
	var reply redis.Error
	switch {
	case err == nil:
		return true, nil
	case errors.As(err, &reply) && !passing(reply.Error()):
		return false, nil
	default:
		return false, fmt.Errorf("pubsub: ask for sharded pub/sub: %w", err)
	}
}

// passing reports whether an error reply tells of a state of the server that will pass, and nothing about the command.
func passing(reply string) bool {
	switch code(reply) {
	case "LOADING", "NOAUTH", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "READONLY", "BUSY", "MOVED", "ASK":
		return true
	default:
		return strings.Contains(reply, "max number of clients")
	}
}

// code returns the first word of an error reply.
func code(reply string) string {
	word, _, _ := strings.Cut(reply, " ")
	return word
}

// singleRouter is plain pub/sub on a lone server, or on whichever one Sentinel names when dialing.
type singleRouter struct{ options *redis.Options }

func (singleRouter) sharded() bool           { return false }
func (singleRouter) refresh(context.Context) {}
func (r singleRouter) place(context.Context, string) (server, error) {
	return server{name: plainServer, options: r.options}, nil
}

// clusterRouter is plain pub/sub on a cluster, which broadcasts: any master will do, and the next attempt takes another.
type clusterRouter struct{ client cluster }

func (clusterRouter) sharded() bool                 { return false }
func (r clusterRouter) refresh(ctx context.Context) { r.client.ReloadState(ctx) }
func (r clusterRouter) place(ctx context.Context, _ string) (server, error) {
	node, err := r.client.MasterForKey(ctx, strconv.Itoa(rand.Int())) //nolint:gosec // any slot will do
	if err != nil {
		return server{}, fmt.Errorf("pubsub: find a master: %w", err)
	}
	return server{name: plainServer, options: node.Options()}, nil
}

// shardRouter is sharded pub/sub: a channel lives on the master of its slot.
type shardRouter struct{ client cluster }

func (shardRouter) sharded() bool                 { return true }
func (r shardRouter) refresh(ctx context.Context) { r.client.ReloadState(ctx) }
func (r shardRouter) place(ctx context.Context, channel string) (server, error) {
	node, err := r.client.MasterForKey(ctx, channel)
	if err != nil {
		return server{}, fmt.Errorf("pubsub: find the master of %q: %w", channel, err)
	}
	return server{name: node.Options().Addr, sharded: true, options: node.Options()}, nil
}

// slotOf returns the cluster slot of a channel: CRC16 (XMODEM) of its hash tag, if it has one that is not empty, else of the whole.
func slotOf(channel string) uint16 {
	if _, rest, ok := strings.Cut(channel, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			channel = tag
		}
	}
	var crc uint16
	for i := range len(channel) {
		crc ^= uint16(channel[i]) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
	}
	return crc % 16384
}
