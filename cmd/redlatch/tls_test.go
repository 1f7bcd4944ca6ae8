package main

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// A server of a cluster may have a certificate for its own address, or one for a host of the URLs.
func TestCertificatesOfSeveralServers(t *testing.T) {
	t.Parallel()
	urls := []string{"seed-1.example", "seed-2.example"}
	for name, tt := range map[string]struct {
		hosts         []string // of the certificate
		trustsNothing bool
		skipsVerify   bool
		problem       string
	}{
		"for its address":                      {hosts: []string{"127.0.0.1"}},
		"for the second URL":                   {hosts: []string{"seed-2.example"}},
		"for all of a domain":                  {hosts: []string{"*.example"}},
		"for another host":                     {hosts: []string{"other.example"}, problem: "127.0.0.1"},
		"for another address":                  {hosts: []string{"127.0.0.2"}, problem: "not 127.0.0.1"},
		"of an unknown authority":              {hosts: urls, trustsNothing: true, problem: "unknown authority"},
		"of an unknown authority, skip_verify": {hosts: urls, trustsNothing: true, skipsVerify: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			certificate, trusted := redistest.Certificate(t, tt.hosts...)
			if tt.trustsNothing {
				trusted = x509.NewCertPool()
			}
			listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
			require.NoError(t, err)
			defer func() { require.NoError(t, listener.Close()) }()
			go serveHandshake(listener)
			dial := dialerFor(&tls.Config{RootCAs: trusted, InsecureSkipVerify: tt.skipsVerify}, urls, soon)
			conn, err := dial(t.Context(), "tcp", listener.Addr().String())
			if tt.problem != "" {
				require.ErrorContains(t, err, tt.problem)
				return
			}
			require.NoError(t, err)
			require.NoError(t, conn.Close())
		})
	}
}

func serveHandshake(listener net.Listener) {
	conn, err := listener.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.(*tls.Conn).Handshake()
}
