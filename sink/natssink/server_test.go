package natssink_test

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/natssink"
)

// withPermissions allows user "relay" these subjects only, and user "all" everything.
func withPermissions(publish, subscribe []string) func(*server.Options) {
	return func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "pw"},
			{Username: "relay", Password: "pw", Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: publish},
				Subscribe: &server.SubjectPermission{Allow: subscribe},
			}},
		}
	}
}

func asUser(user, url string) string { return strings.Replace(url, "://", "://"+user+"@", 1) }

func TestPermissions_Publish(t *testing.T) {
	singlyAndFast(t, func(t *testing.T, fast bool) {
		url := testserver.NATS(t, withPermissions([]string{"orders.good", "$JS.API.STREAM.LIST"}, []string{"_INBOX.>"})).URL
		stream := addStream(t, connect(t, asUser("all:pw", url)), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, AllowBatchPublish: fast})
		s := open(t, natssink.Config{URL: asUser("relay:pw", url)})
		began := time.Now()
		err := s.Send(testkit.Timeout(t, sendTimeout), batch("orders.good", "orders.bad", "orders.good", "orders.worse"))
		testkit.Equal(t, "results", results(t, err, 4), "ok outage ok outage")
		testkit.ErrorContains(t, err, `"orders.bad"`, "ermissions")
		refused, ok := errors.AsType[*sink.BatchError](err)
		if !ok || !errors.Is(refused.Events[0].Err, sink.ErrAccess) {
			t.Errorf("sink.ErrAccess is not found in %v", err)
		}
		testkit.Equal(t, "stored", ids(stored(t, stream)), "1 3")
		if took := time.Since(began); took > promptTimeout {
			t.Errorf("took %v; want less than %v", took, promptTimeout)
		}
		testkit.NoError(t, s.Check(testkit.Timeout(t, sendTimeout))) // the user may not ask, but may publish
		if took := time.Since(began); took > promptTimeout {
			t.Errorf("with Check took %v; want less than %v", took, promptTimeout)
		}
	})
}

func TestPermissions_Core(t *testing.T) {
	t.Parallel()
	url := testserver.CoreNATS(t, withPermissions([]string{"good"}, []string{})).URL
	client := connect(t, asUser("all:pw", url))
	sub, err := client.SubscribeSync(">")
	testkit.NoError(t, err)
	testkit.NoError(t, client.Flush())
	s := open(t, natssink.Config{URL: asUser("relay:pw", url), Core: true})
	for range 20 { // the violations may come before or after the confirmation
		err = s.Send(testkit.Timeout(t, sendTimeout), batch("good", "bad", "good", "worse"))
		testkit.Equal(t, "results", results(t, err, 4), "ok outage ok outage")
	}
	testkit.NoError(t, s.Send(testkit.Timeout(t, sendTimeout), batch("good", "good")))
	err = s.Send(testkit.Timeout(t, sendTimeout), batch("bad"))
	testkit.Equal(t, "results", results(t, err, 1), "outage") // of this subject
	testkit.NoError(t, client.Flush())
	if n, _, err := sub.Pending(); err != nil || n != 42 {
		t.Errorf("%d events arrived (%v); want 42", n, err)
	}
}

func TestPermissions_Inbox(t *testing.T) {
	t.Parallel()
	url := testserver.NATS(t, withPermissions([]string{">"}, []string{"x"})).URL
	s := open(t, natssink.Config{URL: asUser("relay:pw", url)})
	began := time.Now()
	err := s.Send(testkit.Timeout(t, sendTimeout), batch("orders.a"))
	testkit.Equal(t, "results", results(t, err, 1), "all outage")
	testkit.ErrorContains(t, err, "subscribe to _INBOX.>")
	if took := time.Since(began); took > promptTimeout {
		t.Errorf("took %v; want less than %v", took, promptTimeout)
	}
}

func TestCheck_JetStreamDisabled(t *testing.T) {
	t.Parallel()
	s := open(t, natssink.Config{URL: testserver.CoreNATS(t).URL})
	testkit.Equal(t, "Check", kind(s.Check(testkit.Timeout(t, sendTimeout))), "outage")
	testkit.ErrorContains(t, s.Check(testkit.Timeout(t, sendTimeout)), "JetStream")
	err := s.Send(testkit.Timeout(t, sendTimeout), batch("orders.a"))
	testkit.Equal(t, "results", results(t, err, 1), "all outage")
}

