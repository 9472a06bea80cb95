package httpsink

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/sink"
)

// The formats of a request's body.
const (
	JSON        = "json"        // one object with all events of the batch
	NDJSON      = "ndjson"      // one event a line
	Array       = "array"       // an array of events
	Form        = "form"        // form fields, of the object that Request makes
	CloudEvents = "cloudevents" // CloudEvents 1.0, batched; structured where Single
)

// Config says where and how to send.
type Config struct {
	// URL is the template of an event's address, http or https. Placeholders may
	// stand behind the host and are escaped as their place demands. user:password@
	// becomes basic authentication. Required.
	URL string
	// Method is POST, PUT or PATCH; "" means POST.
	Method string
	// Headers are set on each request, over the ones of the sink's own. Their values may
	// hold {topic} and {key}; other braces stay as they are.
	Headers map[string]string
	// Format of the body; "" means JSON.
	Format string
	// Single: no batch has more than one event.
	Single bool
	// Request is a jq program that makes the body, of the body that would be sent without
	// it; "" for none. A result that is a string is sent as it is; as NDJSON an array is
	// sent one element a line, as Form an object in fields.
	Request string
	// Results is a jq program that says which events did not succeed, of
	// {status, headers, body, events}; "" for none.
	Results string
	// Gzip compresses bodies.
	Gzip bool
	// Rate is how many requests may begin in a time; zero: any number. Shared counts for
	// all processes, under the name of the Pipeline; nil: this process counts alone.
	Rate     sink.Rate
	Shared   sink.Bucket
	Pipeline string
	// MaxInFlight is how many requests may be under way at once; 0: any number.
	MaxInFlight int
	// Bearer is a token, Basic a user and password, OAuth2 fetches tokens: one of them at
	// the most, for the header Authorization.
	Bearer string
	Basic  Basic
	OAuth2 OAuth2
	// Sign is the key, whsec_ and base64, by which requests are signed as Standard
	// Webhooks says; "" for none.
	Sign string
	// Proxy is a proxy's URL; "" goes by the environment (http.ProxyFromEnvironment).
	Proxy string
	// Timeout of a request, its answer included; 0 means 30 seconds.
	Timeout time.Duration
	// MaxBytes is how large a request's body may be; a batch that makes a larger one
	// is divided before it is sent. 0: no limit.
	MaxBytes int
	// Refused and Unavailable are statuses, 100 to 599 but for 2xx, that refuse the
	// batch for good, and that are an outage and no fault of the batch, whatever
	// they mean otherwise.
	Refused, Unavailable []int
	// TLS is for https.
	TLS TLS
}

// Basic is HTTP basic authentication; no User: none.
type Basic struct{ User, Password string }

// OAuth2 are client credentials (RFC 6749, 4.4); no TokenURL: none.
type OAuth2 struct {
	TokenURL, ClientID, ClientSecret string
	Scopes                           []string
	// Audience is sent with the request for a token, where it is not "".
	Audience string
}

// TLS says how to trust the server and what to show it.
type TLS struct {
	// CA is a PEM file with the authorities to trust; "" means the system's.
	CA string
	// Cert and Key are PEM files with the client's certificate; "" means none.
	Cert, Key string
	// ServerName is what the server's certificate has to name; "" means the
	// URL's host.
	ServerName string
	// InsecureSkipVerify trusts every server.
	InsecureSkipVerify bool
}

