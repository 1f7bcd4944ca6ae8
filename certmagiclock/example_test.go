//go:build !race

package certmagiclock_test

import (
	"context"
	"fmt"

	"github.com/caddyserver/certmagic"
	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/certmagiclock"
	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// storage keeps certificates in files, which hosts share, and locks in Redis.
type storage struct {
	certmagic.Storage
	*certmagiclock.Locker
}

// Lock and Unlock are methods of both fields, so a storage says which it means.
func (s storage) Lock(ctx context.Context, name string) error   { return s.Locker.Lock(ctx, name) }
func (s storage) Unlock(ctx context.Context, name string) error { return s.Locker.Unlock(ctx, name) }

func ExampleNewLocker() {
	server := locktest.Start() // or a real Redis
	defer server.Close()
	rdb := redis.NewClient(server.Options())
	defer rdb.Close()
	client, err := primitives.New(rdb, primitives.WithPrefix("certmagic:"))
	if err != nil {
		panic(err)
	}
	defer client.Close(context.Background())

	certmagic.Default.Storage = storage{&certmagic.FileStorage{Path: "certificates"}, certmagiclock.NewLocker(client)}
	ctx := context.Background()
	fmt.Println(certmagic.Default.Storage.Lock(ctx, "issue_cert_example.com"))
	fmt.Println(certmagic.Default.Storage.Unlock(ctx, "issue_cert_example.com"))
	// Output:
	// <nil>
	// <nil>
}
