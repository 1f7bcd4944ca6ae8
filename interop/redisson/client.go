package redisson

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"
)

// Config is the configuration of a Redisson client. Exactly one of Addr, Cluster and Sentinels is
// set; addresses have the form host:port. A zero duration or count means Redisson's default.
// Durations are truncated to milliseconds.
type Config struct {
	Addr      string
	Replicas  []string // replicas of the master Addr
	Cluster   []string
	Sentinels []string
	Master    string // the sentinels' name for the master

	Watchdog      time.Duration // lockWatchdogTimeout
	FairWait      time.Duration // fairLockWaitTimeout
	Timeout       time.Duration // of one command
	RetryAttempts int           // below 0: none

	Settings map[string]any // more top-level settings of Redisson's configuration file
	Server   map[string]any // more settings of the server section
}

// file returns the configuration in the format of Redisson's configuration file.
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
		server["connectionMinimumIdleSize"] = 1 // the default of 24 connections slows down the start
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

// Client opens a client and closes it when t ends.
func (d *Driver) Client(t testing.TB, config Config) *Client {
	t.Helper()
	c, err := d.Connect(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		_ = c.Close(ctx) // fails if the test has ended the driver
	})
	return c
}

// Connect is like Client for a caller without a testing.TB. The caller closes the client.
func (d *Driver) Connect(ctx context.Context, config Config) (*Client, error) {
	d.mu.Lock()
	d.clients++
	c := &Client{driver: d, name: fmt.Sprintf("client%d", d.clients)}
	d.mu.Unlock()
	open := Command{Op: "open", Thread: c.thread(""), Target: c.target("", ""), Config: config.file()}
	id, err := result[string](d.Call(ctx, open))
	c.id = id
	return c, err
}

// ID returns the client's id, a UUID. It is the first part of the owner ids of its threads.
func (c *Client) ID() string { return c.id }

// Thread is the current state of a Java thread.
type Thread struct {
	ID          int64  `json:"thread"`
	State       string `json:"state"` // a java.lang.Thread.State; an idle thread is WAITING
	Interrupted bool   `json:"interrupted"`
}

// Thread returns the state of the named thread. It does not wait for a command that the thread
// runs.
func (c *Client) Thread(ctx context.Context, name string) (Thread, error) {
	return result[Thread](c.call(ctx, Command{Op: "ids", Thread: c.thread(name)}))
}

// Owner returns the owner id of the named thread. It does not wait for a command that the thread
// runs.
func (c *Client) Owner(ctx context.Context, thread string) (string, error) {
	t, err := c.Thread(ctx, thread)
	return fmt.Sprintf("%s:%d", c.id, t.ID), err
}

// Interrupt interrupts the named thread. The next command of an idle thread starts interrupted.
func (c *Client) Interrupt(ctx context.Context, thread string) error {
	_, err := c.call(ctx, Command{Op: "interrupt", Thread: c.thread(thread)})
	return err
}

// Close shuts the client down. Its locks stay in Redis until they expire.
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

// Object returns an object of the given kind: lock, spin, nonreentrant, fair, nonreentrantfair,
// fenced, read, write, semaphore, permits or latch. Redisson 3 does not have the nonreentrant
// kinds.
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

// LockOf returns a lock of the given kind; see Object.
func (c *Client) LockOf(kind, name string) Lock { return Lock{c.Object(kind, name)} }

// MultiLock returns a RedissonMultiLock. The members may belong to other clients of the same
// driver.
func (c *Client) MultiLock(members ...Lock) Lock { return c.joint("multi", members) }

// RedLock returns a RedissonRedLock. The members may belong to other clients of the same driver.
func (c *Client) RedLock(members ...Lock) Lock { return c.joint("red", members) }

func (c *Client) joint(kind string, members []Lock) Lock {
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
