package contract

import (
	"context"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// step is by how much the clock of a server is set back.
const step = time.Hour

// setBack gives all leases of a name what they get when the server's clock is set back: each lasts
// longer.
func setBack(t testing.TB, rdb *redis.Client, name string) {
	for _, key := range rdb.Keys(t.Context(), "*"+name+"*").Val() {
		if rdb.Type(t.Context(), key).Val() == "zset" {
			for _, id := range rdb.ZRange(t.Context(), key, 0, -1).Val() {
				require.NoError(t, rdb.ZIncrBy(t.Context(), key, float64(step.Milliseconds()), id).Err())
			}
		} else if left := rdb.PTTL(t.Context(), key).Val(); left > 0 {
			require.NoError(t, rdb.PExpire(t.Context(), key, left+step).Err())
		}
	}
}

// longestTTL is how long the lease of a name lasts.
func longestTTL(t testing.TB, c *primitives.Client, k kinds.Kind, name string) time.Duration {
	info, err := k.Open(c, name).(interface {
		Info(ctx context.Context) (primitives.Info, error)
	}).Info(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, info.Holders)
	longest := info.TTL
	for _, h := range info.Holders {
		longest = max(longest, h.TTL)
	}
	return longest
}

// A renewal finds that the lease lasts longer than was promised, and the client shortens it.
// Otherwise nobody would get the lock of a holder that crashes for as long as the clock was set
// back.
func TestLeaseEndsInTimeAfterTheClockWasSetBack(t *testing.T) {
	for _, k := range kinds.Leased() {
		for _, tt := range []struct {
			name     string
			promised time.Duration
			opts     []primitives.Option
		}{
			{"private", fixture.RenewedTTL, nil},
			{"of an owner", fixture.RenewedTTL, []primitives.Option{primitives.WithOwner("somebody:7")}},
			{"extended", time.Minute, nil},
		} {
			t.Run(k.Name+" "+tt.name, func(t *testing.T) {
				t.Parallel()
				redistest.Each(t, func(t *testing.T, s *redistest.Server) {
					name, rdb := redistest.Name(t), s.Client(t)
					c := fixture.NewClient(t, rdb)
					opts := append(tt.opts, primitives.WithWatchdog(fixture.RenewedTTL))
					held := fixture.Acquire(t, t.Context(), k.One(t, c, name), opts...)
					if tt.promised > fixture.RenewedTTL {
						require.NoError(t, held.Extend(t.Context(), tt.promised))
					}
					setBack(t, rdb, name)
					require.Greater(t, longestTTL(t, c, k, name), step)
					var left time.Duration
					redistest.WaitFor(t, fixture.Soon, func() bool {
						left = longestTTL(t, c, k, name)
						return left < step/2
					}, "the lease is short again")
					require.LessOrEqual(t, left, tt.promised+time.Second)
					if tt.promised > fixture.RenewedTTL {
						require.Greater(t, left, tt.promised/2, "the promised time stays")
					}
					require.NoError(t, held.Check(t.Context()))
					require.NoError(t, held.Release(t.Context()))
				})
			})
		}
	}
}

// Others have longer leases: those stay.
func TestRenewalShortensNoLeaseOfOthers(t *testing.T) {
	shared := primitives.WithOwner("somebody:8")
	for _, tt := range []struct {
		name string
		open func(c *primitives.Client, name string) *primitives.Lock
		opts []primitives.Option
	}{
		{
			"lock", func(c *primitives.Client, name string) *primitives.Lock { return c.Lock(name) },
			[]primitives.Option{shared},
		},
		{"reader of one id", func(c *primitives.Client, name string) *primitives.Lock {
			return c.RWLock(name).Reader()
		}, []primitives.Option{shared}},
		{"readers", func(c *primitives.Client, name string) *primitives.Lock { return c.RWLock(name).Reader() }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				name, rdb := redistest.Name(t), s.Client(t)
				a, b := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
				long := append(tt.opts, primitives.WithLease(time.Hour))
				require.NoError(t, fixture.ErrOf(tt.open(a, name).Acquire(t.Context(), long...)))
				renewed := append(tt.opts, primitives.WithWatchdog(900*time.Millisecond)) //nolint:gocritic // a new slice
				held := fixture.Acquire(t, t.Context(), tt.open(b, name), renewed...)
				time.Sleep(1200 * time.Millisecond) // at least two renewals
				require.Greater(t, rdb.PTTL(t.Context(), name).Val(), 50*time.Minute)
				require.NoError(t, held.Release(t.Context()))
				require.Greater(t, rdb.PTTL(t.Context(), name).Val(), 50*time.Minute)
			})
		})
	}
}

