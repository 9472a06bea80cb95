package httpsink_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

const (
	clientID     = "relay client"
	clientSecret = "s3cret/cl%ient"
)

// issuer is a token endpoint (RFC 6749, 4.4), and an API that accepts its tokens.
type issuer struct {
	t *testing.T

	mu        sync.Mutex
	requests  int    // for a token
	expiresIn string // as JSON; "": not said
	// params says that the client's credentials are in the body instead of the header.
	params bool
	// response replaces the response, if it is not nil.
	response func(w http.ResponseWriter, r *http.Request)
	wait     <-chan struct{} // before it responses; nil: at once
	form     map[string][]string
	good     string // the token that the API takes
	sent     []string
	echo     bool // the API responds with what it was sent
}

func (i *issuer) with(change func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
}

// token is the endpoint.
func (i *issuer) token(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	i.requests++
	n, response, wait, params, expires := i.requests, i.response, i.wait, i.params, i.expiresIn
	i.mu.Unlock()
	bad := r.ParseForm() // before the wait: a client that hangs up is noticed when the body was read
	if wait != nil {
		select {
		case <-wait:
		case <-r.Context().Done():
			return
		}
	}
	if response != nil {
		response(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json;charset=UTF-8")
	w.Header().Set("Cache-Control", "no-store")
	fail := func(status int, code string) {
		w.WriteHeader(status)
		write(i.t, w, `{"error": "`+code+`", "error_description": "sent `+r.Header.Get("Authorization")+`"}`)
	}
	if bad != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" {
		fail(http.StatusBadRequest, "invalid_request")
		return
	}
	id, secret, _ := r.BasicAuth()
	if params {
		id, secret = r.PostForm.Get("client_id"), r.PostForm.Get("client_secret")
	}
	// RFC 6749, 2.3.1: encoded as in a form.
	if !params && (id != "relay+client" || secret != "s3cret%2Fcl%25ient") || params && (id != clientID || secret != clientSecret) {
		w.Header().Set("WWW-Authenticate", "Basic")
		fail(http.StatusUnauthorized, "invalid_client")
		return
	}
	if r.PostForm.Get("grant_type") != "client_credentials" {
		fail(http.StatusBadRequest, "unsupported_grant_type")
		return
	}
	token := map[string]any{"access_token": fmt.Sprintf("t0ken-%d", n), "token_type": "bearer"}
	if expires != "" {
		token["expires_in"] = json.RawMessage(expires)
	}
	i.with(func() { i.form, i.good = r.PostForm, fmt.Sprintf("t0ken-%d", n) })
	if err := json.NewEncoder(w).Encode(token); err != nil {
		i.t.Error(err)
	}
}

// api is the API.
func (i *issuer) api(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	got := r.Header.Get("Authorization")
	i.sent = append(i.sent, got)
	if got != "Bearer "+i.good {
		w.WriteHeader(http.StatusUnauthorized)
		if i.echo {
			write(i.t, w, "who is "+strings.TrimPrefix(got, "Bearer ")+" with "+got+"?")
		}
	}
}

func (i *issuer) counts() (requests int, sent []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.requests, slices.Clone(i.sent)
}

func newIssuer(t *testing.T) (i *issuer, c httpsink.Config) {
	t.Helper()
	i = &issuer{t: t, expiresIn: "3600"}
	mux := http.NewServeMux()
	mux.HandleFunc("/token", i.token)
	mux.HandleFunc("/in", i.api)
	url := serve(t, mux.ServeHTTP)
	return i, httpsink.Config{URL: url + "/in", OAuth2: httpsink.OAuth2{TokenURL: url + "/token", ClientID: clientID, ClientSecret: clientSecret}}
}

func TestOAuth2_FetchesTokenOnce(t *testing.T) {
	t.Parallel()
	i, c := newIssuer(t)
	c.OAuth2.Scopes, c.OAuth2.Audience = []string{"events.write", "events.read"}, "https://api.example"
	s := open(t, c)
	if n, _ := i.counts(); n != 0 {
		t.Error("a token was fetched before it was needed")
	}
	release := make(chan struct{})
	i.with(func() { i.wait = release })
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if err := s.Send(testContext(t), batch("a")); err != nil {
				t.Error(err)
			}
		})
	}
	close(release)
	group.Wait()
	testkit.NoError(t, s.Send(testContext(t), batch("a")))
	n, sent := i.counts()
	if n != 1 || len(sent) != 9 {
		t.Errorf("%d tokens fetched for %d requests, want 1 for 9", n, len(sent))
	}
	if got := fmt.Sprint(i.form); got != "map[audience:[https://api.example] grant_type:[client_credentials] scope:[events.write events.read]]" {
		t.Errorf("it was asked for with %s", got)
	}
}

