//go:build !race

// certmagic itself takes minutes to compile with the race detector. The tests of the locker run
// with it.
package certmagiclock_test

import (
	"context"
	"crypto/x509"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/caddyserver/certmagic"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/redlatch/redlatch/certmagiclock"
	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// A Locker has all that certmagic may ask for.
var (
	_ certmagic.Locker           = (*certmagiclock.Locker)(nil)
	_ certmagic.TryLocker        = (*certmagiclock.Locker)(nil)
	_ certmagic.LockLeaseRenewer = (*certmagiclock.Locker)(nil)
)

// failing is an issuer whose attempts fail.
type failing struct{ issue func() error }

func (f failing) IssuerKey() string { return "failing" }
func (f failing) Issue(context.Context, *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	return nil, f.issue()
}

// certmagic retries for 30 days under one lock, and asks for it before each attempt. A loss in
// between must not make all later attempts fail.
func TestAttemptsGoOnAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		locker, attempts := certmagiclock.NewLocker(client(t, s)), 0
		cfg := &certmagic.Config{
			Storage:   storage{&certmagic.FileStorage{Path: t.TempDir()}, locker},
			Logger:    zap.NewNop(),
			KeySource: certmagic.DefaultKeyGenerator,
			Issuers: []certmagic.Issuer{failing{func() error {
				if attempts++; attempts == 2 {
					return certmagic.ErrNoRetry{Err: errors.New("enough")}
				}
				s.LoseName(t, "issue_cert_example.com")
				return errors.New("no answer from the CA")
			}}},
		}
		require.Error(t, cfg.ObtainCertAsync(t.Context(), "example.com"))
		require.Equal(t, 2, attempts)
		require.ErrorIs(t, locker.Unlock(t.Context(), "issue_cert_example.com"), primitives.ErrNotHeld)
		locked, err := certmagiclock.NewLocker(client(t, s)).TryLock(t.Context(), "issue_cert_example.com")
		require.NoError(t, err)
		require.True(t, locked, "it is free")
	})
}