// The command that shortens a lease comes late, or meets others: then it does nothing. Acquisitions
// with WithOwner have counts of one field: another one may have a longer lease, although the counts
// are as many as before.
func TestLateShorteningDoesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, name := s.Client(t), redistest.Name(t)
		run := scripts.NewRunner(rdb, 0)
		defer run.Close()
		counts, hold := "redlatch_shared_counts:{"+name+"}", "{"+name+"}:me:rwlock_timeout:1"
		keys := scripts.Keys{Main: name, Channel: "c:{" + name + "}", SharedCounts: counts, Line: "l:{" + name + "}"}
		for _, tt := range []struct {
			name   string
			counts int64
			seen   time.Duration
			owners string // the memory key of the acquisition with WithOwner that has the count; "": it is private
			asked  string // that of the command
			want   int64
		}{
			{"in time", 1, 0, "", "", 1},
			{"late", 1, -1001 * time.Millisecond, "", "", 2},
			{"before it was seen", 1, time.Minute, "", "", 2},
			{"another count", 2, 0, "", "", 2},
			{"of an owner", 1, 0, "mine", "mine", 1},
			{"another acquisition of the owner", 1, 0, "another", "mine", 0},
			{"of an owner whose count Redis does not know", 1, 0, "", "mine", 0},
			{"a private count beside that of an owner", 1, 0, "another", "", 2},
		} {
			now := rdb.Time(t.Context()).Val()
			seenAt := now.Add(tt.seen).UnixMilli()
			for kind, shorten := range map[string]func() (scripts.Number, error){
				"lock": func() (scripts.Number, error) {
					return scripts.LockShorten{
						Keys: &keys, MemoryKey: tt.asked, Field: "me", IsShared: tt.asked != "", TTL: 30 * time.Second,
						Counts: tt.counts, SeenAt: seenAt,
					}.Do(t.Context(), run.Sender())
				},
				"reader": func() (scripts.Number, error) {
					return scripts.RWLockReadShorten{
						Keys: &keys, MemoryKey: tt.asked, HoldKey: hold, Owner: "me", IsShared: tt.asked != "",
						TTL: 30 * time.Second, Counts: tt.counts, SeenAt: seenAt,
					}.Do(t.Context(), run.Sender())
				},
			} {
				what := kind + " " + tt.name
				require.NoError(t, rdb.Del(t.Context(), name, counts, hold).Err())
				require.NoError(t, rdb.HSet(t.Context(), name, "me", 1).Err())
				require.NoError(t, rdb.PExpire(t.Context(), name, time.Hour).Err())
				if kind == "reader" {
					require.NoError(t, rdb.HSet(t.Context(), name, "mode", "read").Err())
					require.NoError(t, rdb.Set(t.Context(), hold, 1, time.Hour).Err())
				}
				if tt.owners != "" {
					sum := sha1.Sum([]byte(tt.owners))
					require.NoError(t, rdb.HSet(t.Context(), counts, "me", hex.EncodeToString(sum[:])[:16]+" ").Err())
				}
				got, err := shorten()
				require.NoError(t, err)
				require.Equal(t, tt.want, got.Number, what)
				require.Equal(t, tt.want == 1, rdb.PTTL(t.Context(), name).Val() <= 30*time.Second, what)
			}
		}
	})
}

// clockShim is a library in C that a redis-server is started with. It adds the seconds in a file to
// the time.
const clockShim = `
#define _GNU_SOURCE
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>
#include <sys/mman.h>
#include <fcntl.h>
#include <stdlib.h>
static volatile long *off;
static void __attribute__((constructor)) init(void) {
  const char *f = getenv("CLOCK_OFFSET");
  int fd = f ? open(f, O_RDWR) : -1;
  if (fd < 0) return;
  void *p = mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
  if (p != MAP_FAILED) off = p;
  close(fd);
}
static long seconds(void) { return off ? *off : 0; }
int gettimeofday(struct timeval *tv, void *tz) {
  struct timespec ts;
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &ts);
  tv->tv_sec = ts.tv_sec + seconds();
  tv->tv_usec = ts.tv_nsec / 1000;
  return 0;
}
int clock_gettime(clockid_t c, struct timespec *ts) {
  int r = syscall(SYS_clock_gettime, c, ts);
  if (r == 0 && c == CLOCK_REALTIME) ts->tv_sec += seconds();
  return r;
}
time_t time(time_t *t) {
  struct timeval tv;
  gettimeofday(&tv, 0);
  if (t) *t = tv.tv_sec;
  return tv.tv_sec;
}
`

// The clock of a real server is set back by a minute. The holder renews, and crashes. A waiter gets
// the lock when the lease of the holder is over.
func TestWaiterAfterTheClockOfTheServerWasSetBack(t *testing.T) {
	redistest.Require(t, redistest.NeedRedis)
	dir := t.TempDir()
	source, library, offset := filepath.Join(dir, "shim.c"), filepath.Join(dir, "shim.so"), filepath.Join(dir, "offset")
	require.NoError(t, os.WriteFile(source, []byte(clockShim), 0o600))
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-O1", "-o", library, source).CombinedOutput(); err != nil {
		t.Skipf("no compiler: %v: %s", err, out)
	}
	file, err := os.Create(offset)
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	set := func(seconds int64) { // without truncating it: the server has it in memory
		require.NoError(t, fixture.ErrOf(file.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(seconds)), 0)))
	}
	set(0)
	t.Setenv("LD_PRELOAD", strings.TrimSpace(library+" "+os.Getenv("LD_PRELOAD")))
	t.Setenv("CLOCK_OFFSET", offset)
	s := redistest.Fresh(t)
	watchdog := primitives.WithDefaults(primitives.WithWatchdog(fixture.ShortLease))
	holder := fixture.NewClient(t, s.Client(t), watchdog)
	type waiter struct {
		name string
		held *primitives.Hold
		got  <-chan fixture.Result
	}
	var waiters []waiter
	for _, k := range kinds.Leased() {
		c := fixture.NewClient(t, s.Client(t), watchdog)
		held := fixture.Acquire(t, t.Context(), k.One(t, holder, k.Name))
		got := fixture.StartAcquire(t.Context(), k.Rival(c, k.Name))
		fixture.AwaitWaiters(t, c, 1)
		waiters = append(waiters, waiter{k.Name, held, got})
	}
	set(-60)
	for _, w := range waiters {
		k := kinds.Of(w.name)
		redistest.WaitFor(t, fixture.Soon, func() bool { return longestTTL(t, holder, k, w.name) <= fixture.ShortLease },
			"the lease is short again")
		require.NotEmpty(t, w.held.Detach(), w.name) // a crash: nothing renews it
	}
	began := time.Now()
	for _, w := range waiters {
		fixture.Release(t, fixture.AwaitHold(t, w.got))
	}
	require.Less(t, time.Since(began), fixture.Soon)
}
