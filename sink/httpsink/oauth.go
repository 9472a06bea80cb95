package httpsink

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/outboxrelay/relay/sink"
)

func (o OAuth2) validate() error {
	if o.TokenURL == "" && o.ClientID == "" && o.ClientSecret == "" {
		return nil
	}
	u, err := url.Parse(o.TokenURL)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "": // url.Parse quotes the URL
		return errors.New("oauth2.token_url is not an HTTP URL; expected http://host/path or https://host/path")
	case o.ClientID == "" || o.ClientSecret == "":
		return errors.New("oauth2.client_id or oauth2.client_secret is missing; expected both")
	}
	return nil
}

// tokens fetches a token when a request needs one, and caches it until shortly before it expires or until
// the server responds with 401. Requests that wait for a token share one fetch. A nil *tokens has none.
type tokens struct {
	config    clientcredentials.Config
	transport *http.Transport
	timeout   time.Duration
	host      string
	redactor  redactor

	mu    sync.Mutex
	token *token // may be nil
	fetch *fetch // in progress; may be nil
}

type token struct {
	header string    // Authorization
	until  time.Time // not used after that; zero if it does not expire
}

type fetch struct {
	done  chan struct{} // closed when token and err are set
	token *token
	err   error
}

func newTokens(c Config, t *http.Transport, r redactor) *tokens {
	if c.OAuth2.TokenURL == "" {
		return nil
	}
	o := &tokens{
		config: clientcredentials.Config{
			ClientID: c.OAuth2.ClientID, ClientSecret: c.OAuth2.ClientSecret, TokenURL: c.OAuth2.TokenURL, Scopes: c.OAuth2.Scopes,
		},
		timeout: c.Timeout, redactor: r,
	}
	if c.OAuth2.Audience != "" {
		o.config.EndpointParams = url.Values{"audience": {c.OAuth2.Audience}}
	}
	if u, err := url.Parse(c.OAuth2.TokenURL); err == nil {
		o.host = u.Host
	}
	// With the sink's proxy, authorities and certificate (RFC 8705), but not its server name.
	o.transport = t.Clone()
	o.transport.TLSClientConfig.ServerName = ""
	return o
}

// get returns a valid token, or nil if requests need none. The error wraps sink.ErrUnavailable and contains
// no secret.
func (o *tokens) get(ctx context.Context) (*token, error) {
	if o == nil {
		return nil, nil
	}
	for {
		o.mu.Lock()
		if t := o.token; t != nil && (t.until.IsZero() || time.Now().Before(t.until)) {
			o.mu.Unlock()
			return t, nil
		}
		f, mine := o.fetch, false
		if f == nil {
			f, mine = &fetch{done: make(chan struct{})}, true
			o.fetch = f
		}
		o.mu.Unlock()
		if mine {
			f.token, f.err = o.request(ctx)
			o.mu.Lock()
			o.token, o.fetch = f.token, nil
			o.mu.Unlock()
			close(f.done)
			return f.token, f.err
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, sink.Unavailable(errors.New("not sent: cancelled while a token was fetched"))
		}
		if f.err == nil || !errors.Is(f.err, errCancelled) {
			return f.token, f.err
		} // only the other request was cancelled: try again
	}
}

// drop removes a token that the server rejected, unless it has been replaced.
func (o *tokens) drop(rejected *token) {
	if o == nil || rejected == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.token == rejected {
		o.token = nil
	}
}

// renewBefore is how long before its end a token is renewed, but at most a tenth of its lifetime.
const renewBefore = 30 * time.Second

// errCancelled marks a fetch that ended because the request that started it was cancelled.
var errCancelled = errors.New("cancelled")

// request fetches a token.
func (o *tokens) request(parent context.Context) (*token, error) {
	ctx, cancel := context.WithTimeout(parent, o.timeout)
	defer cancel()
	client := &http.Client{
		Transport: o.transport,
		// The client's secret is sent to no other host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	got, err := o.config.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
	if err != nil {
		err = o.failed(err)
		if parent.Err() != nil {
			err = fmt.Errorf("%w: %w", err, errCancelled)
		}
		return nil, err
	}
	o.redactor.addToken(got.AccessToken)
	t := &token{header: got.Type() + " " + got.AccessToken}
	if !got.Expiry.IsZero() {
		t.until = got.Expiry.Add(-min(renewBefore, time.Until(got.Expiry)/10))
	}
	return t, nil
}

// failed returns why there is no token. That is an outage for every response of the server, and never the
// batch's fault: so the error wraps no cause.
func (o *tokens) failed(err error) error {
	why, retry := "", time.Duration(0)
	if failure, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		why = "it responds with " + strconv.Itoa(failure.Response.StatusCode) + " " + http.StatusText(failure.Response.StatusCode)
		switch {
		case failure.ErrorCode != "":
			why += ": " + o.redactor.quote([]byte(failure.ErrorCode+" "+failure.ErrorDescription), false)
		case failure.Response.StatusCode >= 300 && failure.Response.StatusCode <= 399:
			why += " (redirects are not followed)"
		case len(failure.Body) > 0:
			why += ": " + o.redactor.quote(failure.Body, false)
		}
		retry, _ = retryDelays(failure.Response.StatusCode, failure.Response.Header, time.Now())
	} else {
		if outer, ok := errors.AsType[*url.Error](err); ok { // it quotes the URL
			err = outer.Err
		}
		why = o.redactor.quote([]byte(err.Error()), false)
	}
	err = errors.New("no token from " + o.host + ": " + why)
	if retry > 0 {
		return &sink.UnavailableError{Err: err, RetryAfter: retry}
	}
	return sink.Unavailable(err)
}

// close closes idle connections.
func (o *tokens) close() {
	if o != nil {
		o.transport.CloseIdleConnections()
	}
}
