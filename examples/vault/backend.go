// Package vault gives the storage of HashiCorp Vault high availability by locks of redlatch: of
// several servers that share a storage, one is active, and the others know its address. It is an
// example: copy it, and adapt it.
package vault

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/vault/sdk/physical"
	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/fence"
	"github.com/redlatch/redlatch/primitives"
)

// Backend is a storage of Vault whose active server a lock decides.
type Backend struct {
	physical.Backend // of the data

	Locks  *primitives.Client
	Redis  redis.UniversalClient // that Locks uses
	Prefix string                // of the names of locks
}

var _ physical.HABackend = (*Backend)(nil)

// HAEnabled says that several servers may share the storage.
func (b *Backend) HAEnabled() bool { return true }

// LockWith returns a lock for a server whose address is value.
func (b *Backend) LockWith(key, value string) (physical.Lock, error) {
	name := b.Prefix + key
	return &Lock{lock: b.Locks.FencedLock(name), redis: b.Redis, address: name + ":address", value: value}, nil
}

// Lock is the lock of the active server. Vault does not call its methods at the same time.
type Lock struct {
	lock    *primitives.Lock
	redis   redis.UniversalClient
	address string // the key of the active server's address
	value   string
	hold    *primitives.Hold
}

// answering is how long Redis may take to answer.
const answering = 10 * time.Second

// Lock waits until this server is active. The channel is closed when it no longer is: it must stop
// at once then. Lock returns nil and no error if stop is closed before.
func (l *Lock) Lock(stop <-chan struct{}) (<-chan struct{}, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	hold, err := l.lock.Acquire(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, nil //nolint:nilnil // Vault asks for it
	}
	if err != nil {
		return nil, err
	}
	// A server that is late here cannot overwrite the address of the next one.
	value := strconv.FormatInt(hold.Token(), 10) + " " + l.value
	if err := fence.Redis(l.redis, l.address, hold.Token()).Set(hold.Context(), value, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("announce the active server: %w", err), hold.Release(context.Background()))
	}
	l.hold = hold
	return hold.Context().Done(), nil
}

// Unlock lets another server become active. A lock that was lost is not unlocked, and that is no
// error.
func (l *Lock) Unlock() error {
	hold := l.hold
	if hold == nil {
		return nil
	}
	l.hold = nil
	ctx, cancel := context.WithTimeout(context.Background(), answering)
	defer cancel()
	if err := hold.Release(ctx); !errors.Is(err, primitives.ErrLost) {
		return err
	}
	return nil
}

// Value returns whether any server is active, and its address. The address is "" while a new one
// has not announced it.
func (l *Lock) Value() (held bool, value string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), answering)
	defer cancel()
	info, err := l.lock.Info(ctx)
	if err != nil || len(info.Holders) == 0 {
		return false, "", err
	}
	announced, err := l.redis.Get(ctx, l.address).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return false, "", err
	}
	token, address, _ := strings.Cut(announced, " ")
	if token != strconv.FormatInt(info.Token, 10) {
		return true, "", nil
	}
	return true, address, nil
}
