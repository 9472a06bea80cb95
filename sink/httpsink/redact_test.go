package httpsink

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func TestMaskPath(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"https://hooks.example/services/T001/B001/abcd": "https://hooks.example/services/***/***/***",
		"https://api.example:8443/v1/{topic}?key=abcd":  "https://api.example:8443/v1/{topic}?***",
		"http://api.example?key=abcd":                   "http://api.example?***",
		"http://api.example/":                           "http://api.example/",
		"http://api.example":                            "http://api.example",
	} {
		if got := MaskPath(url); got != want {
			t.Errorf("%s: got %s; want %s", url, got, want)
		}
	}
}

// TestRedactor_Truncated cuts a response at each place, as a connection that is lost does.
func TestRedactor_Truncated(t *testing.T) {
	t.Parallel()
	const secret = "sk_live_9fQ7ZxLm2VbT4nRw8KcY1uHs6DgJ3pEa5XoN0iBvQrStUvWxYz"
	r := newRedactor(target{}, nil, secret)
	for _, before := range []string{"", "the key ", strings.Repeat(" ", 4*maxQuote-20)} {
		response := before + secret + " is not allowed here" + strings.Repeat(".", 100)
		for n := range len(response) {
			if got := r.quote([]byte(response[:n]), true); strings.Contains(got, secret[:4]) {
				t.Fatalf("%q is quoted as %q", response[:n], got)
			}
		}
		if got, want := r.quote([]byte(response), false), "*** is not allowed"; len(before) < maxQuote && !strings.Contains(got, want) {
			t.Errorf("%q is quoted as %q", response, got)
		}
	}
}

// TestErrors_NameThePath: after a 404 the path is the cause. What may be secret in it is hidden.
func TestErrors_NameThePath(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	for path, want := range map[string]string{"/api/v1/contacts": "/api/v1/contacts: 404 ", "/hook/T0aB3xK9qLm2ZpR7": "/hook/***: 404 ", "/in?key=abc": "/in?***: 404 "} {
		s, err := New(Config{URL: server.URL + path})
		if err != nil {
			t.Fatal(err)
		}
		b := &buffer.Batch{GroupID: buffer.NewGroupID(), Events: []outbox.Event{{ID: 1, Topic: "t", Payload: []byte("{}")}}}
		if err := s.Send(t.Context(), b); err == nil || !strings.Contains(err.Error(), "POST "+server.URL+want) {
			t.Errorf("%s: got %v, want %s", path, err, want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
