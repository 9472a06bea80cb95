package redissink_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
)

// secured are servers that speak TLS only and require a client certificate.
type secured struct {
	authority *testkit.Authority
	files     *testserver.RedisTLS
	good      sink.TLS
}

func newSecured(t *testing.T) *secured {
	t.Helper()
	authority := testkit.NewAuthority(t)
	s := &secured{authority: authority, files: &testserver.RedisTLS{CA: authority.CA}}
	s.files.Cert, s.files.Key = authority.Issue(t, "127.0.0.1", "redis.internal")
	s.good.CA = authority.CA
	s.good.Cert, s.good.Key = authority.Issue(t, "relay.internal")
	return s
}

// expectTLS sends with good and bad settings. Each bad one is one clear error. The URL is without its scheme.
func (s *secured) expectTLS(t *testing.T, kind, url string) {
	t.Helper()
	stranger := testkit.NewAuthority(t)
	strangerCert, strangerKey := stranger.Issue(t, "relay.internal")
	with := func(change func(*sink.TLS)) sink.TLS {
		changed := s.good
		change(&changed)
		return changed
	}
	plain, secure := "redis"+kind+"://"+url, "rediss"+kind+"://"+url
	for name, c := range map[string]struct {
		url   string
		tls   sink.TLS
		error string
	}{
		"Scheme":               {secure, s.good, ""},
		"KeyWithoutScheme":     {plain, s.good, ""},
		"ServerName":           {secure, with(func(c *sink.TLS) { c.ServerName = "redis.internal" }), ""},
		"AnyServer":            {secure, with(func(c *sink.TLS) { c.CA, c.InsecureSkipVerify = "", true }), ""},
		"WrongCA":              {secure, with(func(c *sink.TLS) { c.CA = stranger.CA }), "tls.ca must have"},
		"SystemCAs":            {secure, with(func(c *sink.TLS) { c.CA = "" }), "tls.ca must have"},
		"WrongServerName":      {secure, with(func(c *sink.TLS) { c.ServerName = "other.internal" }), "tls.server_name must be"},
		"NoClientCertificate":  {secure, with(func(c *sink.TLS) { c.Cert, c.Key = "", "" }), "check tls.cert"},
		"BadClientCertificate": {secure, with(func(c *sink.TLS) { c.Cert, c.Key = strangerCert, strangerKey }), "check tls.cert"},
	} {
		t.Run(name, func(t *testing.T) {
			to := opened(t, redissink.Config{URL: c.url, TLS: c.tls})
			if c.error == "" {
				testkit.NoError(t, to.Check(t.Context()))
				mustSend(t, to, newBatch("orders", "bills"))
				return
			}
			for _, err := range []error{to.Check(t.Context()), send(t, to, newBatch("orders"))} {
				expectOutage(t, err, c.error)
				if strings.Count(err.Error(), c.error) > 1 {
					t.Errorf("the error says it twice: %v", err)
				}
			}
		})
	}
}

func TestTLS_Server(t *testing.T) {
	t.Parallel()
	s := newSecured(t)
	server := testserver.RedisOptions{TLS: s.files}.Start(t)
	s.expectTLS(t, "", server.Addr)
}

func TestTLS_Cluster(t *testing.T) {
	t.Parallel()
	s := newSecured(t)
	nodes, err := testserver.RedisOptions{TLS: s.files}.StartCluster(t.Context())
	testkit.NoError(t, err)
	for _, n := range nodes {
		t.Cleanup(func() { testkit.NoError(t, n.Close()) })
	}
	s.expectTLS(t, "+cluster", nodes[0].Addr)
}

func TestTLS_Sentinel(t *testing.T) {
	t.Parallel()
	s := newSecured(t)
	servers, err := testserver.RedisOptions{TLS: s.files}.StartSentinel(t.Context())
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, servers.Close()) })
	s.expectTLS(t, "+sentinel", servers.Addrs[0]+"/"+servers.MasterName)
}

// A server without TLS does not answer the handshake, and one with TLS rejects plain text.
func TestTLS_WrongPort(t *testing.T) {
	t.Parallel()
	plain := testserver.Redis(t)
	for _, to := range []*redissink.Sink{
		opened(t, redissink.Config{URL: "rediss://" + plain.Addr}),
		opened(t, redissink.Config{URL: plain.URL, TLS: sink.TLS{InsecureSkipVerify: true}}),
	} {
		expectOutage(t, to.Check(t.Context()), "expected a server that speaks TLS")
	}
	secure := testserver.RedisOptions{TLS: newSecured(t).files}.Start(t)
	expectOutage(t, send(t, opened(t, redissink.Config{URL: secure.URL}), newBatch("orders")), "")
}

// The sentinels have a password of their own.
func TestSentinel_Password(t *testing.T) {
	t.Parallel()
	const password = "s3ntinel-password"
	servers := testserver.RedisSentinel(t)
	c := redis.NewClient(&redis.Options{Addr: servers.Addrs[0]})
	t.Cleanup(func() { testkit.NoError(t, c.Close()) })
	testkit.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "default", "resetpass", ">"+password).Err())
	url := "redis+sentinel://" + servers.Addrs[0] + "/" + servers.MasterName
	mustSend(t, opened(t, redissink.Config{URL: url, SentinelPassword: password}), newBatch("orders"))
	for given, want := range map[string]string{"": "NOAUTH", "wr0ng-password": "WRONGPASS"} {
		err := send(t, opened(t, redissink.Config{URL: url, SentinelPassword: given}), newBatch("orders"))
		expectOutage(t, err, want)
		if given != "" && contains(err, given) {
			t.Errorf("the error contains the password: %v", err)
		}
	}
}
