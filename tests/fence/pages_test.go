package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/fence"
)

// numberOfPages is how many pages each test writes to. Each page has a fenced lock and a fence.
const numberOfPages = 8

// book is a store with pages, which package fence protects. Page i of a test is called "<test> i".
type book interface {
	// write writes a token to a page, if the fence lets it pass. It fails with errLate if the fence
	// has let it pass although a greater token has been written before.
	write(ctx context.Context, page string, token int64) error
	// written returns how many writes the page has got, or -1 if the store does not count them.
	written(ctx context.Context, page string) (int, error)
}

// errLate is the error of a write that the fence has let pass although a later holder has written
// before.
var errLate = errors.New("a stale write was accepted")

func late(token, before int64) error {
	return fmt.Errorf("%w: token %d came after token %d", errLate, token, before)
}

// sqlBook has its pages in the table page of a database.
type sqlBook struct {
	db     *sql.DB
	fences *fence.Fences
	update string
	read   string
}

func newSQLBook(of database, db *sql.DB) *sqlBook {
	b := &sqlBook{
		db:     db,
		fences: fence.SQL(of.dialect),
		update: "UPDATE page SET token = ?, writes = writes + 1 WHERE name = ? AND token <= ?",
		read:   "SELECT token, writes FROM page WHERE name = ?",
	}
	if of.numbered {
		b.update = "UPDATE page SET token = $1, writes = writes + 1 WHERE name = $2 AND token <= $3"
		b.read = "SELECT token, writes FROM page WHERE name = $1"
	}
	return b
}

func createPages(t *testing.T, db *sql.DB) {
	statements := []string{
		"CREATE TABLE page (name VARCHAR(40) PRIMARY KEY, token BIGINT NOT NULL, writes INTEGER NOT NULL)",
	}
	for _, test := range []string{lateWriters, stoppedProcesses} {
		for i := range numberOfPages {
			statements = append(statements, fmt.Sprintf("INSERT INTO page VALUES ('%s', 0, 0)", pageName(test, i)))
		}
	}
	for _, statement := range statements {
		_, err := db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
}

func (b *sqlBook) write(ctx context.Context, page string, token int64) error {
	tx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	err = b.fences.Check(ctx, tx, page, token)
	if err != nil {
		return err
	}
	result, err := tx.ExecContext(ctx, b.update, token, page, token)
	if err != nil {
		return err
	}
	updated, err := result.RowsAffected()
	if err != nil {
		return err
	}
	if updated == 1 {
		return tx.Commit()
	}
	var before, writes int64
	err = tx.QueryRowContext(ctx, b.read, page).Scan(&before, &writes)
	if err != nil {
		return err
	}
	return late(token, before)
}

func (b *sqlBook) written(ctx context.Context, page string) (int, error) {
	var token, writes int
	err := b.db.QueryRowContext(ctx, b.read, page).Scan(&token, &writes)
	return writes, err
}

// redisBook has its pages in Redis: strings, which are the tokens.
type redisBook struct{ rdb *redis.Client }

func (b redisBook) write(ctx context.Context, page string, token int64) error {
	w := &watched{Scripter: b.rdb, rdb: b.rdb, page: page}
	err := fence.Redis(w, page, token).Set(ctx, token, 0)
	if err == nil && w.before > token {
		return late(token, w.before)
	}
	return err
}

func (b redisBook) written(context.Context, string) (int, error) { return -1, nil }

// watched reads a page in the transaction that executes the script of package fence.
type watched struct {
	redis.Scripter

	rdb    *redis.Client
	page   string
	before int64
}

func (w *watched) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return w.run(ctx, func(tx redis.Pipeliner) *redis.Cmd { return tx.EvalSha(ctx, sha, keys, args...) })
}

func (w *watched) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return w.run(ctx, func(tx redis.Pipeliner) *redis.Cmd { return tx.Eval(ctx, script, keys, args...) })
}

func (w *watched) run(ctx context.Context, script func(tx redis.Pipeliner) *redis.Cmd) *redis.Cmd {
	tx := w.rdb.TxPipeline()
	read := tx.Get(ctx, w.page)
	cmd := script(tx)
	_, _ = tx.Exec(ctx) // each command has its error
	if before, err := read.Int64(); err == nil {
		w.before = before
	}
	return cmd
}

// startRedis starts a redis-server that ends with the test, and returns its address.
func startRedis(t *testing.T) string {
	t.Helper()
	port := freePort(t)
	server := exec.Command(program(t, "redis-server"), "--port", port, "--bind", "127.0.0.1", "--save", "")
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	defer func() { _ = rdb.Close() }()
	for rdb.Ping(t.Context()).Err() != nil {
		require.NoError(t, t.Context().Err())
		time.Sleep(10 * time.Millisecond)
	}
	return rdb.Options().Addr
}
