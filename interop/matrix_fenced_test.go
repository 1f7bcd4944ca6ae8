package interop_test

import (
	"github.com/stretchr/testify/require"
)

func fencedSituations() []situation {
	fenced := []string{"fenced"}
	return []situation{
		{name: "Go and Java share one increasing sequence of tokens", core: true, of: fenced, run: tokens},
		{name: "tokens increase in order of acquisition under contention", of: fenced, run: contendedTokens},
	}
}

// tokens acquires the lock in every way that mints a token, in turns.
func tokens(c *cell) {
	lock := c.rlock().On(c.name)
	last := int64(0)
	rises := func(token int64, err error) {
		c.Helper()
		require.NoError(c, err)
		require.Greater(c, token, last)
		last = token
	}
	inGo := func() (int64, error) {
		hold, err := c.lock().Acquire(c.ctx)
		if err != nil {
			return 0, err
		}
		nested, err := c.lock().Acquire(hold.Context())
		require.NoError(c, err)
		require.Equal(c, hold.Token(), nested.Token())
		require.NoError(c, is(hold.Token())(lock.Token(c.ctx)))
		require.NoError(c, is(int64(0))(lock.TryLockAndGetToken(c.ctx, 0, lease)))
		require.NoError(c, nested.Release(c.ctx))
		return hold.Token(), hold.Release(c.ctx)
	}
	for range 3 {
		rises(inGo())

		rises(lock.LockAndGetToken(c.ctx))
		_, err := c.inGo().try(c.ctx, 0) // mints no token
		require.NoError(c, err)
		require.NoError(c, is(last)(lock.Token(c.ctx)))
		rises(lock.LockAndGetToken(c.ctx)) // nested
		require.NoError(c, lock.Unlock(c.ctx))
		require.NoError(c, lock.Unlock(c.ctx))

		rises(inGo())
		rises(inGo())

		require.NoError(c, lock.Lock(c.ctx))
		rises(lock.Token(c.ctx))
		require.NoError(c, is(true)(c.lock().ForceRelease(c.ctx)))

		rises(lock.TryLockAndGetToken(c.ctx, cellTimeout, lease))
		require.NoError(c, is(true)(lock.ForceUnlock(c.ctx)))
	}
}

// contendedTokens mints tokens in Go and Java at the same time.
func contendedTokens(c *cell) {
	const turns = 30
	type turn struct {
		token int64
		err   error
	}
	minted := make(chan turn, 2*turns) // in the order of the sections, because each token is sent inside its section
	go func() {
		lock := c.rlock().On(c.name)
		for range turns {
			token, err := lock.LockAndGetToken(c.ctx)
			minted <- turn{token, err}
			if err == nil {
				_ = lock.Unlock(c.ctx)
			}
		}
	}()
	go func() {
		for range turns {
			hold, err := c.lock().Acquire(c.ctx)
			if err != nil {
				minted <- turn{0, err}
				continue
			}
			minted <- turn{hold.Token(), nil}
			_ = hold.Release(c.ctx)
		}
	}()
	last := int64(0)
	for range 2 * turns {
		got := <-minted
		require.NoError(c, got.err)
		require.Greater(c, got.token, last)
		last = got.token
	}
}
