package fence

import (
	"context"
	"database/sql"
	"fmt"
)

// Dialect is a kind of SQL database.
type Dialect uint8

// The dialects.
const (
	Postgres Dialect = iota + 1
	MySQL            // and MariaDB; the table uses InnoDB
	SQLite           // 3.24 or later
)

// longestResource is the length of the column in MySQL, in bytes. InnoDB allows keys of 767 bytes
// everywhere.
const longestResource = 700

// statements are what a dialect executes. Resources are bytes, so that no collation treats two of
// them as equal.
type statements struct {
	create string
	raise  string // raises a fence, or makes one
	// read returns the fence, and locks its row. It is "" if the number of rows that raise affects
	// says whether the token was refused.
	read string
}

// upsert raises a fence in Postgres and SQLite. It affects no row if the fence is greater. With
// READ COMMITTED, and in SQLite, the comparison waits for the end of a concurrent transaction that
// has raised the fence.
const upsert = `INSERT INTO redlatch_fences (resource, token) VALUES ($1, $2)
ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE redlatch_fences.token <= excluded.token`

var dialects = map[Dialect]statements{
	Postgres: {
		create: `CREATE TABLE IF NOT EXISTS redlatch_fences (resource bytea PRIMARY KEY, token bigint NOT NULL)`,
		raise:  upsert,
	},
	MySQL: {
		create: `CREATE TABLE IF NOT EXISTS redlatch_fences
(resource VARBINARY(700) NOT NULL PRIMARY KEY, token BIGINT NOT NULL) ENGINE=InnoDB`,
		// The number of affected rows depends on a flag of the connection, so the fence is read.
		// The locking read sees the latest committed row, whatever snapshot the transaction has.
		raise: `INSERT INTO redlatch_fences (resource, token) VALUES (?, ?)
ON DUPLICATE KEY UPDATE token = GREATEST(token, VALUES(token))`,
		read: `SELECT token FROM redlatch_fences WHERE resource = ? FOR UPDATE`,
	},
	SQLite: {
		create: `CREATE TABLE IF NOT EXISTS redlatch_fences (resource BLOB PRIMARY KEY, token INTEGER NOT NULL)`,
		raise:  upsert,
	},
}

// Fences are the fences of a SQL database. They are in the table redlatch_fences.
type Fences struct{ dialect Dialect }

// SQL returns the fences of a database of that dialect. It does no I/O.
func SQL(d Dialect) *Fences { return &Fences{d} }

func (f *Fences) statements() (statements, error) {
	s, ok := dialects[f.dialect]
	if !ok {
		return s, fmt.Errorf("fence: unknown dialect %d", f.dialect)
	}
	return s, nil
}

// Create creates the table, unless it exists. Call it once, as with other migrations. Several
// processes may call it at the same time.
func (f *Fences) Create(ctx context.Context, db *sql.DB) error {
	s, err := f.statements()
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, s.create)
	if err != nil {
		_, err = db.ExecContext(ctx, s.create) // Postgres fails if another process creates the table at the same time
	}
	if err != nil {
		return fmt.Errorf("fence: create table: %w", err)
	}
	return nil
}

// Check raises the fence of the resource to token, or fails with [ErrStale] if a greater one has
// been there. The same token passes again. Call Check first in the transaction that writes. The
// fence's row is locked until the transaction ends, so no other holder's transaction comes between
// the check and the write. If the transaction is rolled back, so is the fence.
//
// After any error, roll back. Errors other than ErrStale are the database's, such as a deadlock or,
// with isolation stricter than READ COMMITTED, a serialization failure. The transaction may then be
// repeated while the lock is held.
//
// A resource is 1 to 700 bytes long.
func (f *Fences) Check(ctx context.Context, tx *sql.Tx, resource string, token int64) error {
	s, err := f.statements()
	if err == nil {
		err = check(resource, token)
	}
	if err == nil && len(resource) > longestResource {
		err = fmt.Errorf("fence: the name of a resource has %d bytes (at most %d)", len(resource), longestResource)
	}
	if err != nil {
		return err
	}
	name := []byte(resource)
	result, err := tx.ExecContext(ctx, s.raise, name, token)
	if err != nil {
		return fmt.Errorf("fence: %q: %w", resource, err)
	}
	var isStale bool
	if s.read == "" {
		var raised int64
		raised, err = result.RowsAffected()
		isStale = raised == 0
	} else {
		var latest int64
		err = tx.QueryRowContext(ctx, s.read, name).Scan(&latest)
		isStale = latest > token
	}
	switch {
	case err != nil:
		return fmt.Errorf("fence: %q: %w", resource, err)
	case isStale:
		return stale(resource, token)
	}
	return nil
}