func TestCheck_FixedSubject(t *testing.T) {
	t.Parallel()
	o := newFixture(t, jetstream.StreamConfig{})
	testkit.NoError(t, open(t, natssink.Config{URL: o.url, Subject: "orders.all"}).Check(testkit.Timeout(t, sendTimeout)))
	err := open(t, natssink.Config{URL: o.url, Subject: "other"}).Check(testkit.Timeout(t, sendTimeout))
	testkit.Equal(t, "Check", kind(err), "outage")
	testkit.ErrorContains(t, err, `"other"`, "nats stream add")
}

func TestCore_ServerRestart(t *testing.T) {
	t.Parallel()
	server := testserver.CoreNATS(t)
	s := open(t, natssink.Config{URL: server.URL, Core: true})
	testkit.NoError(t, s.Send(testkit.Timeout(t, sendTimeout), batch("a")))
	server.Stop()
	testkit.Equal(t, "results", results(t, s.Send(testkit.Timeout(t, sendTimeout), batch("a")), 1), "all outage")
	testkit.NoError(t, server.Start())
	testkit.NoError(t, s.Send(testkit.Timeout(t, sendTimeout), batch("a")))
}

// Concurrent Sends to a server that never answers fail promptly, all of them.
func TestConnect_SilentServer(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, listener.Close()) })
	s := open(t, natssink.Config{URL: "nats://" + listener.Addr().String()})
	began := time.Now()
	err = s.Send(testkit.Timeout(t, 100*time.Millisecond), batch("a"))
	if kind(err) != "outage" || errors.Is(err, sink.ErrMaybePoison) {
		t.Errorf("got %v, want an outage without sink.ErrMaybePoison", err)
	}
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			testkit.Equal(t, "results", results(t, s.Send(testkit.Timeout(t, sendTimeout), batch("a")), 1), "all outage")
			return nil
		})
	}
	testkit.NoError(t, g.Wait())
	if took := time.Since(began); took > promptTimeout {
		t.Errorf("took %v; want less than %v", took, promptTimeout)
	}
}

func TestConnect_URLCredentials(t *testing.T) {
	t.Parallel()
	withUser := testserver.CoreNATS(t, func(o *server.Options) { o.Username, o.Password = "app", "p@ss,word" }).URL
	withToken := testserver.CoreNATS(t, func(o *server.Options) { o.Authorization = "t0ken" }).URL
	dead := strings.TrimPrefix(deadURL(t), "nats://")
	for _, url := range []string{
		asUser("app:p%40ss%2Cword", withUser), asUser("t0ken", withToken), "nats://app:p%40ss%2Cword@" + dead + "," + strings.TrimPrefix(withUser, "nats://"),
		asUser("app:p%40ss%2Cword", withUser) + ", nats://" + dead,
	} {
		testkit.NoError(t, open(t, natssink.Config{URL: url, Core: true}).Check(testkit.Timeout(t, sendTimeout)))
	}
	for _, url := range []string{asUser("app:secret", withUser), asUser("secret", withToken), withUser, asUser("app:secret", "nats://"+dead)} {
		err := open(t, natssink.Config{URL: url, Core: true}).Check(testkit.Timeout(t, sendTimeout))
		testkit.Equal(t, "Check", kind(err), "outage")
		testkit.Equal(t, url+" is about access", errors.Is(err, sink.ErrAccess), !strings.Contains(url, dead))
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error contains a secret: %v", err)
		}
	}
}

// The configuration names one server of a cluster, which then stops.
func TestConnect_ClusterFailover(t *testing.T) {
	t.Parallel()
	port := strings.TrimPrefix(deadURL(t), "nats://127.0.0.1:")
	clustered := func(routePort int, routes string) func(*server.Options) {
		return func(o *server.Options) {
			o.Username, o.Password = "app", "pw"
			o.Cluster = server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: routePort}
			o.Routes = server.RoutesFromStr(routes)
		}
	}
	routePort, err := strconv.Atoi(port)
	testkit.NoError(t, err)
	first := testserver.CoreNATS(t, clustered(routePort, ""))
	second := testserver.CoreNATS(t, clustered(-1, "nats://127.0.0.1:"+port))
	client := connect(t, asUser("app:pw", first.URL))
	testkit.Eventually(t, func() error {
		if len(client.DiscoveredServers()) == 0 {
			return errors.New("the client knows one server only")
		}
		return nil
	})
	s := open(t, natssink.Config{URL: asUser("app:pw", first.URL), Core: true})
	testkit.NoError(t, s.Send(testkit.Timeout(t, sendTimeout), batch("a")))
	subscriber := connect(t, asUser("app:pw", second.URL))
	sub, err := subscriber.SubscribeSync("a")
	testkit.NoError(t, err)
	testkit.NoError(t, subscriber.Flush()) // core NATS sends nothing to a subscription that the server does not know yet
	first.Stop()
	testkit.Eventually(t, func() error { return s.Send(testkit.Timeout(t, sendTimeout), batch("a")) })
	if _, err := sub.NextMsg(sendTimeout); err != nil {
		t.Errorf("nothing arrived at the second server: %v", err)
	}
}

