package httpsink

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

func (c Config) validate() error {
	if c.Method != http.MethodPost && c.Method != http.MethodPut && c.Method != http.MethodPatch {
		return fmt.Errorf("method is %q; expected POST, PUT or PATCH", c.Method)
	}
	if err := c.validateBody(); err != nil {
		return err
	}
	switch {
	case c.Timeout < 0:
		return fmt.Errorf("timeout is %v; expected more than 0", c.Timeout)
	case c.MaxBytes < 0:
		return fmt.Errorf("max_bytes is %d; expected 0 or more", c.MaxBytes)
	case c.Rate.Requests < 0 || c.Rate.Per < 0 || (c.Rate.Requests == 0) != (c.Rate.Per == 0):
		return fmt.Errorf("rate is %d per %v; expected at least one request and a time above 0", c.Rate.Requests, c.Rate.Per)
	case c.Shared != nil && c.Pipeline == "":
		return errors.New("rate is shared and has no name; expected the name of the pipeline")
	case c.MaxInFlight < 0:
		return fmt.Errorf("max_in_flight is %d; expected 0 or more", c.MaxInFlight)
	}
	if err := errors.Join(checkStatuses("refused", c.Refused), checkStatuses("unavailable", c.Unavailable)); err != nil {
		return err
	}
	for _, status := range c.Refused {
		if slices.Contains(c.Unavailable, status) {
			return fmt.Errorf("refused and unavailable both contain the status %d; expected it in one of them", status)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		if err := checkHeader(name, c.Headers[name]); err != nil {
			return fmt.Errorf("headers: %w", err)
		}
	}
	return c.validateAccess()
}

func checkStatuses(key string, statuses []int) error {
	for _, status := range statuses {
		if status < 100 || status > 599 || isSuccess(status) {
			return fmt.Errorf("%s contains the status %d; expected 100 to 599 except 2xx, which means delivered", key, status)
		}
	}
	return nil
}

// checkHeader finds what net/http would reject each time a batch is sent.
func checkHeader(name, value string) error {
	const punctuation = "!#$%&'*+-.^_`|~"
	for _, c := range []byte(name) {
		isToken := c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || strings.IndexByte(punctuation, c) >= 0
		if !isToken {
			return fmt.Errorf("%q is not the name of a header; expected letters, digits and %s", name, punctuation)
		}
	}
	switch http.CanonicalHeaderKey(name) {
	case "":
		return errors.New("the name of a header is empty; expected a name")
	case "Content-Length", "Transfer-Encoding", "Connection", "Trailer":
		return fmt.Errorf("%s is set by the relay; expected another header", name)
	}
	for _, c := range []byte(value) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return fmt.Errorf("the value of %s contains a line break or a control character; expected one line of text", name)
		}
	}
	return nil
}

// validateAccess checks what fills the header Authorization, and the credentials.
func (c Config) validateAccess() error {
	var methods []string
	for name, isSet := range map[string]bool{
		"bearer": c.Bearer != "", "basic": c.Basic != Basic{}, "oauth2": c.OAuth2.TokenURL != "" || c.OAuth2.ClientID != "",
	} {
		if isSet {
			methods = append(methods, name)
		}
	}
	if len(methods) > 1 {
		return errors.New("bearer, basic and oauth2 all set Authorization; expected one of them")
	}
	if len(methods) == 1 {
		for name := range c.Headers {
			if http.CanonicalHeaderKey(name) == headerAuthorization {
				return fmt.Errorf("headers and %s both set %s; expected one of them", methods[0], headerAuthorization)
			}
		}
		if u, err := parseTemplate(c.URL); err == nil && u.User != nil {
			return fmt.Errorf("the user in url and %s both set %s; expected one of them", methods[0], headerAuthorization)
		}
	}
	if err := checkHeader(headerAuthorization, c.Bearer); err != nil {
		return errors.New("bearer contains a line break or a control character; expected a token on one line")
	}
	if c.Basic.User == "" && c.Basic.Password != "" {
		return errors.New("basic.user is missing; expected a user with the password")
	}
	_, errSign := newSigner(c.Sign)
	_, errProxy := proxyFunc(c.Proxy)
	return errors.Join(c.OAuth2.validate(), errSign, errProxy)
}
