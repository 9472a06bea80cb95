package natssink

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/outboxrelay/relay/sink"
)

// Config is the configuration of a Sink.
type Config struct {
	// URL of a server, or of several separated by commas. Required. The schemes are nats, tls and tls+nats
	// (the same as tls). user:password@ or token@ may precede the host. Later servers inherit scheme and
	// credentials: "nats://app:secret@n1,n2,n3:4223".
	URL string
	// Subject is the template of an event's address; "" means "{topic}".
	Subject string
	// Format is "payload" or "cloudevents"; "" means payload.
	Format string
	// Core publishes without JetStream. Delivered then means that the server received the event, not that
	// anyone stored it.
	Core bool
	// Ordered keeps order by key in JetStream: at most one event of a key is in flight. Core NATS keeps the
	// order anyway.
	Ordered bool
	// Credentials is a .creds file or its content; "" means none.
	Credentials string
	// NKey is a file with a user's nkey seed or the seed itself; "" means none.
	NKey string
	// TLS is for the schemes tls and tls+nats.
	TLS sink.TLS
	// ResendWithin is how long after its first Send an event may be sent again. Warnings compares the
	// streams' duplicate windows with it. 0 means no comparison.
	ResendWithin time.Duration
}

func (c Config) withDefaults() Config {
	if c.Subject == "" {
		c.Subject = "{topic}"
	}
	if c.Format == "" {
		c.Format = formatPayload
	}
	return c
}

// An outage must be detected long before a Send's deadline.
const (
	dialTimeout  = 2 * time.Second
	writeTimeout = 5 * time.Second
	pingInterval = 10 * time.Second
	keepAlive    = 15 * time.Second // of TCP
)

// options are the options of every connection. nats.go must not reconnect by itself: the next Send makes a
// new connection. So nothing is buffered while there is none, and an answer always belongs to its own
// connection's publishes.
func (c Config) options() ([]nats.Option, error) {
	urls, first, err := servers(c.URL)
	if err != nil {
		return nil, err
	}
	opts := []nats.Option{
		func(o *nats.Options) error { o.Servers = urls; return nil },
		login(first.User), // for servers without a user of their own
		nats.Name("relay"),
		nats.NoReconnect(),
		nats.Timeout(dialTimeout),
		nats.FlusherTimeout(writeTimeout),
		nats.ReconnectOnFlusherError(), // a failed write closes the connection
		nats.PingInterval(pingInterval),
	}
	if first.Scheme != "nats" {
		config, err := c.TLS.Client()
		if err != nil {
			return nil, err
		}
		opts = append(opts, nats.Secure(config))
	} else if c.TLS != (sink.TLS{}) {
		return nil, errors.New("tls is used with the scheme nats; expected tls+nats://host:4222")
	}
	if c.Credentials != "" && c.NKey != "" {
		return nil, errors.New("both credentials and nkey are set; expected one of them")
	}
	switch {
	case strings.Contains(c.Credentials, "-----BEGIN NATS USER JWT-----"):
		opts = append(opts, nats.UserCredentialBytes([]byte(c.Credentials)))
	case c.Credentials != "":
		if err := checkReadable(c.Credentials); err != nil {
			return nil, fmt.Errorf("credentials: %w", err)
		}
		opts = append(opts, nats.UserCredentials(c.Credentials))
	case c.NKey != "":
		nkey, err := nkeyOption(c.NKey)
		if err != nil {
			return nil, fmt.Errorf("nkey: %w", err)
		}
		opts = append(opts, nkey)
	}
	return opts, nil
}

// login is the option for the user and password, or the token, of a URL.
func login(user *url.Userinfo) nats.Option {
	if user == nil {
		return nil
	}
	if password, ok := user.Password(); ok {
		return nats.UserInfo(user.Username(), password)
	}
	return nats.Token(user.Username())
}

// checkReadable returns why a file cannot be read, without its name: that may be the secret itself, given in
// place of a file.
func checkReadable(path string) error {
	f, err := os.Open(path)
	if err == nil {
		return f.Close()
	}
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	return fmt.Errorf("the value is not a readable file: %w", err)
}

func nkeyOption(seed string) (nats.Option, error) {
	pair, err := nkeys.FromSeed([]byte(seed))
	if err != nil {
		if err := checkReadable(seed); err != nil {
			return nil, err
		}
		return nats.NkeyOptionFromSeed(seed)
	}
	public, err := pair.PublicKey()
	if err != nil {
		return nil, err
	}
	if !nkeys.IsValidPublicUserKey(public) {
		return nil, errors.New("the value is not a user's seed; expected one that begins with SU")
	}
	return nats.Nkey(public, pair.Sign), nil
}

// servers converts the URL to those that nats.go takes. first is the first of them, as written. The error
// contains no credentials.
func servers(text string) (urls []string, first *url.URL, err error) {
	for _, part := range strings.Split(text, ",") {
		part = strings.TrimSpace(part)
		if first != nil && !strings.Contains(part, "://") {
			part = first.Scheme + "://" + part
		}
		u, err := url.Parse(part)
		if err != nil {
			// url.Parse's error quotes the URL.
			return nil, nil, fmt.Errorf("server %d of url is not a URL; expected nats://host:4222", len(urls)+1)
		}
		if err := checkServer(u); err != nil {
			return nil, nil, err
		}
		if first == nil {
			first = u
		}
		if u.Scheme != first.Scheme {
			return nil, nil, fmt.Errorf("url of %s has the scheme %s; expected %s, as for the first server", u.Host, u.Scheme, first.Scheme)
		}
		urls = append(urls, strings.Replace(u.String(), "tls+nats://", "tls://", 1))
	}
	return urls, first, nil
}

func checkServer(u *url.URL) error {
	switch {
	case u.Scheme != "nats" && u.Scheme != "tls" && u.Scheme != "tls+nats":
		return fmt.Errorf("url has the scheme %q; expected nats://host:4222 or tls+nats://host:4222", u.Scheme)
	case u.Hostname() == "":
		return errors.New("url has no host; expected nats://host:4222")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("url of %s has a path, a query or a fragment; expected nothing after host and port", u.Host)
	}
	return nil
}