func TestConnect_NKey(t *testing.T) {
	t.Parallel()
	pair, err := nkeys.CreateUser()
	testkit.NoError(t, err)
	public, err := pair.PublicKey()
	testkit.NoError(t, err)
	seed, err := pair.Seed()
	testkit.NoError(t, err)
	url := testserver.CoreNATS(t, func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: public}} }).URL
	file := filepath.Join(t.TempDir(), "seed")
	testkit.NoError(t, os.WriteFile(file, append(seed, '\n'), 0o600))
	for _, nkey := range []string{file, string(seed)} {
		testkit.NoError(t, open(t, natssink.Config{URL: url, Core: true, NKey: nkey}).Check(testkit.Timeout(t, sendTimeout)))
	}
	testkit.Equal(t, "Check", kind(open(t, natssink.Config{URL: url, Core: true}).Check(testkit.Timeout(t, sendTimeout))), "outage")
}

func TestConnect_Credentials(t *testing.T) {
	t.Parallel()
	key := func(pair nkeys.KeyPair, err error) (nkeys.KeyPair, string) {
		t.Helper()
		testkit.NoError(t, err)
		public, err := pair.PublicKey()
		testkit.NoError(t, err)
		return pair, public
	}
	operator, operatorKey := key(nkeys.CreateOperator())
	account, accountKey := key(nkeys.CreateAccount())
	user, userKey := key(nkeys.CreateUser())
	accountJWT, err := jwt.NewAccountClaims(accountKey).Encode(operator)
	testkit.NoError(t, err)
	userJWT, err := jwt.NewUserClaims(userKey).Encode(account)
	testkit.NoError(t, err)
	seed, err := user.Seed()
	testkit.NoError(t, err)
	text, err := jwt.FormatUserConfig(userJWT, seed)
	testkit.NoError(t, err)
	url := testserver.CoreNATS(t, func(o *server.Options) {
		resolver := &server.MemAccResolver{}
		testkit.NoError(t, resolver.Store(accountKey, accountJWT))
		o.TrustedKeys, o.AccountResolver = []string{operatorKey}, resolver
	}).URL
	file := filepath.Join(t.TempDir(), "user.creds")
	testkit.NoError(t, os.WriteFile(file, text, 0o600))
	for _, credentials := range []string{file, string(text), strings.TrimSpace(string(text))} {
		testkit.NoError(t, open(t, natssink.Config{URL: url, Core: true, Credentials: credentials}).Check(testkit.Timeout(t, sendTimeout)))
	}
	testkit.Equal(t, "Check", kind(open(t, natssink.Config{URL: url, Core: true}).Check(testkit.Timeout(t, sendTimeout))), "outage")
}

// withTLS requires a client certificate of the authority.
func withTLS(t *testing.T, authority *testkit.Authority, cert, key string) func(*server.Options) {
	t.Helper()
	certificate, err := tls.LoadX509KeyPair(cert, key)
	testkit.NoError(t, err)
	return func(o *server.Options) {
		o.TLS, o.TLSVerify, o.TLSTimeout = true, true, 5
		o.TLSConfig = &tls.Config{
			Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12,
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority.Pool,
		}
	}
}