func (c Config) withDefaults() Config {
	if c.Method == "" {
		c.Method = http.MethodPost
	}
	if c.Format == "" {
		c.Format = JSON
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	return c
}

func (c Config) validate() error {
	if c.Method != http.MethodPost && c.Method != http.MethodPut && c.Method != http.MethodPatch {
		return fmt.Errorf("method %q: POST, PUT or PATCH was expected", c.Method)
	}
	if err := c.validateBody(); err != nil {
		return err
	}
	if c.Timeout < 0 {
		return fmt.Errorf("timeout %v: a time above 0 was expected", c.Timeout)
	}
	if c.MaxBytes < 0 {
		return fmt.Errorf("max_bytes %d: 0 or more was expected", c.MaxBytes)
	}
	if err := errors.Join(checkStatuses("refused", c.Refused), checkStatuses("unavailable", c.Unavailable)); err != nil {
		return err
	}
	for _, status := range c.Refused {
		if slices.Contains(c.Unavailable, status) {
			return fmt.Errorf("status %d stands in refused and in unavailable, one of them was expected", status)
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
		if status < 100 || status > 599 || status >= 200 && status <= 299 {
			return fmt.Errorf("%s: status %d: 100 to 599 was expected, but not 2xx, which is delivered", key, status)
		}
	}
	return nil
}

// checkHeader finds what net/http would refuse each time a batch is sent.
func checkHeader(name, value string) error {
	const punctuation = "!#$%&'*+-.^_`|~"
	for _, c := range []byte(name) {
		isToken := c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || strings.IndexByte(punctuation, c) >= 0
		if !isToken {
			return fmt.Errorf("%q is not a header's name", name)
		}
	}
	switch http.CanonicalHeaderKey(name) {
	case "":
		return errors.New("a header has no name")
	case "Content-Length", "Transfer-Encoding", "Connection", "Trailer":
		return fmt.Errorf("%s is not for you to set", name)
	}
	for _, c := range []byte(value) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return fmt.Errorf("the value of %s has a line break or a control character in it", name)
		}
	}
	return nil
}

// target is the URL, taken apart.
type target struct {
	template sink.Template // without user and password
	scheme   string
	host     string // with its port
	user     *url.Userinfo
}

// parseURL takes the URL apart. Its errors quote no more of it than its host.
func parseURL(text string) (target, error) {
	u, err := url.Parse(strings.NewReplacer("{topic}", "x", "{key}", "x").Replace(text))
	if err != nil { // url.Parse quotes the URL
		return target{}, errors.New("url is not a URL, https://host/path was expected")
	}
	scheme, rest, _ := strings.Cut(text, "://")
	authority := rest
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority = rest[:end]
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https" || u.Opaque != "" || u.Hostname() == "":
		return target{}, errors.New("url: http://host/path or https://host/path was expected")
	case strings.Contains(authority, "{"):
		return target{}, errors.New("url: placeholders may stand behind the host only")
	case checkPath(text) != nil:
		return target{}, fmt.Errorf("url of %s: a path without . and .. was expected", u.Host)
	case strings.Contains(text, "#"):
		return target{}, fmt.Errorf("url of %s: nothing was expected behind #", u.Host)
	}
	at := strings.LastIndex(authority, "@") + 1
	t := target{scheme: u.Scheme, host: withPort(u), user: u.User}
	if t.template, err = sink.ParseURLTemplate(scheme + "://" + rest[at:]); err != nil {
		return target{}, fmt.Errorf("url of %s has a brace that is neither {topic} nor {key}", u.Host)
	}
	return t, nil
}

// withPort is the URL's host with its port, the scheme's where it names none.
func withPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// client makes the configuration of TLS.
func (t TLS) client() (*tls.Config, error) {
	c := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: t.ServerName,
		InsecureSkipVerify: t.InsecureSkipVerify,
	}
	if t.CA != "" {
		text, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("tls ca: %w", cause(err))
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, errors.New("tls ca: a PEM file with certificates was expected")
		}
	}
	if (t.Cert == "") != (t.Key == "") {
		return nil, errors.New("tls: cert and key belong together")
	}
	if t.Cert != "" {
		certificate, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("tls cert and key: %w", cause(err))
		}
		c.Certificates = []tls.Certificate{certificate}
	}
	return c, nil
}

// cause leaves a file's name out: it may be the key itself, given where a file was
// expected.
func cause(err error) error {
	var where *fs.PathError
	if errors.As(err, &where) {
		return fmt.Errorf("a file was expected: %w", where.Err)
	}
	return err
}
