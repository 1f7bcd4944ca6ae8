package fence

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redlatch/redlatch/fence"
)

// database is a kind of database, and how a test gets an empty one.
type database struct {
	name    string
	dialect fence.Dialect
	open    func(t *testing.T) (db *sql.DB, dsn string) // dsn is for other processes
	driver  string
	// numbered: the parameters of its statements are $1, $2, and not question marks.
	numbered bool
}

var databases = []database{
	{"postgresql", fence.Postgres, openPostgres, "pgx", true},
	{"mariadb", fence.MySQL, openMariaDB, "mysql", false},
	{"sqlite", fence.SQLite, openSQLite, "sqlite", true},
}

// program returns the path of a server's program, or skips the test.
func program(t *testing.T, name string, patterns ...string) string {
	t.Helper()
	found, err := exec.LookPath(name)
	if err == nil {
		return found
	}
	for _, pattern := range patterns {
		if paths, _ := filepath.Glob(pattern); len(paths) > 0 {
			return slices.Max(paths)
		}
	}
	t.Skipf("%s is not installed: apt-get install postgresql mariadb-server", name)
	return ""
}

// freePort returns a port on which nobody listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// as makes a command run as another user if the test runs as root, which servers refuse. The user
// owns dir.
func as(t *testing.T, name, dir string, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	if os.Getuid() != 0 {
		return cmd
	}
	owner, err := user.Lookup(name)
	require.NoError(t, err)
	uid, err := strconv.Atoi(owner.Uid)
	require.NoError(t, err)
	gid, err := strconv.Atoi(owner.Gid)
	require.NoError(t, err)
	require.NoError(t, os.Chown(dir, uid, gid))
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)},
	}
	return cmd
}

// serverDir returns a directory that another user can reach, unlike t.TempDir.
func serverDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fence-") //nolint:usetesting // see above
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// serve starts a server that ends with the test, and waits until db answers.
func serve(t *testing.T, cmd *exec.Cmd, stop os.Signal, db *sql.DB) *sql.DB {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = db.Close()
		_ = cmd.Process.Signal(stop)
		_ = cmd.Wait()
		_ = log.Close()
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		err := db.PingContext(ctx)
		if err == nil {
			return db
		}
		if ctx.Err() != nil {
			text, _ := os.ReadFile(log.Name())
			require.FailNow(t, "the server does not answer", "%v\n%s", err, text)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// run runs a command to its end.
func run(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", cmd, output)
}

func openPostgres(t *testing.T) (*sql.DB, string) {
	initdb := program(t, "initdb", "/usr/lib/postgresql/*/bin/initdb")
	server := filepath.Join(filepath.Dir(initdb), "postgres")
	dir, port := serverDir(t), freePort(t)
	data := filepath.Join(dir, "data")
	run(t, as(t, "postgres", dir, exec.Command(initdb, "-D", data, "-U", "test", "-A", "trust", "--no-sync")))
	dsn := fmt.Sprintf("postgres://test@127.0.0.1:%s/postgres", port)
	db, err := sql.Open("pgx", dsn)
	require.NoError(t, err)
	db.SetMaxOpenConns(20)
	return serve(t, as(t, "postgres", dir, exec.Command(server, "-D", data, "-p", port, "-k", dir,
		"-c", "listen_addresses=127.0.0.1", "-c", "fsync=off")), os.Interrupt, db), dsn
}

func openMariaDB(t *testing.T) (*sql.DB, string) {
	install := program(t, "mariadb-install-db")
	server := program(t, "mariadbd", "/usr/sbin/mariadbd")
	dir, port := serverDir(t), freePort(t)
	data := filepath.Join(dir, "data")
	run(t, as(t, "mysql", dir, exec.Command(install, "--no-defaults", "--datadir="+data, "--skip-test-db",
		"--auth-root-authentication-method=normal")))
	address := fmt.Sprintf("root@tcp(127.0.0.1:%s)/mysql", port)
	db, err := sql.Open("mysql", address)
	require.NoError(t, err)
	db.SetMaxOpenConns(20)
	return serve(t, as(t, "mysql", dir, exec.Command(server, "--no-defaults", "--datadir="+data, "--port="+port,
			"--bind-address=127.0.0.1", "--socket="+filepath.Join(dir, "socket"), "--innodb-flush-log-at-trx-commit=0",
			"--pid-file="+filepath.Join(dir, "pid"))), syscall.SIGTERM, db),
		address + "?interpolateParams=true" // a third of the messages
}

func openSQLite(t *testing.T) (*sql.DB, string) {
	file := filepath.Join(t.TempDir(), "fences.db")
	dsn := file + "?_pragma=busy_timeout(60000)&_pragma=synchronous(off)"
	db, err := sql.Open("sqlite", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db, dsn
}
