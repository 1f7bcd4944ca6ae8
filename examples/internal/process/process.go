// Package process has the examples, each one program, play several processes.
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

// At is the server at url, or one inside this process if url is empty.
func At(url string) (*Server, error) {
	if url == "" {
		s := locktest.Start()
		return &Server{s.Options(), s.Close}, nil
	}
	o, err := redis.ParseURL(url)
	return &Server{o, func() {}}, err
}

// Close ends a server inside this process.
func (s *Server) Close() { s.end() }

// Process is what a process of its own would have.
type Process struct {
	*primitives.Client
	Redis   *redis.Client
	Network *locktest.Link // its way to Redis, which can be cut
}

// Start makes a process. Yours has the two lines: rdb := redis.NewClient(...), and client, err := primitives.New(rdb).
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

// End ends the process in good order.
func (p *Process) End() {
	_ = p.Close(context.Background()) // all is released
	_ = p.Redis.Close()
}