// TestOAuth2_CredentialsInBody has an endpoint that ignores the header, and PayPal's expires_in.
func TestOAuth2_CredentialsInBody(t *testing.T) {
	t.Parallel()
	i, c := newIssuer(t)
	i.params, i.expiresIn = true, `"3600"`
	s := open(t, c)
	testkit.NoError(t, s.Send(testContext(t), batch("a")))
	testkit.NoError(t, s.Send(testContext(t), batch("a")))
	if n, _ := i.counts(); n != 2 {
		t.Errorf("%d requests for a token, want the refused and the good one", n)
	}
}

func TestOAuth2_DropsRejectedToken(t *testing.T) {
	t.Parallel()
	i, c := newIssuer(t)
	s := open(t, c)
	testkit.NoError(t, s.Send(testContext(t), batch("a")))
	i.with(func() { i.good = "revoked" })
	expectOutage(t, s.Send(testContext(t), batch("a")))
	testkit.NoError(t, s.Send(testContext(t), batch("a")))
	n, sent := i.counts()
	if want := []string{"Bearer t0ken-1", "Bearer t0ken-1", "Bearer t0ken-2"}; n != 2 || !slices.Equal(sent, want) {
		t.Errorf("%d tokens, %q sent, want %q", n, sent, want)
	}
}

// TestOAuth2_Failures expects an outage with the reason, without secrets, and no request.
func TestOAuth2_Failures(t *testing.T) {
	t.Parallel()
	elsewhere := make(chan string, 10)
	other := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		elsewhere <- r.Header.Get("Authorization")
	})
	says := func(status int, kind, text string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			write(t, w, text)
		}
	}
	for name, c := range map[string]struct {
		response func(http.ResponseWriter, *http.Request)
		want     string
		retry    time.Duration
	}{
		"refused":        {says(400, "application/json", `{"error": "invalid_scope", "error_description": "no such scope, `+clientSecret+`"}`), "400 Bad Request: invalid_scope no such scope, ***", 0},
		"wrong secret":   {says(401, "application/json", `{"error": "invalid_client"}`), "401 Unauthorized: invalid_client", 0},
		"in a page":      {says(502, "text/html", "<h1>Bad\nGateway</h1> "+clientSecret), "502 Bad Gateway: <h1>Bad Gateway</h1> ***", 0},
		"error with 200": {says(200, "application/json", `{"error": "temporarily_unavailable"}`), "temporarily_unavailable", 0},
		"not JSON":       {says(200, "application/json", "{"), "cannot parse json", 0},
		"nothing":        {says(200, "application/json", ""), "cannot parse json", 0},
		"no token":       {says(200, "application/json", `{"token_type": "bearer"}`), "missing access_token", 0},
		"line break":     {says(200, "application/json", `{"access_token": "a\nbcdef"}`), "invalid header field value", 0},
		"cut off":        {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF", 0},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other, http.StatusTemporaryRedirect)
		}, "307 Temporary Redirect (redirects are not followed)", 0},
		"too many": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
		}, "429 Too Many Requests", 7 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i, config := newIssuer(t)
			i.response = c.response
			err := open(t, config).Send(testContext(t), batch("a"))
			expectOutage(t, err)
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "cl%ient") || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %q, want one that says %q", err, c.want)
			}
			if name != "line break" && !strings.Contains(err.Error(), "no token from 127.0.0.1") {
				t.Errorf("got %q, which does not name the server", err)
			}
			expectMaybePoison(t, err, false)
			var retry time.Duration
			if timed, ok := errors.AsType[*sink.UnavailableError](err); ok {
				retry = timed.RetryAfter
			}
			if retry != c.retry {
				t.Errorf("got a wait of %v, want %v", retry, c.retry)
			}
			if _, sent := i.counts(); len(sent) != 0 {
				t.Errorf("%d requests were made without a token", len(sent))
			}
		})
	}
	t.Cleanup(func() {
		if len(elsewhere) > 0 {
			t.Errorf("the credentials went elsewhere: %q", <-elsewhere)
		}
	})
}

func TestOAuth2_UnreachableEndpoint(t *testing.T) {
	t.Parallel()
	i, c := newIssuer(t)
	c.OAuth2.TokenURL = "http://app:p4ssword@127.0.0.1:1/token?key=qu3ry"
	err := open(t, c).Send(testContext(t), batch("a"))
	expectMaybePoison(t, err, false)
	if text := err.Error(); !strings.Contains(text, "no token from 127.0.0.1:1: dial tcp") || strings.Contains(text, "qu3ry") || strings.Contains(text, "p4ss") {
		t.Errorf("got %q", text)
	}
	if _, sent := i.counts(); len(sent) != 0 {
		t.Error("a request was made without a token")
	}
}

