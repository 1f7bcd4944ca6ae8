// Package redlatch is the documentation of the module. The code is in its packages; most programs
// need the first one only:
//
//	import "github.com/redlatch/redlatch/primitives"
//
// redlatch coordinates processes with Redis: locks (plain, fair, fenced, read-write, several as
// one, a majority of servers), semaphores, permits with a lease, count-down latches, and elections.
// It shares locks, semaphores and latches with Java, because it speaks the wire format of Redisson.
//
// A lock is held while a function runs, and its loss is reported in time:
//
//	client, err := primitives.New(rdb) // any client of github.com/redis/go-redis/v9
//	...
//	err = client.Lock("orders:42").Do(ctx, func(ctx context.Context) error {
//		return ship(ctx, order) // ctx ends, with cause ErrLost, if the lock is lost
//	}, primitives.WithWait(2*time.Second))
//
// The packages:
//
//   - primitives: the locks, semaphores, latches and elections.
//   - fence: lets a store in PostgreSQL, MySQL, SQLite or Redis refuse writers whose lock is over.
//   - eventlog: writes what happens to a service's locks to files, for redlatch timeline.
//   - locktest: a server inside a test, and holds that are lost on demand.
//   - cmd/redlatch: a command that runs a program under a lock, and shows who holds what.
//
// Modules of their own, for users of other libraries:
//
//   - otel and prometheus: traces and metrics.
//   - gocronlock: jobs of gocron that run on one host at a time.
//   - certmagiclock: locks for the storages of certmagic and Caddy.
//
// The promises and their limits are on the pages of the repository, from
// https://github.com/redlatch/redlatch/blob/main/doc/guarantees.md on.
package redlatch
