package libraries_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/pressly/goose/v3"
	"github.com/redis/go-redis/v9"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redlatch/redlatch/examples/libraries"
	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// host is a client of its own, as each host has one.
func host(t *testing.T, server *locktest.Server) *primitives.Client {
	t.Helper()
	rdb := redis.NewClient(server.Options())
	client, err := primitives.New(rdb)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, client.Close(ctx))
		require.NoError(t, rdb.Close())
	})
	return client
}

// guard counts how often a section ran, and fails if two ran at a time.
type guard struct {
	inside, ran atomic.Int32
	overlap     atomic.Bool
}

func (g *guard) section() {
	if g.inside.Add(1) > 1 {
		g.overlap.Store(true)
	}
	time.Sleep(20 * time.Millisecond)
	g.ran.Add(1)
	g.inside.Add(-1)
}

func TestCronRunsAJobOnOneHost(t *testing.T) {
	t.Parallel()
	server := locktest.NewServer(t)
	var g guard
	for range 3 {
		hosts := cron.New(cron.WithSeconds())
		lock := host(t, server).Lock("report")
		_, err := hosts.AddJob("* * * * * *", libraries.OnOneHost(t.Context(), lock, func(context.Context) error {
			g.section()
			return nil
		}))
		require.NoError(t, err)
		hosts.Start()
		defer func() { <-hosts.Stop().Done() }()
	}
	require.Eventually(t, func() bool { return g.ran.Load() > 0 }, 10*time.Second, time.Millisecond)
	time.Sleep(2500 * time.Millisecond) // two more ticks, within the minimum hold
	require.EqualValues(t, 1, g.ran.Load())
}

func TestAsynqRunsTasksOfOneKeyOneAtATime(t *testing.T) {
	t.Parallel()
	server := locktest.NewServer(t)
	options := asynq.RedisClientOpt{Addr: server.Addr()}
	var g guard
	mux := asynq.NewServeMux()
	mux.Use(libraries.OneAtATime(host(t, server), func(task *asynq.Task) string { return string(task.Payload()) },
		primitives.WithWait(time.Minute)))
	mux.HandleFunc("ship", func(context.Context, *asynq.Task) error {
		g.section()
		return nil
	})
	queue := asynq.NewClient(options)
	defer func() { require.NoError(t, queue.Close()) }()
	const tasks = 8
	for range tasks {
		_, err := queue.Enqueue(asynq.NewTask("ship", []byte("customer:7")))
		require.NoError(t, err)
	}
	workers := asynq.NewServer(options, asynq.Config{Concurrency: 4, LogLevel: asynq.FatalLevel})
	require.NoError(t, workers.Start(mux))
	defer workers.Shutdown()
	require.Eventually(t, func() bool { return g.ran.Load() == tasks }, 30*time.Second, 10*time.Millisecond)
	require.False(t, g.overlap.Load())
}

func TestRiverSnoozesAJobWhoseLockIsBusy(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "river.db")
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=journal_mode(WAL)&_txlock=immediate")
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	db.SetMaxOpenConns(1)
	driver := riversqlite.New(db)
	migrator, err := rivermigrate.New(driver, nil)
	require.NoError(t, err)
	_, err = migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil)
	require.NoError(t, err)

	var g guard
	locks := host(t, locktest.NewServer(t))
	workers := river.NewWorkers()
	river.AddWorker(workers, &libraries.ShipWorker{Locks: locks, Ship: func(context.Context, string) error {
		g.section()
		return nil
	}})
	client, err := river.NewClient(driver, &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4}},
		Workers: workers, FetchPollInterval: 100 * time.Millisecond,
	})
	require.NoError(t, err)
	held, err := locks.Lock("customer:7").Acquire(t.Context())
	require.NoError(t, err)
	for range 3 {
		_, err = client.Insert(t.Context(), libraries.ShipArgs{Customer: "7"}, nil)
		require.NoError(t, err)
	}
	require.NoError(t, client.Start(t.Context()))
	defer func() { require.NoError(t, client.Stop(context.WithoutCancel(t.Context()))) }()
	time.Sleep(500 * time.Millisecond)
	require.Zero(t, g.ran.Load(), "somebody else holds the lock")
	require.NoError(t, held.Release(t.Context()))
	require.Eventually(t, func() bool { return g.ran.Load() == 3 }, 60*time.Second, 10*time.Millisecond)
	require.False(t, g.overlap.Load())
}

func TestRequestsForOneKeyAreServedOneAtATime(t *testing.T) {
	t.Parallel()
	server := locktest.NewServer(t)
	var g guard
	key := func(r *http.Request) string { return "cart:" + r.URL.Path }
	handler := libraries.Exclusive(host(t, server), key, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		g.section()
		w.WriteHeader(http.StatusNoContent)
	}))
	status := func(path string) int {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil))
		return w.Code
	}
	var requests sync.WaitGroup
	var failed atomic.Int32
	for range 5 {
		requests.Go(func() {
			if status("/7") != http.StatusNoContent {
				failed.Add(1)
			}
		})
	}
	requests.Wait()
	require.Zero(t, failed.Load())
	require.EqualValues(t, 5, g.ran.Load())
	require.False(t, g.overlap.Load())

	held, err := host(t, server).Lock("cart:/8").Acquire(t.Context())
	require.NoError(t, err)
	require.Equal(t, http.StatusConflict, status("/8"))
	require.NoError(t, held.Release(t.Context()))
	server.Partition(true)
	require.Equal(t, http.StatusServiceUnavailable, status("/9"))
	server.Partition(false)
}

func TestMigrationsAreAppliedOnce(t *testing.T) {
	t.Parallel()
	server := locktest.NewServer(t)
	file := filepath.Join(t.TempDir(), "shop.db")
	files := fstest.MapFS{
		"1_orders.sql":    {Data: []byte("-- +goose Up\nCREATE TABLE orders (id INTEGER);")},
		"2_customers.sql": {Data: []byte("-- +goose Up\nCREATE TABLE customers (id INTEGER);")},
	}
	var hosts sync.WaitGroup
	var applied atomic.Int32
	errs := make([]error, 3)
	for i := range errs {
		db, err := sql.Open("sqlite", file)
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		migrations, err := goose.NewProvider(goose.DialectSQLite3, db, files)
		require.NoError(t, err)
		lock := host(t, server).Lock("migration")
		hosts.Go(func() {
			var n int
			n, errs[i] = libraries.Migrate(t.Context(), lock, migrations)
			applied.Add(int32(n))
		})
	}
	hosts.Wait()
	require.NoError(t, errors.Join(errs...))
	require.EqualValues(t, len(files), applied.Load())
}
