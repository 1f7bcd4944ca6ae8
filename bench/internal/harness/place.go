package harness

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/bench/internal/contend"
	"github.com/redlatch/redlatch/bench/internal/delay"
	"github.com/redlatch/redlatch/bench/internal/server"
)

// masters is the number of nodes of the cluster.
const masters = 3

// roundTrips are the delays that the networks of the same names add to each round trip.
var roundTrips = map[string]time.Duration{
	RoundTrip500us: 500 * time.Microsecond,
	RoundTrip2ms:   2 * time.Millisecond,
}

// place is where the contenders on one network find Redis.
type place struct {
	target contend.Target
	admins []*redis.Client // of each server
}

// places opens the place of each network when it is first used, and keeps it until close.
type places struct {
	server  *server.Server
	cluster *server.Cluster           // nil until it is used
	delayed map[string]*delay.Process // by network
}

func newPlaces(s *server.Server) *places {
	return &places{server: s, delayed: map[string]*delay.Process{}}
}

func (p *places) open(ctx context.Context, network string) (place, error) {
	admins := []*redis.Client{p.server.Admin}
	switch network {
	case Unix:
		return place{p.server.Unix, admins}, nil
	case TCP:
		return place{p.server.TCP, admins}, nil
	case Cluster:
		return p.openCluster(ctx)
	}
	roundTrip, ok := roundTrips[network]
	if !ok {
		return place{}, fmt.Errorf("harness: no network %q", network)
	}
	if p.delayed[network] == nil {
		proxy, err := delay.Start(ctx, p.server.Unix, roundTrip)
		if err != nil {
			return place{}, err
		}
		p.delayed[network] = proxy
	}
	return place{p.delayed[network].Target, admins}, nil
}

func (p *places) openCluster(ctx context.Context) (opened place, err error) {
	if p.cluster == nil {
		if p.cluster, err = server.StartCluster(ctx, masters); err != nil {
			return opened, err
		}
	}
	opened.target = p.cluster.Target
	for _, node := range p.cluster.Nodes {
		opened.admins = append(opened.admins, node.Admin)
	}
	return opened, nil
}

// close ends the cluster and the proxies.
func (p *places) close() (err error) {
	if p.cluster != nil {
		p.cluster.Close()
	}
	for _, proxy := range p.delayed {
		err = errors.Join(err, proxy.Close())
	}
	return err
}
