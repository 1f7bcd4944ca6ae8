package torture

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Endpoint is a deployment of Redis: one server, a set that Sentinels watch, or a cluster.
type Endpoint struct {
	Addrs    []string // the server, the Sentinels, or seeds of the cluster
	Master   string   // the name of the master that the Sentinels watch
	Cluster  bool
	Members  []string // independent servers, for the members of a redlock; Addrs if it is empty
	Username string
	Password string
	DB       int
	TLS      *tls.Config
}

// clientEndpoint is an Endpoint as a client process gets it. It dials the proxy of a server,
// without TLS, in place of the server.
type clientEndpoint struct {
	Addrs    []string          `json:"addrs"`
	Master   string            `json:"master,omitempty"`
	Cluster  bool              `json:"cluster,omitempty"`
	Members  []string          `json:"members,omitempty"`
	Username string            `json:"username,omitempty"`
	Password string            `json:"password,omitempty"`
	DB       int               `json:"db,omitempty"`
	Routes   map[string]string `json:"routes"` // the proxy of each server
}

// client returns a client of e that dials with dial.
func (e *clientEndpoint) client(dial dialer) redis.UniversalClient {
	return newClient(&redis.UniversalOptions{
		Addrs: e.Addrs, MasterName: e.Master, IsClusterMode: e.Cluster,
		Username: e.Username, Password: e.Password, DB: e.DB, Dialer: dial,
	})
}

// client returns a client of e for the harness itself, without proxies.
func (e *Endpoint) client() redis.UniversalClient {
	return newClient(&redis.UniversalOptions{
		Addrs: e.Addrs, MasterName: e.Master, IsClusterMode: e.Cluster,
		Username: e.Username, Password: e.Password, DB: e.DB, TLSConfig: e.TLS,
	})
}

// bufferSize is that of each connection. Commands and answers are short, and go-redis would take
// 256 KiB for a pipeline.
const bufferSize = 4096

func newClient(o *redis.UniversalOptions) redis.UniversalClient {
	o.ReadBufferSize, o.WriteBufferSize = bufferSize, bufferSize
	o.PipelineReadBufferSize, o.PipelineWriteBufferSize = bufferSize, bufferSize
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if o.MasterName == "" && !o.IsClusterMode {
		return redis.NewClient(o.Simple())
	}
	return redis.NewUniversalClient(o)
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// network is the way from a client process to its servers. It can hang: then no dial is answered.
type network struct {
	routes map[string]string
	mu     sync.Mutex
	hung   chan struct{} // not nil while dials hang; closed when they go on
}

func (n *network) hang(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case on && n.hung == nil:
		n.hung = make(chan struct{})
	case !on && n.hung != nil:
		close(n.hung)
		n.hung = nil
	}
}

func (n *network) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	n.mu.Lock()
	hung := n.hung
	n.mu.Unlock()
	if hung != nil {
		select {
		case <-hung:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if proxy, ok := n.routes[addr]; ok {
		addr = proxy
	}
	d := net.Dialer{Timeout: 5 * time.Second}
	return d.DialContext(ctx, network, addr)
}
