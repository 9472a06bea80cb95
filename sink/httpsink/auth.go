package httpsink

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const headerAuthorization = "Authorization"

// setAuthorization sets what is the same for all requests. A token of OAuth2 is set on each request.
func (c Config) setAuthorization(h http.Header) {
	switch {
	case c.Bearer != "":
		h.Set(headerAuthorization, "Bearer "+c.Bearer)
	case c.Basic != Basic{}:
		(&http.Request{Header: h}).SetBasicAuth(c.Basic.User, c.Basic.Password)
	}
}

// accessSecrets are the secrets that a server may repeat in its response.
func (c Config) accessSecrets() []string {
	all := append([]string{c.Bearer}, c.Sign...)
	for _, u := range []*url.Userinfo{
		url.UserPassword(c.Basic.User, c.Basic.Password),
		url.UserPassword(c.OAuth2.ClientID, c.OAuth2.ClientSecret),
		// RFC 6749, 2.3.1: basic authentication with both encoded as in a form.
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

// userSecrets are the password (the user, if there is no password) and the credentials of basic
// authentication.
func userSecrets(u *url.Userinfo) []string {
	password, ok := u.Password()
	credentials := u.Username() + ":" + password
	if !ok {
		password = u.Username()
	}
	return []string{password, credentials, base64.StdEncoding.EncodeToString([]byte(credentials))}
}

// permit is what a request needs to begin.
type permit struct {
	token   *token // nil without OAuth2
	release func() // ends the request for the limiter
}

// acquire waits until a request may begin. It fetches the OAuth2 token first, so that the limiter
// counts no request that cannot be made.
func (s *Sink) acquire(ctx context.Context) (permit, error) {
	if _, err := s.tokens.get(ctx); err != nil {
		return permit{}, err
	}
	release, err := s.limiter.acquire(ctx)
	if err != nil {
		return permit{}, err
	}
	t, err := s.tokens.get(ctx) // the first one may have expired
	if err != nil {
		release()
		return permit{}, err
	}
	return permit{t, release}, nil
}

// authorize adds the token and the signature to a request.
func (s *Sink) authorize(req *http.Request, p permit, groupID string, body []byte) {
	if p.token != nil {
		req.Header.Set(headerAuthorization, p.token.header)
	}
	s.signers.sign(req.Header, groupID, time.Now(), body)
}

// observe applies what a response says about further requests: a rejected token, a pause, if it is not the batch's alone.
func (s *Sink) observe(resp *http.Response, p permit, b *buffer.Batch) {
	if resp.StatusCode == http.StatusUnauthorized {
		s.tokens.drop(p.token)
	}
	if b.AskedAlone && !isSuccess(resp.StatusCode) {
		return
	}
	if _, pause := retryDelays(resp.StatusCode, resp.Header, time.Now()); pause > 0 {
		s.limiter.pause(pause, fmt.Sprintf("the server asked for a pause (%d)", resp.StatusCode))
	}
}

// signers are the keys that sign requests as Standard Webhooks says
// (https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md). nil signs
// nothing. While a secret is rotated there are two: a receiver accepts a request if any of its signatures is valid.
//
// It signs the body before compression. Receivers can always check that, while a proxy or a framework that
// decompresses hides the bytes that were sent.
type signers [][]byte

var errSign = errors.New("sign is not a signing secret; expected whsec_ and 24 to 64 bytes in base64")

func newSigners(secrets []string) (keys signers, err error) {
	for _, secret := range secrets {
		text, ok := strings.CutPrefix(secret, "whsec_")
		key, err := base64.StdEncoding.DecodeString(text)
		if !ok || err != nil || len(key) < 24 || len(key) > 64 {
			return nil, errSign
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// sign adds the headers. id is the same in each attempt, and the time is that of this attempt, so that
// receivers can reject old ones.
func (s signers) sign(h http.Header, id string, now time.Time, body []byte) {
	if s == nil {
		return
	}
	at := strconv.FormatInt(now.Unix(), 10)
	signatures := make([]string, len(s))
	for i, key := range s {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + at + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", at)
	h.Set("Webhook-Signature", strings.Join(signatures, " "))
}
