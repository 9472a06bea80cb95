// Package certfile serves TLS with a certificate from two files, which are read again when they change: certificates are
// renewed every few weeks, and a relay should not restart for it.
package certfile

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
)

// Certificate is a certificate with its key. It is safe for concurrent use.
type Certificate struct {
	cert, key string
	log       *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	loaded  state // of the files that current is from
	failed  state // of the files that could not be loaded, and were reported
}

// state identifies the content of the two files. A file that is replaced is another one, or has another time or size.
type state [2]fs.FileInfo

func (s state) equal(o state) bool {
	for i := range s {
		if s[i] == nil || o[i] == nil {
			if s[i] != o[i] {
				return false
			}
			continue
		}
		if !os.SameFile(s[i], o[i]) || !s[i].ModTime().Equal(o[i].ModTime()) || s[i].Size() != o[i].Size() {
			return false
		}
	}
	return true
}

// Load reads the PEM files of a certificate, with its chain, and of its key. Errors name the keys cert and key.
func Load(cert, key string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{cert: cert, key: key, log: log}
	// The state before the content: what changes between the two is read again.
	c.loaded = c.state()
	var err error
	c.current, err = c.read()
	return c, err
}

// Server is a server's configuration with the certificate.
func (c *Certificate) Server() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.get(), nil }}
}

// get returns the certificate. If the files changed and cannot be loaded, it stays the one of before: the other file may be about to follow.
func (c *Certificate) get() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.state()
	if now.equal(c.loaded) {
		return c.current
	}
	fresh, err := c.read()
	switch {
	case err == nil:
		c.current, c.loaded = fresh, now
		c.log.Info("the admin endpoint's certificate was reloaded", "not_after", fresh.Leaf.NotAfter)
	case !now.equal(c.failed):
		c.failed = now
		c.log.Warn("reloading the admin endpoint's certificate failed, the previous one stays in use", "error", err)
	}
	return c.current
}

func (c *Certificate) state() (s state) {
	for i, file := range []string{c.cert, c.key} {
		if info, err := os.Stat(file); err == nil {
			s[i] = info
		}
	}
	return s
}

func (c *Certificate) read() (*tls.Certificate, error) {
	cert, err := os.ReadFile(c.cert)
	if err != nil {
		return nil, fmt.Errorf("cert cannot be read: %w", withoutPath(err))
	}
	key, err := os.ReadFile(c.key)
	if err != nil {
		return nil, fmt.Errorf("key cannot be read: %w", withoutPath(err))
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("cert and key are not a certificate and its key: %w", err)
	}
	return &pair, nil
}

// withoutPath hides the name of the file, which may be the private key itself, given in place of a file.
func withoutPath(err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%w; expected the name of a file", pathErr.Err)
	}
	return err
}

// Client is a client's configuration that trusts the certificate in a PEM file and no other, whatever name it is for: for a client on the
// server's machine, which asks an address.
func Client(cert string) (*tls.Config, error) {
	text, err := os.ReadFile(cert)
	if err != nil {
		return nil, fmt.Errorf("cert cannot be read: %w", withoutPath(err))
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("cert contains no certificate; expected a PEM file")
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // VerifyConnection is stricter
		VerifyConnection: func(s tls.ConnectionState) error {
			if !bytes.Equal(s.PeerCertificates[0].Raw, block.Bytes) {
				return errors.New("the server has another certificate than admin.tls.cert")
			}
			return nil
		},
	}, nil
}
