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

// closeLimit is how long a client waits for what is still held.
const closeLimit = 5 * time.Second

// redlatch is this library. Its handles are shared by a client's workers, as they are meant to be.
type redlatch struct {
	rdb       *redis.Client
	client    *primitives.Client
	primitive Primitive
	handles   map[string]redlatchLocker // by name, of the exclusive or only side
	readers   map[string]redlatchLocker
}

func openRedlatch(_ context.Context, s Setting) (Client, error) {
	rdb := s.Dial()
	var options []primitives.ClientOption
	if s.Workload.TTL > 0 {
		options = append(options, primitives.WithDefaults(primitives.WithWatchdog(s.Workload.TTL)))
	}
	client, err := primitives.New(rdb, options...)
	if err != nil {
		_ = rdb.Close()
		return nil, fmt.Errorf("contend: %w", err)
	}
	return &redlatch{rdb, client, s.Workload.Primitive, map[string]redlatchLocker{}, map[string]redlatchLocker{}}, nil
}

func prepareRedlatch(ctx context.Context, rdb *redis.Client, w Workload) error {
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

func (c *redlatch) Locker(_ context.Context, name string, read bool) (Locker, error) {
	if _, ok := c.handles[name]; !ok {
		c.handles[name], c.readers[name] = c.open(name)
	}
	if read {
		return c.readers[name], nil
	}
	return c.handles[name], nil
}

func (c *redlatch) open(name string) (handle, reader redlatchLocker) {
	switch c.primitive {
	case Fair:
		handle.redlatchAcquirer = c.client.FairLock(name)
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

func (c *redlatch) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	return errors.Join(c.client.Close(ctx), c.rdb.Close())
}

// redlatchAcquirer is what all handles can do.
type redlatchAcquirer interface {
	Acquire(ctx context.Context, opts ...primitives.Option) (*primitives.Hold, error)
}

type redlatchLocker struct{ redlatchAcquirer }

func (l redlatchLocker) Acquire(ctx context.Context) (Held, error) {
	hold, err := l.redlatchAcquirer.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return hold, nil
}
