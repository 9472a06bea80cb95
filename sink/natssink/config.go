package natssink

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// Config says where to publish.
type Config struct {
	// URL of a server, or of several separated by commas. Required. Schemes nats,
	// tls and tls+nats (the same as tls); user:password@ or token@ in front of
	// the host. What follows the first may leave out scheme and credentials:
	// "nats://app:secret@n1,n2,n3:4223".
	URL string
	// Subject is the template of an event's address; "" means "{topic}".
	Subject string
	// Format is "payload" or "cloudevents"; "" means payload.
	Format string
	// Core publishes without JetStream: delivered then means that the server has
	// it, not that anyone keeps it.
	Core bool
	// Ordered keeps order by key in JetStream: of each key one event at the most is
	// under way. Without JetStream events are published in order anyway.
	Ordered bool
	// Credentials is a .creds file or its content; "" means none.
	Credentials string
	// NKey is a file with a user's nkey seed or the seed itself; "" means none.
	NKey string
	// TLS is used with the schemes tls and tls+nats; nil means the system's
	// certificate authorities.
	TLS *tls.Config
	// ResendWithin is how long after it was first sent an event may be sent again;
	// Warnings compares the duplicate windows of the streams with it. 0: it does
	// not.
	ResendWithin time.Duration
	// Logger hears of ids that were used twice; nil means nobody does.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Subject == "" {
		c.Subject = "{topic}"
	}
	if c.Format == "" {
		c.Format = payload
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// The connection's times. A sink that is down is to be noticed and said so long
// before a Send's deadline.
const (
	dialTimeout  = 2 * time.Second
	writeTimeout = 5 * time.Second
	pingInterval = 10 * time.Second
	keepAlive    = 15 * time.Second // of TCP
)

// options are what every connection is made with. A connection that is lost is
// not mended behind our back: the next Send makes a new one. So nothing is ever
// buffered while there is none, and what a connection has said holds for all
// that was published on it.
func (c Config) options() ([]nats.Option, error) {
	urls, secure, err := servers(c.URL)
	if err != nil {
		return nil, err
	}
	opts := []nats.Option{
		func(o *nats.Options) error { o.Servers = urls; return nil },
		login(urls[0]), // for servers that the cluster tells of
		nats.Name("relay"),
		nats.NoReconnect(),
		nats.Timeout(dialTimeout),
		nats.FlusherTimeout(writeTimeout),
		nats.ReconnectOnFlusherError(), // a write that failed ends the connection
		nats.PingInterval(pingInterval),
	}
	if secure {
		config := &tls.Config{MinVersion: tls.VersionTLS12}
		if c.TLS != nil {
			config = c.TLS.Clone()
		}
		opts = append(opts, nats.Secure(config))
	}
	if c.Credentials != "" && c.NKey != "" {
		return nil, errors.New("credentials and nkey exclude each other")
	}
	switch {
	case strings.Contains(c.Credentials, "-----BEGIN NATS USER JWT-----"):
		opts = append(opts, nats.UserCredentialBytes([]byte(c.Credentials)))
	case c.Credentials != "":
		if err := readable(c.Credentials); err != nil {
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

// login takes user and password, or the token, out of a URL.
func login(text string) nats.Option {
	u, err := url.Parse(text)
	if err != nil || u.User == nil {
		return nil // it was parsed before
	}
	if password, ok := u.User.Password(); ok {
		return nats.UserInfo(u.User.Username(), password)
	}
	return nats.Token(u.User.Username())
}

// readable says why a file cannot be read, but not its name: that may be the
// secret itself, given where a file was expected.
func readable(path string) error {
	f, err := os.Open(path)
	if err == nil {
		return f.Close()
	}
	var where *fs.PathError
	if errors.As(err, &where) {
		err = where.Err
	}
	return fmt.Errorf("a file was expected: %w", err)
}

func nkeyOption(seed string) (nats.Option, error) {
	pair, err := nkeys.FromSeed([]byte(seed))
	if err != nil {
		if err := readable(seed); err != nil {
			return nil, err
		}
		return nats.NkeyOptionFromSeed(seed)
	}
	public, err := pair.PublicKey()
	if err != nil {
		return nil, err
	}
	if !nkeys.IsValidPublicUserKey(public) {
		return nil, errors.New("the seed of a user (SU...) was expected")
	}
	return nats.Nkey(public, pair.Sign), nil
}

// servers makes of the URL what nats.go takes, and tells whether TLS is asked for.
// Its errors name no password.
func servers(text string) (urls []string, secure bool, err error) {
	var first *url.URL
	for _, part := range strings.Split(text, ",") {
		part = strings.TrimSpace(part)
		if first != nil && !strings.Contains(part, "://") {
			part = first.Scheme + "://" + part
		}
		u, err := url.Parse(part)
		if err != nil {
			// url.Parse's error quotes the URL.
			return nil, false, fmt.Errorf("server %d of the url is not a URL, nats://host:4222 was expected", len(urls)+1)
		}
		if err := checkServer(u); err != nil {
			return nil, false, err
		}
		if first == nil {
			first = u
		}
		if u.Scheme != first.Scheme {
			return nil, false, fmt.Errorf("url %s: scheme %s was expected, as for the first server", redacted(u), first.Scheme)
		}
		if u.User == nil {
			u.User = first.User
		}
		urls = append(urls, strings.Replace(u.String(), "tls+nats://", "tls://", 1))
	}
	return urls, first.Scheme != "nats", nil
}

// redacted shows no password and, where there is none, no user name: that is a
// token then.
func redacted(u *url.URL) string {
	if u.User != nil {
		if _, ok := u.User.Password(); !ok {
			hidden := *u
			hidden.User = url.User("xxxxx")
			return hidden.String()
		}
	}
	return u.Redacted()
}

func checkServer(u *url.URL) error {
	shown := redacted(u)
	switch {
	case u.Scheme != "nats" && u.Scheme != "tls" && u.Scheme != "tls+nats":
		return fmt.Errorf("url %s: nats://host:4222 or tls+nats://host:4222 was expected", shown)
	case u.Hostname() == "":
		return fmt.Errorf("url %s: it names no host", shown)
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("url %s: nothing was expected behind host and port", shown)
	}
	return nil
}
