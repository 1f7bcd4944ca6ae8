package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/internal/torture"
	"github.com/redlatch/redlatch/interop/redisson"
)

// clientVariable makes the test binary a client process: of redlatch, or with one of these
// libraries.
const clientVariable = "REDLATCH_TORTURE_CLIENT"

var workers = map[string]func(io.Reader, io.Writer) error{
	"redlatch": torture.Worker,
	"Redisson": func(in io.Reader, out io.Writer) error { return torture.LibraryWorker(in, out, open) },
	"Redisson that claims what it does not have": func(in io.Reader, out io.Writer) error {
		return torture.LibraryWorker(in, out, func(s torture.LibrarySetup) (torture.Library, error) {
			l, err := open(s)
			return liar{l}, err
		})
	},
}

func TestMain(m *testing.M) {
	if work, ok := workers[os.Getenv(clientVariable)]; ok {
		if err := work(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(redistest.Main(m))
}

func client(kind string) func() *exec.Cmd {
	return func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), clientVariable+"="+kind)
		return cmd
	}
}

// liar returns as if locked when its time is over.
type liar struct{ torture.Library }

func (l liar) Lock(kind torture.LockKind, name string, session int) torture.LibraryLock {
	return liarLock{l.Library.Lock(kind, name, session)}
}

type liarLock struct{ torture.LibraryLock }

func (l liarLock) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	_, err := l.LibraryLock.TryLock(ctx, wait, lease)
	return true, err
}

func (l liarLock) IsHeld(context.Context) (bool, error) { return true, nil }

// Redisson and redlatch compete for the same locks under faults, and exclude each other.
func TestTortureWithRedisson(t *testing.T) {
	redistest.NeedFull(t, "a minute of faults")
	redisson.Build(t, "")
	for name, tt := range map[string]struct {
		other    string
		duration time.Duration
		faults   []string
		finds    bool
	}{
		"all faults":    {"Redisson", 20 * time.Second, nil, false},
		"a wrong claim": {"Redisson that claims what it does not have", time.Second, []string{torture.NoFaults}, true},
	} {
		t.Run(name, func(t *testing.T) {
			timelines, err := os.MkdirTemp("", "redlatch-torture-") //nolint:usetesting // it stays if the test fails
			require.NoError(t, err)
			r, err := torture.Run(t.Context(), torture.Config{
				Client: client("redlatch"), Other: client(tt.other), Seed: uint64(time.Now().Unix()),
				Duration: tt.duration, Faults: tt.faults, Timelines: timelines,
				Primitives: []string{"lock", "spin", "cohort", "fenced", "fair", "rwlock"},
			})
			require.NoError(t, err)
			_ = r.Print(os.Stdout)
			found := map[string]int{}
			for _, v := range r.Violations {
				found[v.Check]++
			}
			switch {
			case tt.finds:
				require.NotZero(t, found["exclusion"], "timelines and logs are in %s", timelines)
			case redistest.Nightly():
				require.Empty(t, r.Violations, "timelines and logs are in %s", timelines)
			default: // other packages are tested beside this one, and other checks allow little for a busy machine
				require.Zero(t, found["exclusion"], "timelines and logs are in %s", timelines)
			}
			require.NotZero(t, r.Others)
			require.Greater(t, r.Total(), r.Others)
			require.NoError(t, os.RemoveAll(timelines))
		})
	}
}

// A lock of Redisson tells what torture asks it.
func TestLibrary(t *testing.T) {
	redisson.Build(t, "")
	addr := redistest.Fresh(t).Addr()
	lib, err := openWith(torture.LibrarySetup{Addr: addr, Watchdog: 3 * time.Second}, 10*time.Second)
	require.NoError(t, err)
	defer func() { require.NoError(t, lib.Close()) }()
	require.Contains(t, lib.Name(), "Redisson ")
	for _, kind := range []torture.LockKind{
		torture.PlainKind, torture.FencedKind, torture.FairKind, torture.ReadKind, torture.WriteKind,
	} {
		for _, lease := range []time.Duration{0, 10 * time.Second} {
			t.Run(fmt.Sprint(kind, lease), func(t *testing.T) {
				ctx := t.Context()
				name := t.Name()
				a, b := lib.Lock(kind, name, 0), lib.Lock(torture.WriteKind, name, 0)
				if kind != torture.ReadKind && kind != torture.WriteKind {
					b = lib.Lock(kind, name, 0)
				}
				if kind != torture.FairKind { // Redisson returns no error if nobody has a fair lock
					require.ErrorIs(t, a.Unlock(ctx), torture.ErrNotOwner)
				}
				locked, err := a.TryLock(ctx, 0, lease)
				require.NoError(t, err)
				require.True(t, locked)
				held, err := a.IsHeld(ctx)
				require.NoError(t, err)
				require.True(t, held)
				ttl, err := a.TTL(ctx)
				require.NoError(t, err)
				want := lease
				if lease == 0 {
					want = 3 * time.Second
				}
				require.Greater(t, ttl, want-2*time.Second)
				require.LessOrEqual(t, ttl, want)
				if kind == torture.FencedKind {
					token, err := a.Token(ctx)
					require.NoError(t, err)
					require.EqualValues(t, 1, token)
				}
				locked, err = b.TryLock(ctx, 0, lease)
				require.NoError(t, err)
				require.False(t, locked)
				held, err = b.IsHeld(ctx)
				require.NoError(t, err)
				require.False(t, held)
				require.NotEqual(t, a.ID(), b.ID())
				require.NoError(t, a.Unlock(ctx))
				ttl, err = a.TTL(ctx)
				require.NoError(t, err)
				require.Negative(t, ttl)
			})
		}
	}
}
