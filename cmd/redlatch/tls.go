package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// addTLS adds the certificates in these files, none of which is needed.
func addTLS(o *redis.Options, ca, cert, key string) error {
	switch {
	case ca == "" && cert == "" && key == "":
		return nil
	case o.TLSConfig == nil:
		return badUsage("--tls-ca, --tls-cert and --tls-key need a rediss:// URL")
	case (cert == "") != (key == ""):
		return badUsage("--tls-cert and --tls-key need each other")
	}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return badUsage("--tls-ca: %w", err)
		}
		o.TLSConfig.RootCAs = x509.NewCertPool()
		if !o.TLSConfig.RootCAs.AppendCertsFromPEM(pem) {
			return badUsage("--tls-ca: no certificate in %s", ca)
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return badUsage("--tls-cert: %w", err)
		}
		o.TLSConfig.Certificates = []tls.Certificate{pair}
	}
	return nil
}

// dialerFor returns the dialer of a cluster, or of servers behind Sentinels. The addresses of most
// of them come from other servers, and need not be in the URLs. A server's certificate is valid if
// it is for the host of its address, or for a host of the URLs: some have one certificate for all,
// and announce addresses that are not in it.
func dialerFor(
	config *tls.Config, hosts []string, timeout time.Duration,
) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		own := config.Clone()
		own.ServerName = hostOf(addr)
		if !config.InsecureSkipVerify {
			own.InsecureSkipVerify = true // VerifyConnection does it
			own.VerifyConnection = func(s tls.ConnectionState) error {
				return verify(s.PeerCertificates, config.RootCAs, append([]string{own.ServerName}, hosts...))
			}
		}
		dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: timeout}, Config: own}
		return dialer.DialContext(ctx, network, addr)
	}
}

// verify checks as crypto/tls does, but accepts a certificate for any of the hosts. If it is for
// none of them, the error names the first.
func verify(certificates []*x509.Certificate, roots *x509.CertPool, hosts []string) error {
	options := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
	for _, c := range certificates[1:] {
		options.Intermediates.AddCert(c)
	}
	if _, err := certificates[0].Verify(options); err != nil {
		return err
	}
	if slices.ContainsFunc(hosts, func(h string) bool { return certificates[0].VerifyHostname(h) == nil }) {
		return nil
	}
	return certificates[0].VerifyHostname(hosts[0])
}

// hostOf returns the host of an address of host and port.
func hostOf(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	return host
}
