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
		return errors.New("oauth2 token_url: http://host/path or https://host/path was expected")
	case o.ClientID == "" || o.ClientSecret == "":
		return errors.New("oauth2: client_id and client_secret were expected")
	}
	return nil
}

// tokens fetches a token when one is needed, and keeps it until shortly before it
// expires or until the server answers 401 to it. However many requests wait for one, it
// is fetched once. A nil *tokens has none.
type tokens struct {
	config    clientcredentials.Config
	transport *http.Transport
	timeout   time.Duration
	host      string
	redactor  redactor

	mu    sync.Mutex
	kept  *token
	fetch *fetch // under way; nil: none is
}

type token struct {
	header string    // Authorization
	until  time.Time // it is not sent after that; zero: it does not expire
}

type fetch struct {
	over  chan struct{}
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
	// The sink's proxy, authorities and certificate (RFC 8705), but not the name that its
	// server goes by.
	o.transport = t.Clone()
	o.transport.TLSClientConfig.ServerName = ""
	return o
}

// get returns a token that is good for a while; nil where there is no need of one. The
// error wraps sink.ErrUnavailable and holds no secret.
func (o *tokens) get(ctx context.Context) (*token, error) {
	if o == nil {
		return nil, nil
	}
	for {
		o.mu.Lock()
		if t := o.kept; t != nil && (t.until.IsZero() || time.Now().Before(t.until)) {
			o.mu.Unlock()
			return t, nil
		}
		f, mine := o.fetch, false
		if f == nil {
			f, mine = &fetch{over: make(chan struct{})}, true
			o.fetch = f
		}
		o.mu.Unlock()
		if mine {
			f.token, f.err = o.ask(ctx)
			o.mu.Lock()
			o.kept, o.fetch = f.token, nil
			o.mu.Unlock()
			close(f.over)
			return f.token, f.err
		}
		select {
		case <-f.over:
		case <-ctx.Done():
			return nil, sink.Unavailable(errors.New("not sent: it was called off while a token was fetched"))
		}
		if f.err == nil || !errors.Is(f.err, errCalledOff) {
			return f.token, f.err
		} // whoever fetched was called off, and that says nothing
	}
}

// drop forgets a token that was refused, unless there is another by now.
func (o *tokens) drop(refused *token) {
	if o == nil || refused == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.kept == refused {
		o.kept = nil
	}
}

// earlier is how long before it expires a token is renewed, though never before nine
// tenths of its time are over.
const earlier = 30 * time.Second

// errCalledOff marks a fetch that ended because whoever needed it was called off.
var errCalledOff = errors.New("called off")

// ask fetches a token.
func (o *tokens) ask(ctx context.Context) (*token, error) {
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	client := &http.Client{
		Transport: o.transport,
		// The client's secret goes nowhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	got, err := o.config.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
	if err != nil {
		err = o.failed(err)
		if whole.Err() != nil {
			err = fmt.Errorf("%w: %w", err, errCalledOff)
		}
		return nil, err
	}
	o.redactor.learn(got.AccessToken)
	t := &token{header: got.Type() + " " + got.AccessToken}
	if !got.Expiry.IsZero() {
		t.until = got.Expiry.Add(-min(earlier, time.Until(got.Expiry)/10))
	}
	return t, nil
}

// failed says why there is no token. It is an outage, whatever the server answered, and
// never the batch's doing: so causes are kept as text alone.
func (o *tokens) failed(err error) error {
	why, retry := "", time.Duration(0)
	if answer, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		why = "it answers " + strconv.Itoa(answer.Response.StatusCode) + " " + http.StatusText(answer.Response.StatusCode)
		switch {
		case answer.ErrorCode != "":
			why += ": " + o.redactor.quote([]byte(answer.ErrorCode+" "+answer.ErrorDescription), false)
		case answer.Response.StatusCode >= 300 && answer.Response.StatusCode <= 399:
			why += " (redirects are not followed)"
		case len(answer.Body) > 0:
			why += ": " + o.redactor.quote(answer.Body, false)
		}
		retry, _ = pauses(answer.Response.StatusCode, answer.Response.Header, time.Now())
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

// close closes the connections that are idle.
func (o *tokens) close() {
	if o != nil {
		o.transport.CloseIdleConnections()
	}
}
