package main

import (
	"bytes"
	"context"
	"errors"
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

func TestMain(m *testing.M) {
	libraries = append(libraries,
		library{"boaster", "1", time.Second, openBoaster}, library{"liar", "1", time.Second, openLiar})
	if len(os.Args) == 3 && os.Args[1] == asClient {
		if err := run(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// boaster says that its locks are valid for twice as long as they are.
type boaster struct{ client }

func openBoaster(s torture.LibrarySetup) (client, error) {
	c, err := openRedislock(s)
	return boaster{c}, err
}

func (b boaster) acquire(ctx context.Context, name string, wait, lease time.Duration) (claim, error) {
	c, err := b.client.acquire(ctx, name, wait, lease)
	if err != nil {
		return nil, err
	}
	return boast{c, c.until().Add(lease)}, nil
}

type boast struct {
	claim

	end time.Time
}

func (b boast) until() time.Time { return b.end }

// liar is Redisson, but says that it has the locks that others have.
type liar struct{ client }

func openLiar(s torture.LibrarySetup) (client, error) {
	c, err := openRedisson(s)
	return liar{c}, err
}

func (l liar) acquire(ctx context.Context, name string, _, lease time.Duration) (claim, error) {
	c, err := l.client.acquire(ctx, name, 0, lease)
	if errors.Is(err, errBusy) {
		return lie{time.Now().Add(lease)}, nil
	}
	return c, err
}

type lie struct{ end time.Time }

func (l lie) until() time.Time              { return l.end }
func (l lie) ended() <-chan struct{}        { return nil }
func (l lie) release(context.Context) error { return nil }

func runApp(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := app(&out, io.Discard, func(name string) func() *exec.Cmd {
		return func() *exec.Cmd { return exec.Command(os.Args[0], asClient, name) }
	}).Run(t.Context(), append([]string{"torture"}, args...))
	return out.String(), err
}

// verdicts are what is found of each library, by rounds of faults and by cuts.
var verdicts = []struct {
	library string
	minutes string
	inJava  bool // it is tested alone: Java starts slowly
	want    error
}{
	{"redlatch", "0.1", false, nil},
	{"redsync", "0.1", false, nil},
	{"redislock", "0.1", false, nil},
	{"boaster", "0.1", false, errViolated},
	{redissonName, "0.2", true, nil},
	{"liar", "0.4", true, errViolated},
}

// A library is taken at its word: one that promises too much is found, and the others are not
// accused.
func TestLibrariesUnderFaults(t *testing.T) {
	redistest.Require(t, redistest.NeedRedis)
	for _, tt := range verdicts {
		t.Run(tt.library, func(t *testing.T) {
			if tt.inJava {
				redisson.Build(t, "")
			} else {
				t.Parallel()
			}
			out, err := runApp(t, "-libraries", tt.library, "-minutes", tt.minutes, "-faults", "black-hole,kill,stop",
				"-lease", "300ms", "-fail-fast", "-timelines", t.TempDir())
			require.ErrorIs(t, err, tt.want, out)
			require.Contains(t, out, tt.library)
			if tt.want != nil {
				require.Contains(t, out, "repeat with -seed")
			}
		})
	}
}

// A holder that is cut off knows of it before somebody else has the lock, unless its library
// promises too much.
func TestHoldersThatAreCutOff(t *testing.T) {
	redistest.Require(t, redistest.NeedRedis)
	short := func(name string, inJava bool) library {
		l, err := named(name)
		require.NoError(t, err)
		l.lease = time.Second
		if inJava {
			l.lease = 5 * time.Second // a busy machine answers late
		}
		return l
	}
	for _, tt := range verdicts {
		t.Run(tt.library, func(t *testing.T) {
			if tt.inJava {
				redisson.Build(t, "")
			} else {
				t.Parallel()
			}
			s := settings{libraries: []library{short(tt.library, tt.inJava)}}
			var out bytes.Buffer
			require.ErrorIs(t, s.measureCuts(t.Context(), 2, &out), tt.want, out.String())
		})
	}
}

func TestBadUse(t *testing.T) {
	for want, args := range map[string][]string{
		"unexpected argument":        {"redsync"},
		"no library \"redsink\"":     {"-libraries", "redsink"},
		"-minutes must be":           {"-minutes", "0"},
		"-lease must be at least":    {"-lease", "1ms"},
		"-cut must be at least 1":    {"-cut", "0"},
		"torture: bad configuration": {"-faults", "flood"},
	} {
		_, err := runApp(t, args...)
		require.ErrorContains(t, err, want)
	}
}
