package httpsink

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// The formats of a request's body.
const (
	JSON        = "json"        // one object with all events of the batch
	NDJSON      = "ndjson"      // one event a line
	Array       = "array"       // an array of events
	Form        = "form"        // form fields, from the object that Request makes
	CloudEvents = "cloudevents" // CloudEvents 1.0: batched, or structured with Single
	// CloudEventsBinary is one CloudEvent 1.0 a request, in binary mode: the body is the payload, the attributes are headers.
	CloudEventsBinary = "cloudevents-binary"
)

// Config says where and how to send.
type Config struct {
	// URL is the template of an event's address, http or https. Placeholders can follow the host; their
	// values are escaped. user:password@ is sent as basic authentication. Required.
	URL string
	// ShownURL is URL with *** in the place of what a preview must not show; "" means URL. What looks secret in it is masked too.
	ShownURL string
	// Method is POST, PUT or PATCH; "" means POST.
	Method string
	// Headers are set on each request and override the sink's own. Their values can contain {topic} and
	// {key}; other braces stay as they are.
	Headers map[string]string
	// Format of the body; "" means JSON.
	Format string
	// Single promises that no batch has more than one event. CloudEventsBinary implies it, and splits a batch that has more.
	Single bool
	// Request is a jq program that makes the body of the one that would be sent without it; "" means
	// none. A string is sent as it is. As NDJSON an array is sent one element a line, as Form an object
	// is sent as fields.
	Request string
	// LeavesOut says that Request leaves out events on purpose. Otherwise a notice, and a preview, name events without which it makes the same body.
	LeavesOut bool
	// Results is a jq program that makes, of {status, headers, body, events}, the list of events that
	// failed; "" means none.
	Results string
	// ProgramSecrets are what Request and Results read as $secret.NAME, by name.
	ProgramSecrets map[string]string
	// Gzip compresses bodies.
	Gzip bool
	// Rate is how many requests may begin in a time; zero means no limit.
	Rate sink.Rate
	// Shared counts the requests of all processes under the name of the Pipeline; nil means that this
	// process counts alone.
	Shared   buffer.TokenBucket
	Pipeline string
	// MaxInFlight is how many requests may be in flight at once; 0 means no limit.
	MaxInFlight int
	// Bearer is a token, Basic a user and password, and OAuth2 fetches tokens. At most one of them may be
	// set; it fills the header Authorization.
	Bearer string
	Basic  Basic
	OAuth2 OAuth2
	// Sign are the keys, whsec_ and base64 each, that sign requests as Standard Webhooks says; nil means none. A request has a
	// signature by each, in this order. Not with NDJSON.
	Sign []string
	// Proxy is a proxy's URL; "" means that of the environment (http.ProxyFromEnvironment).
	Proxy string
	// Timeout of a request and its response; 0 means 30 seconds.
	Timeout time.Duration
	// MaxBytes is the maximum size of a body before compression. A larger batch is split before it is
	// sent. 0 means no limit.
	MaxBytes int
	// Refused are statuses, 100 to 599 except 2xx, that reject the batch; Unavailable are those that are
	// an outage. They override what the statuses mean otherwise.
	Refused, Unavailable []int
	// Secrets are other values that errors must not quote.
	Secrets []string
	// TLS is for https.
	TLS sink.TLS
}

// Basic is HTTP basic authentication; without User there is none.
type Basic struct{ User, Password string }

// OAuth2 are client credentials (RFC 6749, 4.4); without TokenURL there are none.
type OAuth2 struct {
	TokenURL, ClientID, ClientSecret string
	Scopes                           []string
	// Audience is sent with the request for a token, unless it is "".
	Audience string
}

func (c Config) withDefaults() Config {
	if c.Method == "" {
		c.Method = http.MethodPost
	}
	if c.Format == "" {
		c.Format = JSON
	}
	if c.Format == CloudEventsBinary {
		c.Single = true
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	return c
}

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

func (c Config) validateBody() error {
	switch c.Format {
	case NDJSON:
		if len(c.Sign) > 0 { // they parse the body that they have verified
			return errors.New("sign is used with format ndjson, which no Standard Webhooks library reads; expected another format")
		}
	case JSON, Array:
	case Form:
		if c.Request == "" {
			return errors.New("format is form and request is missing; expected a program that makes the fields")
		}
	case CloudEvents, CloudEventsBinary:
		if c.Request != "" {
			return fmt.Errorf("format is %s and request is given; expected only one of them", c.Format)
		}
	default:
		return fmt.Errorf("format is %q; expected json, ndjson, array, form, cloudevents or cloudevents-binary", c.Format)
	}
	for name, value := range c.Headers {
		switch canonical := http.CanonicalHeaderKey(name); {
		case c.Gzip && canonical == headerEncoding:
			return errors.New("headers: Content-Encoding is set by gzip; expected only one of them")
		case canonical == "Host" && !headerTemplate(value).Fixed():
			return errors.New("headers: Host contains {topic} or {key}; expected a fixed value")
		}
	}
	return nil
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
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	if strings.Trim(name, letters+"0123456789"+punctuation) != "" {
		return fmt.Errorf("%q is not the name of a header; expected letters, digits and %s", name, punctuation)
	}
	switch http.CanonicalHeaderKey(name) {
	case "":
		return errors.New("the name of a header is empty; expected a name")
	case "Content-Length", "Transfer-Encoding", "Connection", "Trailer":
		return fmt.Errorf("%s is set by the relay; expected another header", name)
	}
	if strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
		return fmt.Errorf("the value of %s contains a line break or a control character; expected one line of text", name)
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
	return c.OAuth2.validate()
}