func TestConnect_TLS(t *testing.T) {
	t.Parallel()
	authority, stranger := testkit.NewAuthority(t), testkit.NewAuthority(t)
	serverCert, serverKey := authority.Issue(t, "nats.internal")
	clientCert, clientKey := authority.Issue(t, "relay")
	strangerCert, strangerKey := stranger.Issue(t, "relay")
	url := testserver.CoreNATS(t, withTLS(t, authority, serverCert, serverKey)).URL
	good := sink.TLS{CA: authority.CA, Cert: clientCert, Key: clientKey, ServerName: "nats.internal"}
	with := func(change func(*sink.TLS)) sink.TLS {
		c := good
		change(&c)
		return c
	}
	for _, scheme := range []string{"tls", "tls+nats"} {
		url := strings.Replace(url, "nats", scheme, 1)
		for name, c := range map[string]struct {
			tls  sink.TLS
			want string // "": it connects
		}{
			"Trusted":              {good, ""},
			"AnyServer":            {with(func(c *sink.TLS) { c.CA, c.ServerName, c.InsecureSkipVerify = "", "", true }), ""},
			"WrongCA":              {with(func(c *sink.TLS) { c.CA = stranger.CA }), "tls.ca must have"},
			"SystemCAs":            {with(func(c *sink.TLS) { c.CA = "" }), "tls.ca must have"},
			"WrongServerName":      {with(func(c *sink.TLS) { c.ServerName = "other.internal" }), "tls.server_name must be"},
			"NoServerName":         {with(func(c *sink.TLS) { c.ServerName = "" }), "tls.server_name must be"},
			"NoClientCertificate":  {with(func(c *sink.TLS) { c.Cert, c.Key = "", "" }), "check tls.cert"},
			"BadClientCertificate": {with(func(c *sink.TLS) { c.Cert, c.Key = strangerCert, strangerKey }), "check tls.cert"},
		} {
			t.Run(scheme+"/"+name, func(t *testing.T) {
				t.Parallel()
				s := open(t, natssink.Config{URL: url, Core: true, TLS: c.tls})
				err := s.Check(testkit.Timeout(t, sendTimeout))
				if c.want == "" {
					testkit.NoError(t, err)
					testkit.NoError(t, s.Send(testkit.Timeout(t, sendTimeout), batch("a")))
					return
				}
				testkit.Equal(t, "Check", kind(err), "outage")
				testkit.ErrorContains(t, err, "connecting to NATS", c.want)
				t.Log(err)
				testkit.Equal(t, "results", results(t, s.Send(testkit.Timeout(t, sendTimeout), batch("a")), 1), "all outage")
			})
		}
	}
}

func TestNew_InvalidConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config natssink.Config
		want   string
	}{
		{natssink.Config{}, "nats://host:4222"},
		{natssink.Config{URL: "redis://h"}, "nats://host:4222"},
		{natssink.Config{URL: "h:4222"}, "nats://host:4222"},
		{natssink.Config{URL: "nats://"}, "has no host"},
		{natssink.Config{URL: "nats://u:secret@h/path"}, "expected nothing after host and port"},
		{natssink.Config{URL: "nats://secret@h?x=y"}, "expected nothing after host and port"},
		{natssink.Config{URL: "nats://u:secret@h:port"}, "server 1 of url is not a URL"},
		{natssink.Config{URL: "nats://h,"}, "has no host"},
		{natssink.Config{URL: "nats://h,tls://secret@i"}, "expected nats"},
		{natssink.Config{URL: "nats://h", Subject: "{id}"}, "neither {topic} nor {key}"},
		{natssink.Config{URL: "nats://h", Subject: "a b"}, "blank"},
		{natssink.Config{URL: "nats://h", Subject: "a.>"}, "wildcard"},
		{natssink.Config{URL: "nats://h", NKey: "SUsecret"}, "not a readable file"},
		{natssink.Config{URL: "nats://h", Credentials: "/no/secret"}, "not a readable file"},
		{natssink.Config{URL: "nats://h", TLS: sink.TLS{CA: "ca.pem"}}, "expected tls+nats://"},
		{natssink.Config{URL: "tls+nats://h", TLS: sink.TLS{CA: "/no/secret"}}, "tls.ca cannot be read"},
		{natssink.Config{URL: "nats://h", Credentials: "a", NKey: "b"}, "both credentials and nkey are set"},
	} {
		_, err := natssink.New(c.config)
		testkit.ErrorContains(t, err, c.want)
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error contains a secret: %v", err)
		}
	}
}

func TestNew_DoesNotConnect(t *testing.T) {
	t.Parallel()
	server := testserver.CoreNATS(t)
	server.Stop()
	s := open(t, natssink.Config{URL: server.URL, Core: true})
	testkit.Equal(t, "Check", kind(s.Check(testkit.Timeout(t, sendTimeout))), "outage")
	testkit.NoError(t, server.Start())
	testkit.NoError(t, s.Check(testkit.Timeout(t, sendTimeout)))
}

// A server that is not NATS is named as that.
func TestCheck_AnotherProtocol(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	defer listener.Close()
	s := open(t, natssink.Config{URL: "nats://" + listener.Addr().String(), Core: true})
	err = s.Check(testkit.Timeout(t, time.Minute))
	testkit.Equal(t, "Check", kind(err), "outage")
	testkit.ErrorContains(t, err, "is it NATS?")
}
