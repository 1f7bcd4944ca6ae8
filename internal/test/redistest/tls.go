package redistest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// FreshTLS is like Fresh for a server that also accepts TLS. The tweak makes a
// client use TLS with a client certificate, which the server requires.
func FreshTLS(t testing.TB, args ...string) (s *Server, tweak func(*redis.Options)) {
	t.Helper()
	dir := t.TempDir()
	ca := newCertificate(t, nil)
	cert, key, authority := filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "ca")
	server, client := newCertificate(t, &ca, localhost), newCertificate(t, &ca, localhost)
	keyDER, err := x509.MarshalECPrivateKey(server.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, cert, "CERTIFICATE", server.Certificate[0])
	writePEM(t, key, "EC PRIVATE KEY", keyDER)
	writePEM(t, authority, "CERTIFICATE", ca.Certificate[0])
	s = Fresh(t, append(args, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", authority)...)
	addr := listenTLS(t, s)
	trusted := x509.NewCertPool()
	trusted.AddCert(ca.Leaf)
	return s, func(o *redis.Options) {
		o.Addr = addr
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: trusted, Certificates: []tls.Certificate{client}}
	}
}

// listenTLS makes the server accept TLS on a free port.
func listenTLS(t testing.TB, s *Server) (addr string) {
	t.Helper()
	var failures error
	for range startAttempts {
		ports, err := freePorts(1)
		if err == nil {
			err = s.run(context.Background(), "config", "set", "tls-port", strconv.Itoa(ports[0]))
		}
		if err == nil {
			return loopback(ports[0])
		}
		failures = errors.Join(failures, err)
	}
	t.Fatal(failures)
	return ""
}

// Certificate returns the certificate of a server for these hosts, and the authority that signed
// it.
func Certificate(t testing.TB, hosts ...string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	ca := newCertificate(t, nil)
	trusted := x509.NewCertPool()
	trusted.AddCert(ca.Leaf)
	return newCertificate(t, &ca, hosts...), trusted
}

const localhost = "127.0.0.1"

// newCertificate returns a certificate for these hosts, signed by ca. With a nil ca
// it returns the certificate of an authority.
func newCertificate(t testing.TB, ca *tls.Certificate, hosts ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	name := "redistest authority"
	if ca != nil {
		name = "redistest" // a certificate with the name of its issuer would count as self-signed
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	parent, signer := template, key
	if ca != nil {
		parent, signer = ca.Leaf, ca.PrivateKey.(*ecdsa.PrivateKey)
	} else {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
