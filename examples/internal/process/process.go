// Package process simulates several processes inside one example program.
package process

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// Server is the Redis that processes use.
type Server struct {
	options *redis.Options
	end     func()
}

// At returns the server at url. If url is empty, it starts a server inside this process.
func At(url string) (*Server, error) {
	if url == "" {
		s := locktest.Start()
		return &Server{s.Options(), s.Close}, nil
	}
	o, err := redis.ParseURL(url)
	return &Server{o, func() {}}, err
}

// Close closes the server if At has started it.
func (s *Server) Close() { s.end() }

// Process is a simulated process: a client with its own connections.
type Process struct {
	*primitives.Client
	Redis   *redis.Client
	Network *locktest.Link // the network path to Redis, which can be cut
}

// Start makes a process. A real program needs two lines instead:
//
//	rdb := redis.NewClient(...)
//	client, err := primitives.New(rdb)
func (s *Server) Start() (*Process, error) {
	o := *s.options
	dial := o.Dialer
	if dial == nil {
		dial = redis.NewDialer(s.options)
	}
	network := locktest.NewLink(dial)
	o.Dialer = network.Dial
	rdb := redis.NewClient(&o)
	client, err := primitives.New(rdb)
	return &Process{client, rdb, network}, err
}

// End closes the clients of the process.
func (p *Process) End() {
	_ = p.Close(context.Background()) // returns at once: the examples release all holds before
	_ = p.Redis.Close()
}
