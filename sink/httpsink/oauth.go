package httpsink

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
	"golang.org/x/sync/semaphore"

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
	redactor  *redactor

	current  atomic.Pointer[token]
	fetching *semaphore.Weighted // of one; it guards the fields below
	failure  error               // of the last fetch
	failedAt time.Time
}

type token struct {
	header string    // Authorization
	until  time.Time // not used after that; zero if it does not expire
}

func newTokens(c Config, t *http.Transport, r *redactor) *tokens {
	if c.OAuth2.TokenURL == "" {
		return nil
	}
	o := &tokens{
		config: clientcredentials.Config{
			ClientID: c.OAuth2.ClientID, ClientSecret: c.OAuth2.ClientSecret, TokenURL: c.OAuth2.TokenURL, Scopes: c.OAuth2.Scopes,
		},
		timeout: c.Timeout, redactor: r, fetching: semaphore.NewWeighted(1),
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
	if t := o.valid(); t != nil {
		return t, nil
	}
	began := time.Now()
	if o.fetching.Acquire(ctx, 1) != nil {
		return nil, sink.Unavailable(errors.New("not sent: cancelled while a token was fetched"))
	}
	defer o.fetching.Release(1)
	if t := o.valid(); t != nil {
		return t, nil
	}
	if o.failedAt.After(began) { // so that a server that does not respond costs one time-out, not one each
		return nil, o.failure
	}
	t, err := o.request(ctx)
	switch {
	case err == nil:
		o.current.Store(t)
	case ctx.Err() == nil: // the error is not only this request's
		o.failure, o.failedAt = err, time.Now()
	}
	return t, err
}

// valid returns the current token, or nil if there is none or it has expired.
func (o *tokens) valid() *token {
	t := o.current.Load()
	if t == nil || !t.until.IsZero() && !time.Now().Before(t.until) {
		return nil
	}
	return t
}

// drop removes a token that the server rejected, unless it has been replaced.
func (o *tokens) drop(rejected *token) {
	if o != nil {
		o.current.CompareAndSwap(rejected, nil)
	}
}

// renewBefore is how long before its end a token is renewed, but at most a tenth of its lifetime.
const renewBefore = 30 * time.Second

// request fetches a token.
func (o *tokens) request(ctx context.Context) (*token, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	client := &http.Client{
		Transport: noUpgrade{o.transport},
		// The client's secret is sent to no other host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	got, err := o.config.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
	if err != nil {
		return nil, o.failed(err)
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
		case failure.Response.StatusCode == http.StatusSwitchingProtocols:
			why += upgradeHint
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