// TestOAuth2_SlowEndpoint expects the fetch to end with the timeout or the deadline, and other requests not to
// wait for a cancelled one.
func TestOAuth2_SlowEndpoint(t *testing.T) {
	t.Parallel()
	i, c := newIssuer(t)
	i.wait = make(chan struct{}) // for ever
	c.Timeout = 20 * time.Millisecond
	err := open(t, c).Send(testContext(t), batch("a"))
	expectMaybePoison(t, err, false)
	if !strings.Contains(err.Error(), "no token from") {
		t.Errorf("got %v", err)
	}

	i, c = newIssuer(t)
	release := make(chan struct{})
	i.wait = release
	s := open(t, c)
	first, callOff := context.WithCancel(t.Context())
	called := make(chan error, 1)
	go func() { called <- s.Send(first, batch("a")) }()
	for n := 0; n < 1; n, _ = i.counts() {
		select {
		case <-testContext(t).Done():
			t.Fatal("no request for a token came")
		case <-time.After(time.Millisecond):
		}
	}
	second := make(chan error, 1)
	go func() { second <- s.Send(testContext(t), batch("a")) }()
	callOff()
	expectMaybePoison(t, <-called, false)
	close(release)
	testkit.NoError(t, <-second)
}

// TestOAuth2_HidesTokens has a server that quotes the current token and earlier ones in several forms.
func TestOAuth2_HidesTokens(t *testing.T) {
	t.Parallel()
	i, c := newIssuer(t)
	i.echo = true
	s := open(t, c)
	for range 3 {
		testkit.NoError(t, s.Send(testContext(t), batch("a")))
		i.with(func() { i.good = "revoked" })
		err := s.Send(testContext(t), batch("a"))
		expectOutage(t, err)
		if text := err.Error(); strings.Contains(text, "t0ken") || !strings.Contains(text, "who is *** with Bearer ***?") {
			t.Errorf("got %q", text)
		}
	}
}

// TestOAuth2_EchoedSecrets has an endpoint that quotes the client's secret in each form, and the one in its
// URL.
func TestOAuth2_EchoedSecrets(t *testing.T) {
	t.Parallel()
	const id, secret, password = clientID, clientSecret, "url-p4ss"
	basic := func(user, password string) string {
		return base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	}
	for name, echoed := range map[string]string{
		"secret": secret, "encoded": url.QueryEscape(secret), "pair": id + ":" + secret,
		"basic": basic(id, secret), "basic, encoded": basic(url.QueryEscape(id), url.QueryEscape(secret)),
		"of the URL": password, "basic, of the URL": basic("app", password),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i, c := newIssuer(t)
			i.response = func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusBadGateway)
				write(t, w, "got "+echoed+".")
			}
			c.OAuth2.TokenURL = strings.Replace(c.OAuth2.TokenURL, "://", "://app:"+password+"@", 1)
			err := open(t, c).Send(testContext(t), batch("a"))
			expectOutage(t, err)
			if !strings.HasSuffix(err.Error(), "502 Bad Gateway: got ***.") {
				t.Errorf("got %q", err)
			}
		})
	}
}

func TestOAuth2_MutualTLS(t *testing.T) {
	t.Parallel()
	i := &issuer{t: t, expiresIn: "3600"}
	mux := http.NewServeMux()
	mux.HandleFunc("/token", i.token)
	mux.HandleFunc("/in", i.api)
	server := httptest.NewUnstartedServer(mux)
	cert, key, pool := clientCertificate(t)
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	testkit.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	c := httpsink.Config{
		URL: server.URL + "/in", TLS: sink.TLS{CA: ca, Cert: cert, Key: key, ServerName: "example.com"},
		OAuth2: httpsink.OAuth2{TokenURL: server.URL + "/token", ClientID: clientID, ClientSecret: clientSecret},
	}
	testkit.NoError(t, open(t, c).Send(testContext(t), batch("a")))
	c.TLS.Cert, c.TLS.Key = "", ""
	expectMaybePoison(t, open(t, c).Send(testContext(t), batch("a")), false)
	if n, sent := i.counts(); n != 1 || len(sent) != 1 {
		t.Errorf("%d tokens and %d requests, want one of each", n, len(sent))
	}
}

// clientCertificate makes a self-signed certificate, as files, and a pool that trusts it.
func clientCertificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "relay"}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	testkit.NoError(t, err)
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	testkit.NoError(t, err)
	cert, key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	testkit.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	testkit.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), 0o600))
	pool = x509.NewCertPool()
	parsed, err := x509.ParseCertificate(der)
	testkit.NoError(t, err)
	pool.AddCert(parsed)
	return cert, key, pool
}
