package httpsink

import (
	"net/http"
	"time"

	"github.com/outboxrelay/relay/sink"
)

// The formats of a request's body.
const (
	JSON        = "json"        // one object with all events of the batch
	NDJSON      = "ndjson"      // one event a line
	Array       = "array"       // an array of events
	Form        = "form"        // form fields, from the object that Request makes
	CloudEvents = "cloudevents" // CloudEvents 1.0: batched, or structured with Single
)

// Config says where and how to send.
type Config struct {
	// URL is the template of an event's address, http or https. Placeholders can follow the host; their
	// values are escaped. user:password@ is sent as basic authentication. Required.
	URL string
	// Method is POST, PUT or PATCH; "" means POST.
	Method string
	// Headers are set on each request and override the sink's own. Their values can contain {topic} and
	// {key}; other braces stay as they are.
	Headers map[string]string
	// Format of the body; "" means JSON.
	Format string
	// Single says that no batch has more than one event.
	Single bool
	// Request is a jq program that makes the body of the one that would be sent without it; "" means
	// none. A string is sent as it is. As NDJSON an array is sent one element a line, as Form an object
	// is sent as fields.
	Request string
	// Results is a jq program that makes, of {status, headers, body, events}, the list of events that
	// failed; "" means none.
	Results string
	// Gzip compresses bodies.
	Gzip bool
	// Rate is how many requests may begin in a time; zero means no limit.
	Rate sink.Rate
	// Shared counts the requests of all processes under the name of the Pipeline; nil means that this
	// process counts alone.
	Shared   sink.Bucket
	Pipeline string
	// MaxInFlight is how many requests may be in flight at once; 0 means no limit.
	MaxInFlight int
	// Bearer is a token, Basic a user and password, and OAuth2 fetches tokens. At most one of them may be
	// set; it fills the header Authorization.
	Bearer string
	Basic  Basic
	OAuth2 OAuth2
	// Sign is the key, whsec_ and base64, that signs requests as Standard Webhooks says; "" means
	// none.
	Sign string
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
	// TLS is for https.
	TLS TLS
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
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	return c
}
