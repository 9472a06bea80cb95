package testkit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// TempTB is a test with files of its own.
type TempTB interface {
	TB
	TempDir() string
}

// Authority is a certificate authority of one test. All files are PEM.
type Authority struct {
	// CA is the file with the authority's certificate, Pool a pool with nothing else.
	CA   string
	Pool *x509.CertPool

	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority makes an authority that nobody trusts but those who are given its CA.
func NewAuthority(t TempTB) *Authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	NoError(t, err)
	a := &Authority{CA: writePEM(t, "ca.pem", "CERTIFICATE", der), Pool: x509.NewCertPool(), key: key}
	a.certificate, err = x509.ParseCertificate(der)
	NoError(t, err)
	a.Pool.AddCert(a.certificate)
	return a
}

// Issue makes a certificate, for servers and clients, that is valid for these host names and IP addresses. It
// returns the files of the certificate and of its key.
func (a *Authority) Issue(t TempTB, hosts ...string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
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
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, private.Public(), a.key)
	NoError(t, err)
	text, err := x509.MarshalPKCS8PrivateKey(private)
	NoError(t, err)
	return writePEM(t, "cert.pem", "CERTIFICATE", der), writePEM(t, "key.pem", "PRIVATE KEY", text)
}

func writePEM(t TempTB, name, kind string, der []byte) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}
