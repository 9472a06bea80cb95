package httpsink_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

func TestTLS(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) != 1 {
			t.Errorf("the client showed %d certificates", len(r.TLS.PeerCertificates))
		}
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := caFile(t, server.Certificate())
	key, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	testkit.NoError(t, err)
	keyFile := filepath.Join(t.TempDir(), "key.pem")
	testkit.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	for name, c := range map[string]struct {
		tls  sink.TLS
		good bool
	}{
		"trusted":            {sink.TLS{CA: ca, Cert: ca, Key: keyFile}, true},
		"trusted by a name":  {sink.TLS{CA: ca, Cert: ca, Key: keyFile, ServerName: "example.com"}, true},
		"everything trusted": {sink.TLS{InsecureSkipVerify: true, Cert: ca, Key: keyFile}, true},
		"unknown authority":  {sink.TLS{Cert: ca, Key: keyFile}, false},
		"another name":       {sink.TLS{CA: ca, Cert: ca, Key: keyFile, ServerName: "other.example"}, false},
	} {
		s := open(t, httpsink.Config{URL: server.URL, TLS: c.tls})
		for what, err := range map[string]error{"Send": s.Send(testContext(t), batch("a")), "Check": s.Check(testContext(t))} {
			if (err == nil) != c.good || err != nil && !errors.Is(err, sink.ErrUnavailable) {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
	}
	expectOutage(t, open(t, httpsink.Config{URL: server.URL, TLS: sink.TLS{CA: ca}}).Send(testContext(t), batch("a")))
}

func TestNew_InvalidConfig(t *testing.T) {
	t.Parallel()
	notPEM := filepath.Join(t.TempDir(), "file")
	testkit.NoError(t, os.WriteFile(notPEM, []byte("x"), 0o600))
	for _, c := range []struct {
		config httpsink.Config
		want   string
	}{
		{httpsink.Config{}, "url is not an HTTP URL; expected http://host/path or https://host/path"},
		{httpsink.Config{URL: "redis://s3cret@h"}, "http://host/path or https"},
		{httpsink.Config{URL: "http:h"}, "http://host/path or https"},
		{httpsink.Config{URL: "http://:80/"}, "http://host/path or https"},
		{httpsink.Config{URL: "http://u:s3cret@h:x/"}, "url is not a URL"},
		{httpsink.Config{URL: "http://u:s3cret@{topic}.example/"}, "expected placeholders after the host only"},
		{httpsink.Config{URL: "http://u:{key}@h/"}, "expected placeholders after the host only"},
		{httpsink.Config{URL: "http://u:s3cret@h/{id}"}, "expected only {topic} and {key}"},
		{httpsink.Config{URL: "http://u:s3cret@h/a/../b"}, ". or .. in its path"},
		{httpsink.Config{URL: "http://u:s3cret@h/#{topic}"}, "expected nothing after #"},
		{httpsink.Config{URL: "http://h", Method: "GET"}, "POST, PUT or PATCH"},
		{httpsink.Config{URL: "http://h", Method: "post"}, "POST, PUT or PATCH"},
		{httpsink.Config{URL: "http://h", Format: "xml"}, "json, ndjson, array, form, cloudevents or cloudevents-binary"},
		{httpsink.Config{URL: "http://h", Timeout: -1}, "timeout is -1ns; expected more than 0"},
		{httpsink.Config{URL: "http://h", MaxBytes: -1}, "max_bytes is -1"},
		{httpsink.Config{URL: "http://h", Refused: []int{404, 99}}, "refused contains the status 99"},
		{httpsink.Config{URL: "http://h", Unavailable: []int{600}}, "unavailable contains the status 600"},
		{httpsink.Config{URL: "http://h", Refused: []int{200}}, "refused contains the status 200"},
		{httpsink.Config{URL: "http://h", Unavailable: []int{299}}, "unavailable contains the status 299"},
		{httpsink.Config{URL: "http://h", Refused: []int{400, 404}, Unavailable: []int{503, 404}}, "refused and unavailable both contain the status 404"},
		{httpsink.Config{URL: "http://h", Headers: map[string]string{"a b": "s3cret"}}, `"a b" is not the name of a header`},
		{httpsink.Config{URL: "http://h", Headers: map[string]string{"": "s3cret"}}, "the name of a header is empty"},
		{httpsink.Config{URL: "http://h", Headers: map[string]string{"A": "s3cret\n"}}, "line break"},
		{httpsink.Config{URL: "http://h", Headers: map[string]string{"content-length": "1"}}, "content-length is set by the relay"},
		{httpsink.Config{URL: "https://h", TLS: sink.TLS{CA: "/no/s3cret"}}, "tls.ca cannot be read"},
		{httpsink.Config{URL: "https://h", TLS: sink.TLS{CA: notPEM}}, "a PEM file with certificates"},
		{httpsink.Config{URL: "https://h", TLS: sink.TLS{Cert: notPEM}}, "tls.cert or tls.key is missing"},
		{httpsink.Config{URL: "https://h", TLS: sink.TLS{Cert: notPEM, Key: "/no/s3cret"}}, "tls.key cannot be read"},
		{httpsink.Config{URL: "https://h", TLS: sink.TLS{Cert: notPEM, Key: notPEM}}, "tls.cert and tls.key are not"},
	} {
		_, err := httpsink.New(c.config)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("New(%+v): got %v, want an error that says %q", c.config, err, c.want)
		}
	}
	if _, err := httpsink.New(httpsink.Config{URL: "http://h", Refused: []int{100, 199, 300}, Unavailable: []int{599, 422}}); err != nil {
		t.Errorf("statuses: %v", err)
	}
	for _, url := range []string{"http://h", "https://h:8443/{topic}/{key}?a={topic}", "http://[::1]/x", "http://u@h"} {
		if _, err := httpsink.New(httpsink.Config{URL: url}); err != nil {
			t.Errorf("New(%q): %v", url, err)
		}
	}
}
