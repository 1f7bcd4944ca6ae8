package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
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
						fixture.InitPool(t, x.client.PermitExpirableSemaphore(name), 2)
					}
					hold := fixture.Acquire(t, t.Context(), x.acquirer(kind, name))
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
					stdout, _ := exitsOn(t, 0, s, verb, args...)
					requireJSON(t, stdout, want)
					require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
					stdout, _ = exitsOn(t, exitFailed, s, verb, args...)
					require.Empty(t, stdout)
				}
			}
		}
		// An id that no holder can have holds nothing either.
		for _, kind := range heldKinds {
			for _, id := range []string{"nobody", "mode", "x:write"} {
				_, stderr := exitsOn(t, exitFailed, s, "release --kind "+kind, redistest.Name(t), id)
				require.Contains(t, stderr, fmt.Sprintf("not held by %q", id))
			}
		}
		// A lock that is held as another kind is named.
		held := redistest.Name(t)
		fixture.Acquire(t, t.Context(), client(t, s).RWLock(held).Writer())
		for _, command := range [][]string{
			{"force-release", "--yes", "--kind", "lock", held}, {"inspect", "--kind", "fenced", held},
			{"ask", "--kind", "lock", held},
		} {
			_, stderr := exitsOn(t, exitFailed, s, command[0], command[1:]...)
			require.Contains(t, stderr, "holds a read-write lock; use another name, or give --kind write or --kind read")
		}
		// Without --yes there must be somebody to ask.
		_, stderr := exitsOn(t, exitUsage, s, "force-release", "name")
		require.Contains(t, stderr, "--yes")
		// Nobody is known to hold a number.
		name := redistest.Name(t)
		fixture.InitPool(t, client(t, s).Semaphore(name), 1)
		exitsOn(t, exitFailed, s, "force-release", "--yes", name)
	})
}
