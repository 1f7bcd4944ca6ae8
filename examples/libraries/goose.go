package libraries

import (
	"context"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/redlatch/redlatch/primitives"
)

// Migrate applies the migrations of a database on one host. The others wait, and then find nothing
// to do. It works for databases that have no lock of their own.
func Migrate(ctx context.Context, lock *primitives.Lock, migrations *goose.Provider) (applied int, err error) {
	err = lock.Do(ctx, func(ctx context.Context) error {
		results, err := migrations.Up(ctx)
		applied = len(results)
		return err
	}, primitives.WithWait(10*time.Minute))
	return applied, err
}
