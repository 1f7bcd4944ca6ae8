package contend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/primitives"
)

const redlatchModule = "github.com/redlatch/redlatch"

// cohortLimit is how long a client's workers pass a Cohort lock on without a command.
const cohortLimit = 5 * time.Millisecond

// lingerLimit is how long a client keeps a Linger lock after a release.
const lingerLimit = 5 * time.Millisecond

// closeTimeout bounds Client.Close, which releases the remaining holds.
const closeTimeout = 5 * time.Second

// redlatchClient is this library. The workers of a client share its handles, or make a new handle
// for each acquisition. Users do both.
type redlatchClient struct {
	rdb       redis.UniversalClient
	client    *primitives.Client
	primitive Primitive
	newHandle bool
	handles   map[string]redlatchLocker // by name; the write side of a read-write lock
	readers   map[string]redlatchLocker // by name; the read side of a read-write lock
}

func openRedlatch(_ context.Context, c ClientConfig) (Client, error) {
	rdb := c.Dial()
	var options []primitives.ClientOption
	if c.Workload.TTL > 0 {
		options = append(options, primitives.WithDefaults(primitives.WithWatchdog(c.Workload.TTL)))
	}
	client, err := primitives.New(rdb, options...)
	if err != nil {
		_ = rdb.Close()
		return nil, fmt.Errorf("contend: %w", err)
	}
	return &redlatchClient{
		rdb: rdb, client: client, primitive: c.Workload.Primitive, newHandle: c.Workload.NewHandle,
		handles: map[string]redlatchLocker{}, readers: map[string]redlatchLocker{},
	}, nil
}

// initRedlatch initializes the permits of a semaphore.
func initRedlatch(ctx context.Context, rdb redis.UniversalClient, w Workload) error {
	if w.Primitive != Semaphore && w.Primitive != Permits {
		return nil
	}
	client, err := primitives.New(rdb)
	if err != nil {
		return fmt.Errorf("contend: %w", err)
	}
	if w.Primitive == Semaphore {
		_, err = client.Semaphore(w.Name).Init(ctx, w.Permits)
	} else {
		_, err = client.PermitExpirableSemaphore(w.Name).Init(ctx, w.Permits)
	}
	return errors.Join(err, client.Close(ctx))
}

func (c *redlatchClient) Locker(_ context.Context, name string, read bool) (Locker, error) {
	if c.newHandle {
		return redlatchMaker{c, name, read}, nil
	}
	if _, ok := c.handles[name]; !ok {
		c.handles[name], c.readers[name] = c.newHandles(name)
	}
	if read {
		return c.readers[name], nil
	}
	return c.handles[name], nil
}

func (c *redlatchClient) newHandles(name string) (handle, reader redlatchLocker) {
	switch c.primitive {
	case Fair:
		handle.redlatchAcquirer = c.client.FairLock(name)
	case Cohort:
		handle.redlatchAcquirer = c.client.Lock(name, primitives.WithCohort(cohortLimit))
	case Linger:
		handle.redlatchAcquirer = c.client.Lock(name, primitives.WithLinger(lingerLimit))
	case Three:
		var members []*primitives.Lock
		for _, member := range threeOf(name) {
			members = append(members, c.client.Lock(member))
		}
		handle.redlatchAcquirer = primitives.NewMultiLock(members)
	case RW:
		rw := c.client.RWLock(name)
		handle.redlatchAcquirer, reader.redlatchAcquirer = rw.Writer(), rw.Reader()
	case Semaphore:
		handle.redlatchAcquirer = c.client.Semaphore(name)
	case Permits:
		handle.redlatchAcquirer = c.client.PermitExpirableSemaphore(name)
	default:
		handle.redlatchAcquirer = c.client.Lock(name)
	}
	return handle, reader
}

// redlatchMaker makes a handle for each acquisition.
type redlatchMaker struct {
	client *redlatchClient
	name   string
	read   bool
}

func (m redlatchMaker) Acquire(ctx context.Context) (Hold, error) {
	handle, reader := m.client.newHandles(m.name)
	if m.read {
		handle = reader
	}
	return handle.Acquire(ctx)
}

func (c *redlatchClient) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return errors.Join(c.client.Close(ctx), c.rdb.Close())
}

// redlatchAcquirer is implemented by all handles of the library.
type redlatchAcquirer interface {
	Acquire(ctx context.Context, opts ...primitives.Option) (*primitives.Hold, error)
}

type redlatchLocker struct{ redlatchAcquirer }

func (l redlatchLocker) Acquire(ctx context.Context) (Hold, error) {
	hold, err := l.redlatchAcquirer.Acquire(ctx)
	if err != nil {
		return nil, err // not hold: a nil *primitives.Hold would make a non-nil Hold
	}
	return hold, nil
}
