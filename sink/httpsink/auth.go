package httpsink

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/outboxrelay/relay/sink"
)

// validateAccess looks at what lets requests in, and when.
func (c Config) validateAccess() error {
	var ways []string
	for name, is := range map[string]bool{
		"bearer": c.Bearer != "", "basic": c.Basic != Basic{}, "oauth2": c.OAuth2.TokenURL != "" || c.OAuth2.ClientID != "",
	} {
		if is {
			ways = append(ways, name)
		}
	}
	if len(ways) > 1 {
		return errors.New("bearer, basic and oauth2 all fill Authorization: one of them was expected")
	}
	if len(ways) == 1 {
		for name := range c.Headers {
			if http.CanonicalHeaderKey(name) == headerAuthorization {
				return fmt.Errorf("headers has %s and so has %s: one of them was expected", headerAuthorization, ways[0])
			}
		}
		if u, err := url.Parse(strings.NewReplacer("{topic}", "x", "{key}", "x").Replace(c.URL)); err == nil && u.User != nil {
			return fmt.Errorf("the user in url fills Authorization and so does %s: one of them was expected", ways[0])
		}
	}
	if err := checkHeader(headerAuthorization, c.Bearer); err != nil {
		return errors.New("bearer: a token on one line was expected")
	}
	if c.Basic.User == "" && c.Basic.Password != "" {
		return errors.New("basic: a user was expected")
	}
	switch {
	case c.Rate.Requests < 0 || c.Rate.Per < 0 || (c.Rate.Requests == 0) != (c.Rate.Per == 0):
		return fmt.Errorf("rate of %d per %v: at least one request and a time above 0 were expected", c.Rate.Requests, c.Rate.Per)
	case c.Shared != nil && c.Pipeline == "":
		return errors.New("rate: a shared one needs the pipeline's name")
	case c.MaxInFlight < 0:
		return fmt.Errorf("max_in_flight %d: 0 or more was expected", c.MaxInFlight)
	}
	_, errSign := newSigner(c.Sign)
	_, errProxy := proxyOf(c.Proxy)
	return errors.Join(c.OAuth2.validate(), errSign, errProxy)
}

const headerAuthorization = "Authorization"

// setAuthorization is for all requests; a token that is fetched is set later.
func (c Config) setAuthorization(h http.Header) {
	switch {
	case c.Bearer != "":
		h.Set(headerAuthorization, "Bearer "+c.Bearer)
	case c.Basic != Basic{}:
		(&http.Request{Header: h}).SetBasicAuth(c.Basic.User, c.Basic.Password)
	}
}

// accessSecrets are those that a server may echo.
func (c Config) accessSecrets() []string {
	all := []string{c.Bearer, c.Sign}
	for _, u := range []*url.Userinfo{
		url.UserPassword(c.Basic.User, c.Basic.Password),
		url.UserPassword(c.OAuth2.ClientID, c.OAuth2.ClientSecret),
		// RFC 6749, 2.3.1: encoded as a form is, and then as basic authentication.
		url.UserPassword(url.QueryEscape(c.OAuth2.ClientID), url.QueryEscape(c.OAuth2.ClientSecret)),
	} {
		if password, _ := u.Password(); password != "" {
			all = append(all, userSecrets(u)...)
		}
	}
	if u, err := url.Parse(c.OAuth2.TokenURL); err == nil && u.User != nil {
		all = append(all, userSecrets(u.User)...)
	}
	return all
}

// userSecrets are the password, or the user where there is none, and what basic
// authentication makes of both.
func userSecrets(u *url.Userinfo) []string {
	password, ok := u.Password()
	if !ok {
		password = u.Username()
	}
	plain := u.Username() + ":" + password
	if !ok {
		plain = password + ":"
	}
	return []string{password, plain, base64.StdEncoding.EncodeToString([]byte(plain))}
}

// leave is what a request needs to begin.
type leave struct {
	token *token // nil: none was fetched
	done  func() // gives the place back
}

// enter waits until a request may begin; sink.ErrNotSent: the process stopped meanwhile.
func (s *Sink) enter(ctx context.Context) (leave, error) {
	ctx, over := sink.BeforeSend(ctx)
	defer over()
	l, err := s.wait(ctx)
	if err != nil && errors.Is(context.Cause(ctx), sink.ErrNotSent) {
		return leave{}, sink.ErrNotSent
	}
	return l, err
}

// wait is for leave. A token that has to be fetched comes first: no request is counted
// that could not be made.
func (s *Sink) wait(ctx context.Context) (leave, error) {
	if _, err := s.tokens.get(ctx); err != nil {
		return leave{}, err
	}
	done, err := s.limiter.begin(ctx)
	if err != nil {
		return leave{}, err
	}
	t, err := s.tokens.get(ctx) // that may have taken a while
	if err != nil {
		done()
		return leave{}, err
	}
	return leave{t, done}, nil
}

// admit puts into a request what it was given leave with, and signs it.
func (s *Sink) admit(req *http.Request, l leave, groupID string, body []byte) {
	if l.token != nil {
		req.Header.Set(headerAuthorization, l.token.header)
	}
	s.signer.sign(req.Header, groupID, time.Now(), body)
}

// learn takes from an answer what it says of the requests after it.
func (s *Sink) learn(resp *http.Response, l leave) {
	if resp.StatusCode == http.StatusUnauthorized {
		s.tokens.drop(l.token)
	}
	if _, pause := pauses(resp.StatusCode, resp.Header, time.Now()); pause > 0 {
		s.limiter.pause(pause, fmt.Sprintf("the server asked for a pause (%d)", resp.StatusCode))
	}
}
