package certfile

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
)

// serve accepts connections with the certificate and returns the address.
func serve(t *testing.T, c *Certificate) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", c.Server())
	testkit.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).HandshakeContext(context.Background())
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { testkit.NoError(t, l.Close()); <-ended })
	return l.Addr().String()
}

// served returns the certificate that a client of the authority gets.
func served(t *testing.T, a *testkit.Authority, at string) []byte {
	t.Helper()
	conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: a.Pool}}).DialContext(t.Context(), "tcp", at)
	testkit.NoError(t, err)
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Raw
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	testkit.NoError(t, err)
	testkit.NoError(t, os.WriteFile(to+".new", text, 0o600))
	testkit.NoError(t, os.Rename(to+".new", to))
}

// TestCertificate_Reload: new files are served as soon as they belong together; until then the ones of before.
func TestCertificate_Reload(t *testing.T) {
	t.Parallel()
	a := testkit.NewAuthority(t)
	cert, key := a.Issue(t, "127.0.0.1")
	otherCert, otherKey := a.Issue(t, "127.0.0.1")
	var log bytes.Buffer
	c, err := Load(cert, key, slog.New(slog.NewTextHandler(&log, nil)))
	testkit.NoError(t, err)
	at := serve(t, c)
	first := served(t, a, at)
	copyFile(t, otherCert, cert)
	for range 3 {
		if !bytes.Equal(served(t, a, at), first) {
			t.Fatal("a certificate without its key is served")
		}
	}
	copyFile(t, otherKey, key)
	second := served(t, a, at)
	if bytes.Equal(second, first) {
		t.Error("the certificate was not reloaded")
	}
	testkit.NoError(t, os.Remove(key))
	for range 3 {
		if !bytes.Equal(served(t, a, at), second) {
			t.Error("without the files another certificate is served")
		}
	}
	if text := log.String(); strings.Count(text, "failed") != 2 || strings.Count(text, "was reloaded") != 1 {
		t.Errorf("the log is\n%s", text)
	}
}

func TestLoad_Errors(t *testing.T) {
	t.Parallel()
	a := testkit.NewAuthority(t)
	cert, key := a.Issue(t, "127.0.0.1")
	_, other := a.Issue(t, "127.0.0.1")
	missing := filepath.Join(t.TempDir(), "s3cret")
	for want, files := range map[string][2]string{
		"cert cannot be read: no such file or directory":      {missing, key},
		"key cannot be read: no such file or directory":       {cert, missing},
		"cert and key are not a certificate and its key: tls": {cert, other},
	} {
		if _, err := Load(files[0], files[1], slog.New(slog.DiscardHandler)); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
	if _, err := Client(key + "x"); err == nil {
		t.Error("a client takes a missing file")
	}
}

// TestClient: it trusts the server with its certificate only.
func TestClient(t *testing.T) {
	t.Parallel()
	a := testkit.NewAuthority(t)
	cert, key := a.Issue(t, "relay.example")
	other, _ := a.Issue(t, "127.0.0.1")
	c, err := Load(cert, key, slog.New(slog.DiscardHandler))
	testkit.NoError(t, err)
	at := serve(t, c)
	for file, good := range map[string]bool{cert: true, other: false} {
		config, err := Client(file)
		testkit.NoError(t, err)
		conn, err := (&tls.Dialer{NetDialer: &net.Dialer{}, Config: config}).DialContext(t.Context(), "tcp", at)
		if good != (err == nil) {
			t.Errorf("trusted %v: %v", good, err)
		}
		if err == nil {
			testkit.NoError(t, conn.Close())
		}
	}
}
