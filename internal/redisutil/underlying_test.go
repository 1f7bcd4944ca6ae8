package redisutil_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redisutil"
)

type (
	outer  struct{ redis.UniversalClient }
	hidden struct{ universal } // in an unexported field
	beside struct {
		redis.UniversalClient
		other *redis.Client // no embedded field
	}
)

type universal interface{ redis.UniversalClient }

func TestUnderlying(t *testing.T) {
	t.Parallel()
	one := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	ring := redis.NewRing(&redis.RingOptions{})
	t.Cleanup(func() { _, _, _ = one.Close(), cluster.Close(), ring.Close() })
	self := &outer{}
	self.UniversalClient = self
	for name, tt := range map[string]struct {
		rdb  redis.UniversalClient
		want redis.UniversalClient // nil: an error
	}{
		"a client":                    {one, one},
		"a cluster client":            {cluster, cluster},
		"a ring":                      {ring, ring},
		"nil":                         {nil, nil},
		"a nil client":                {(*redis.Client)(nil), nil},
		"in an interface":             {&outer{one}, one},
		"in a struct that is a value": {outer{cluster}, cluster},
		"in a wrapper":                {&outer{&outer{outer{ring}}}, ring},
		"in an unexported field":      {&hidden{&outer{one}}, one},
		"not in another field":        {&beside{cluster, one}, cluster},
		"only in another field":       {&beside{nil, one}, nil},
		"in nothing":                  {outer{}, nil},
		"in a nil wrapper":            {(*outer)(nil), nil},
		"in itself":                   {self, nil},
	} {
		got, err := redisutil.Underlying(tt.rdb)
		require.Equal(t, tt.want == nil, err != nil, "%s: %v", name, err)
		if tt.want != nil {
			require.Same(t, tt.want, got, name)
		}
	}
}
