package httpsink_test

import (
	"bufio"
	"context"
	"encoding/pem"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

const proxyUser, proxyPassword = "proxy-user", "pr0xy/p%ss"

// proxy is a forward proxy, for requests and tunnels, that requires a password.
type proxy struct {
	t  *testing.T
	mu sync.Mutex
	// seen are the methods and targets of the requests, and whether they had an Authorization.
	seen []string
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	inside := r.Clone(r.Context())
	inside.Header = http.Header{"Authorization": r.Header["Proxy-Authorization"]}
	user, password, _ := inside.BasicAuth()
	if user != proxyUser || password != proxyPassword {
		w.Header().Set("Proxy-Authenticate", "Basic")
		w.WriteHeader(http.StatusProxyAuthRequired)
		write(p.t, w, "not with "+password)
		return
	}
	line := r.Method + " " + r.URL.Host + r.URL.Path
	if r.Header.Get("Authorization") != "" {
		line += " authorized"
	}
	p.mu.Lock()
	p.seen = append(p.seen, line)
	p.mu.Unlock()
	if r.Method == http.MethodConnect {
		p.tunnel(w, r)
		return
	}
	r.RequestURI = ""
	r.Header.Del("Proxy-Authorization")
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	maps.Copy(w.Header(), resp.Header)
	w.WriteHeader(resp.StatusCode)
	if _, err := io.Copy(w, resp.Body); err != nil {
		p.t.Error(err)
	}
}

func (p *proxy) tunnel(w http.ResponseWriter, r *http.Request) {
	to, err := net.Dial("tcp", r.Host)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer to.Close()
	from, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		p.t.Error(err)
		return
	}
	defer from.Close()
	if _, err := io.WriteString(from, "HTTP/1.1 200 Connection Established\r\n\r\n"); err != nil {
		return
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(to, bufio.NewReader(buffered))
		_ = to.Close()
	}()
	_, _ = io.Copy(from, to)
	_ = from.Close()
	<-over
}

func (p *proxy) lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.seen)
}

// caOf is a file with the server's certificate.
func caOf(t *testing.T, servers ...*httptest.Server) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.pem")
	var all []byte
	for _, s := range servers {
		all = append(all, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})...)
	}
	testkit.NoError(t, os.WriteFile(file, all, 0o600))
	return file
}

func secure(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	return s
}

func through(url, password string) string {
	return strings.Replace(url, "://", "://"+proxyUser+":"+strings.NewReplacer("/", "%2F", "%", "%25").Replace(password)+"@", 1)
}

// TestProxy expects requests, requests for tokens and Check to go through the proxy. Check must send the
// server nothing.
func TestProxy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ secureProxy, secureServer bool }{
		"http, http": {}, "http, https": {false, true}, "https, http": {true, false}, "https, https": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := &issuer{t: t, expiresIn: "3600"}
			mux := http.NewServeMux()
			mux.HandleFunc("/token", i.token)
			mux.HandleFunc("/in", i.api)
			p := &proxy{t: t}
			secured := secure(t, mux) // also what signs for all: httptest has one certificate
			server, proxyURL := secured.URL, ""
			if !c.secureServer {
				server = serve(t, mux.ServeHTTP)
			}
			if c.secureProxy {
				proxyURL = secure(t, p).URL
			} else {
				proxyURL = serve(t, p.ServeHTTP)
			}
			config := httpsink.Config{
				URL: server + "/in", Proxy: through(proxyURL, proxyPassword), TLS: sink.TLS{CA: caOf(t, secured)},
				OAuth2: httpsink.OAuth2{TokenURL: server + "/token", ClientID: clientID, ClientSecret: clientSecret},
			}
			s := open(t, config)
			testkit.NoError(t, s.Check(testContext(t)))
			host := strings.SplitN(server, "://", 2)[1]
			checked, want := 0, []string{"POST " + host + "/token authorized", "POST " + host + "/in authorized"}
			if c.secureServer {
				checked, want = 1, []string{"CONNECT " + host, "CONNECT " + host, "CONNECT " + host} // Check, token, request
			}
			if n := len(p.lines()); n != checked {
				t.Errorf("Check made %q", p.lines())
			}
			testkit.NoError(t, s.Send(testContext(t), batch("a")))
			if got := p.lines(); !slices.Equal(got, want) {
				t.Errorf("through the proxy went %q, want %q", got, want)
			}

			stranger := config // expects another server behind the proxy
			if stranger.TLS.ServerName = "another.example"; c.secureServer && !c.secureProxy {
				if err := open(t, stranger).Check(testContext(t)); err == nil || !strings.Contains(err.Error(), "another.example") {
					t.Errorf("Check of a server with another name: %v", err)
				}
			}

			config.Proxy = through(proxyURL, "wr0ng/p%ss")
			config.OAuth2 = httpsink.OAuth2{}
			wrong := open(t, config)
			err := wrong.Send(testContext(t), batch("a"))
			expectMaybePoison(t, err, false)
			if text := err.Error(); !strings.Contains(text, "Proxy Authentication Required") || strings.Contains(text, "wr0ng") {
				t.Errorf("got %q", text)
			}
			if err := wrong.Check(testContext(t)); c.secureServer && (err == nil || !strings.Contains(err.Error(), "407") || strings.Contains(err.Error(), "wr0ng")) {
				t.Errorf("Check with a wrong password: %v", err)
			}
		})
	}
}

// TestProxy_Unavailable has proxies that do not exist, refuse, hang or send no HTTP.
func TestProxy_Unavailable(t *testing.T) {
	t.Parallel()
	hung, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, hung.Close()) })
	refuses := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	for proxy, want := range map[string]string{
		"http://u:pr0xypass@127.0.0.1:1": "connection refused", refuses: "403", "http://" + hung.Addr().String(): "no answer in time",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), soon/20)
		s := open(t, httpsink.Config{URL: "https://127.0.0.1:2/in", Proxy: proxy})
		err := s.Check(ctx)
		expectOutage(t, err)
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "pr0xypass") {
			t.Errorf("got %v, want one that says %q", err, want)
		}
		err = s.Send(ctx, batch("a"))
		expectMaybePoison(t, err, false)
		if strings.Contains(err.Error(), "pr0xypass") {
			t.Errorf("got %v", err)
		}
		cancel()
	}
	if _, err := httpsink.New(httpsink.Config{URL: "http://h/", Proxy: "http://"}); err == nil {
		t.Error("a proxy without a host was taken")
	}
}
