package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/fence"
	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// PostgreSQL refuses the orders of a holder that was stopped for longer than its lease.
func ExampleFences_Check() {
	fences := fence.SQL(fence.Postgres) // fences.Create(ctx, db) makes the table, once

	ship := func(ctx context.Context, db *sql.DB, orders *primitives.Lock) error {
		return orders.Do(ctx, func(ctx context.Context) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			// First in the transaction that writes.
			err = fences.Check(ctx, tx, orders.Name(), primitives.HoldFrom(ctx).Token())
			if err != nil {
				return err // ErrStale: a later holder has been there
			}
			_, err = tx.ExecContext(ctx, "UPDATE orders SET shipped = true WHERE id = $1", 42)
			if err != nil {
				return err
			}
			return tx.Commit()
		})
	}
	_ = ship // needs a database: ship(ctx, db, client.FencedLock("orders:42"))
}

// Redis refuses the value of an earlier holder.
func ExampleRedis() {
	server := locktest.Start() // or a real Redis
	defer server.Close()
	rdb := redis.NewClient(server.Options())
	defer rdb.Close()
	ctx := context.Background()

	earlier, later := int64(33), int64(34) // of hold.Token()
	fmt.Println(fence.Redis(rdb, "report", later).Set(ctx, "later", time.Hour))
	err := fence.Redis(rdb, "report", earlier).Set(ctx, "earlier", time.Hour)
	fmt.Println(errors.Is(err, fence.ErrStale), rdb.Get(ctx, "report").Val())
	// Output:
	// <nil>
	// true later
}
