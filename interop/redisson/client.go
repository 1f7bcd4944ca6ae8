package redisson

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"
)

// Config is that of a Redisson client. Zero durations and counts leave Redisson's own defaults. Exactly one of Addr, Cluster and
// Sentinels names the servers, each as host:port.
type Config struct {
	Addr      string
	Replicas  []string // of Addr, which is the master then
	Cluster   []string
	Sentinels []string
	Master    string // the sentinels' name for the master

	Watchdog      time.Duration // lockWatchdogTimeout, whole milliseconds as all durations here
	FairWait      time.Duration // fairLockWaitTimeout
	Timeout       time.Duration // of one command
	RetryAttempts int           // below 0: none

	Settings map[string]any // more settings, as in Redisson's configuration file, at its top level
	Server   map[string]any // likewise, in the section of the servers
}

// file is the configuration in the form of Redisson's configuration file.
func (c Config) file() map[string]any {
	server := map[string]any{}
	file := map[string]any{}
	switch {
	case len(c.Cluster) > 0:
		server["nodeAddresses"] = urls(c.Cluster)
		file["clusterServersConfig"] = server
	case len(c.Sentinels) > 0:
		server["sentinelAddresses"], server["masterName"] = urls(c.Sentinels), c.Master
		file["sentinelServersConfig"] = server
	case len(c.Replicas) > 0:
		server["masterAddress"], server["slaveAddresses"] = url(c.Addr), urls(c.Replicas)
		file["masterSlaveServersConfig"] = server
	default:
		server["address"] = url(c.Addr)
		server["connectionMinimumIdleSize"] = 1 // connecting to 24 at once takes its time
		file["singleServerConfig"] = server
	}
	setMillis(file, "lockWatchdogTimeout", c.Watchdog)
	setMillis(file, "fairLockWaitTimeout", c.FairWait)
	setMillis(server, "timeout", c.Timeout)
	if c.RetryAttempts != 0 {
		server["retryAttempts"] = max(0, c.RetryAttempts)
	}
	maps.Copy(file, c.Settings)
	maps.Copy(server, c.Server)
	return file
}

func setMillis(section map[string]any, key string, d time.Duration) {
	if d != 0 {
		section[key] = d.Milliseconds()
	}
}

func url(addr string) string { return "redis://" + addr }

func urls(addrs []string) []string {
	all := make([]string, len(addrs))
	for i, addr := range addrs {
		all[i] = url(addr)
	}
	return all
}

// Client is one Redisson client.
type Client struct {
	driver *Driver
	name   string
	id     string
}

// Client opens a client, and closes it when t ends.
func (d *Driver) Client(t testing.TB, config Config) *Client {
	t.Helper()
	c, err := d.Connect(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
		defer cancel()
		_ = c.Close(ctx) // the driver may be gone
	})
	return c
}

// Connect is Client for a caller that is no test, and that closes the client itself.
func (d *Driver) Connect(ctx context.Context, config Config) (*Client, error) {
	d.mu.Lock()
	d.clients++
	c := &Client{driver: d, name: fmt.Sprintf("client%d", d.clients)}
	d.mu.Unlock()
	id, err := result[string](d.Call(ctx, Command{Op: "open", Thread: c.thread(""), Target: c.target("", ""), Config: config.file()}))
	c.id = id
	return c, err
}

// ID is the client's id, a UUID: the first part of its threads' owner ids.
func (c *Client) ID() string { return c.id }

// Thread is a Java thread as it is at the moment.
type Thread struct {
	ID          int64  `json:"thread"`
	State       string `json:"state"` // a java.lang.Thread.State; WAITING when idle, too
	Interrupted bool   `json:"interrupted"`
}

// Thread looks at the named thread. It does not wait for what the thread is doing.
func (c *Client) Thread(ctx context.Context, name string) (Thread, error) {
	return result[Thread](c.call(ctx, Command{Op: "ids", Thread: c.thread(name)}))
}

// Owner is the id under which the named thread owns locks. It does not wait for what the thread is doing.
func (c *Client) Owner(ctx context.Context, thread string) (string, error) {
	t, err := c.Thread(ctx, thread)
	return fmt.Sprintf("%s:%d", c.id, t.ID), err
}

// Interrupt interrupts the named thread. If it is idle, its next command starts interrupted.
func (c *Client) Interrupt(ctx context.Context, thread string) error {
	_, err := c.call(ctx, Command{Op: "interrupt", Thread: c.thread(thread)})
	return err
}

// Close shuts the client down. What it holds stays in Redis.
func (c *Client) Close(ctx context.Context) error {
	_, err := c.call(ctx, Command{Op: "close", Thread: c.thread("close")})
	return err
}

func (c *Client) call(ctx context.Context, command Command) (Answer, error) {
	command.Target = c.target("", "")
	return c.driver.Call(ctx, command)
}

func (c *Client) thread(name string) string { return c.name + "/" + name }

func (c *Client) target(kind, name string) *Target {
	return &Target{Client: c.name, Kind: kind, Name: name}
}

// Object returns an object by its kind: lock, spin, nonreentrant, fair, nonreentrantfair, fenced, read, write, semaphore, permits
// or latch. The nonreentrant ones are unknown to Redisson3.
func (c *Client) Object(kind, name string) Object {
	return Object{client: c, target: *c.target(kind, name)}
}

// Lock returns an RLock.
func (c *Client) Lock(name string) Lock { return c.LockOf("lock", name) }

// FairLock returns a fair RLock.
func (c *Client) FairLock(name string) Lock { return c.LockOf("fair", name) }

// FencedLock returns an RFencedLock.
func (c *Client) FencedLock(name string) Lock { return c.LockOf("fenced", name) }

// ReadLock returns the read lock of an RReadWriteLock.
func (c *Client) ReadLock(name string) Lock { return c.LockOf("read", name) }

// WriteLock returns the write lock of an RReadWriteLock.
func (c *Client) WriteLock(name string) Lock { return c.LockOf("write", name) }

// LockOf returns the lock of a kind that Object names.
func (c *Client) LockOf(kind, name string) Lock { return Lock{c.Object(kind, name)} }

// MultiLock returns the RLock made of the members, which may be those of other clients of the same driver.
func (c *Client) MultiLock(members ...Lock) Lock { return c.grouped("multi", members) }

// RedLock is MultiLock for Redisson's RedLock.
func (c *Client) RedLock(members ...Lock) Lock { return c.grouped("red", members) }

func (c *Client) grouped(kind string, members []Lock) Lock {
	l := c.LockOf(kind, "")
	for _, member := range members {
		l.target.Members = append(l.target.Members, member.target)
	}
	return l
}

// Semaphore returns an RSemaphore.
func (c *Client) Semaphore(name string) Semaphore { return Semaphore{c.Object("semaphore", name)} }

// Permits returns an RPermitExpirableSemaphore.
func (c *Client) Permits(name string) Permits { return Permits{c.Object("permits", name)} }

// Latch returns an RCountDownLatch.
func (c *Client) Latch(name string) Latch { return Latch{c.Object("latch", name)} }
