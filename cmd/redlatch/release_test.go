package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

func TestReleaseAndForceRelease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, kind := range heldKinds {
			for _, force := range []bool{false, true} {
				for _, given := range []bool{false, true} {
					name := redistest.Name(t)
					x := &session{client: client(t, s)}
					if kind == kindPermits {
						_, err := x.client.PermitExpirableSemaphore(name).Init(t.Context(), 2)
						require.NoError(t, err)
					}
					hold, err := x.acquirer(kind, name).Acquire(t.Context())
					require.NoError(t, err)
					args := []string{"--json", name, hold.ID()}
					verb, want := "release", fields{"name": name, "kind": kind, "released": true, "id": hold.ID()}
					if force {
						verb, args = "force-release", []string{"--json", "--yes", name}
						delete(want, "id")
					}
					if given {
						args = append([]string{"--kind", kind}, args...)
					} else if kind == kindFair {
						want["kind"] = kindLock // without waiters the keys are a plain lock's
					}
					code, stdout, stderr := on(t, s, verb, args...)
					require.Zero(t, code, stderr)
					requireJSON(t, stdout, want)
					require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
					code, stdout, stderr = on(t, s, verb, args...)
					require.Equal(t, exitFailed, code, "%s %s: %s", verb, kind, stderr)
					require.Empty(t, stdout)
				}
			}
		}
		// An id that no holder can have holds nothing either.
		for _, kind := range heldKinds {
			for _, id := range []string{"nobody", "mode", "x:write"} {
				code, _, stderr := on(t, s, "release --kind "+kind, redistest.Name(t), id)
				require.Equal(t, exitFailed, code, "%s %s: %s", kind, id, stderr)
				require.Contains(t, stderr, fmt.Sprintf("not held by %q", id))
			}
		}
		// A lock that is held as another kind is named.
		held := redistest.Name(t)
		_, err := client(t, s).RWLock(held).Writer().Acquire(t.Context())
		require.NoError(t, err)
		for _, command := range [][]string{
			{"force-release", "--yes", "--kind", "lock", held}, {"inspect", "--kind", "fenced", held},
			{"ask", "--kind", "lock", held},
		} {
			code, _, stderr := on(t, s, command[0], command[1:]...)
			require.Equal(t, exitFailed, code, command)
			require.Contains(t, stderr, "holds a read-write lock; use another name, or give --kind write or --kind read")
		}
		// Without --yes there must be somebody to ask.
		code, _, stderr := on(t, s, "force-release", "name")
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "--yes")
		// Nobody is known to hold a number.
		name := redistest.Name(t)
		_, err = client(t, s).Semaphore(name).Init(t.Context(), 1)
		require.NoError(t, err)
		code, _, _ = on(t, s, "force-release", "--yes", name)
		require.Equal(t, exitFailed, code)
	})
}
