package natssink_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
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

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/natssink"
)

// restricted lets user "relay" publish and subscribe only as said; user "all" may
// do everything.
func restricted(publish, subscribe []string) func(*server.Options) {
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

func as(user, url string) string { return strings.Replace(url, "://", "://"+user+"@", 1) }

func TestPermissions(t *testing.T) {
	bothWays(t, func(t *testing.T, fast bool) {
		url := testserver.NATS(t, restricted([]string{"orders.good", "$JS.API.STREAM.LIST"}, []string{"_INBOX.>"})).URL
		stream := addStream(t, connect(t, as("all:pw", url)), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, AllowBatchPublish: fast})
		s := open(t, natssink.Config{URL: as("relay:pw", url)})
		began := time.Now()
		err := s.Send(within(t, patience), batch("orders.good", "orders.bad", "orders.good", "orders.worse"))
		expect(t, "verdicts", verdicts(t, err, 4), "ok outage ok outage")
		says(t, err, `"orders.bad"`, "ermissions")
		expect(t, "stored", ids(stored(t, stream)), "1 3")
		if took := time.Since(began); took > soon {
			t.Errorf("it took %v", took)
		}
		ok(t, s.Check(within(t, patience))) // it may not ask, but it may publish
		if took := time.Since(began); took > soon {
			t.Errorf("with Check it took %v", took)
		}
	})
}

func TestPermissionsInCore(t *testing.T) {
	t.Parallel()
	url := testserver.CoreNATS(t, restricted([]string{"good"}, []string{})).URL
	client := connect(t, as("all:pw", url))
	sub, err := client.SubscribeSync(">")
	ok(t, err)
	ok(t, client.Flush())
	s := open(t, natssink.Config{URL: as("relay:pw", url), Core: true})
	for range 20 { // the violations come after the confirmation, or before
		err = s.Send(within(t, patience), batch("good", "bad", "good", "worse"))
		expect(t, "verdicts", verdicts(t, err, 4), "ok outage ok outage")
	}
	ok(t, s.Send(within(t, patience), batch("good", "good")))
	err = s.Send(within(t, patience), batch("bad"))
	expect(t, "verdicts", verdicts(t, err, 1), "outage") // of this subject
	ok(t, client.Flush())
	if n, _, err := sub.Pending(); err != nil || n != 42 {
		t.Errorf("%d arrived (%v), want 42", n, err)
	}
}

func TestNoLeaveToReceiveAcks(t *testing.T) {
	t.Parallel()
	url := testserver.NATS(t, restricted([]string{">"}, []string{"x"})).URL
	s := open(t, natssink.Config{URL: as("relay:pw", url)})
	began := time.Now()
	err := s.Send(within(t, patience), batch("orders.a"))
	expect(t, "verdicts", verdicts(t, err, 1), "all-outage")
	says(t, err, "subscribe to _INBOX.>")
	if took := time.Since(began); took > soon {
		t.Errorf("it took %v", took)
	}
}

func TestJetStreamIsNotEnabled(t *testing.T) {
	t.Parallel()
	s := open(t, natssink.Config{URL: testserver.CoreNATS(t).URL})
	expect(t, "Check", kind(s.Check(within(t, patience))), "outage")
	says(t, s.Check(within(t, patience)), "JetStream")
	err := s.Send(within(t, patience), batch("orders.a"))
	expect(t, "verdicts", verdicts(t, err, 1), "all-outage")
}

func TestCheckOfAFixedSubject(t *testing.T) {
	t.Parallel()
	o := openOrders(t, jetstream.StreamConfig{})
	ok(t, open(t, natssink.Config{URL: o.url, Subject: "orders.all"}).Check(within(t, patience)))
	err := open(t, natssink.Config{URL: o.url, Subject: "other"}).Check(within(t, patience))
	expect(t, "Check", kind(err), "outage")
	says(t, err, `"other"`, "nats stream add")
}

func TestCoreServerIsStopped(t *testing.T) {
	t.Parallel()
	server := testserver.CoreNATS(t)
	s := open(t, natssink.Config{URL: server.URL, Core: true})
	ok(t, s.Send(within(t, patience), batch("a")))
	server.Stop()
	expect(t, "verdicts", verdicts(t, s.Send(within(t, patience), batch("a")), 1), "all-outage")
	ok(t, server.Start())
	ok(t, s.Send(within(t, patience), batch("a")))
}

// TestServerThatDoesNotSpeak: Sends say so promptly, all of them.
func TestServerThatDoesNotSpeak(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	t.Cleanup(func() { ok(t, listener.Close()) })
	s := open(t, natssink.Config{URL: "nats://" + listener.Addr().String()})
	began := time.Now()
	err = s.Send(within(t, 100*time.Millisecond), batch("a"))
	if kind(err) != "outage" || errors.Is(err, sink.ErrMaybePoison) {
		t.Errorf("got %v, want an outage that is not blamed on the batch", err)
	}
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			expect(t, "verdicts", verdicts(t, s.Send(within(t, patience), batch("a")), 1), "all-outage")
			return nil
		})
	}
	ok(t, g.Wait())
	if took := time.Since(began); took > soon {
		t.Errorf("it took %v", took)
	}
}

func TestCredentialsInTheURL(t *testing.T) {
	t.Parallel()
	withUser := testserver.CoreNATS(t, func(o *server.Options) { o.Username, o.Password = "app", "p@ss,word" }).URL
	withToken := testserver.CoreNATS(t, func(o *server.Options) { o.Authorization = "t0ken" }).URL
	dead := strings.TrimPrefix(deadURL(t), "nats://")
	for _, url := range []string{
		as("app:p%40ss%2Cword", withUser), as("t0ken", withToken), "nats://app:p%40ss%2Cword@" + dead + "," + strings.TrimPrefix(withUser, "nats://"),
		as("app:p%40ss%2Cword", withUser) + ", nats://" + dead,
	} {
		ok(t, open(t, natssink.Config{URL: url, Core: true}).Check(within(t, patience)))
	}
	for _, url := range []string{as("app:secret", withUser), as("secret", withToken), withUser, as("app:secret", "nats://"+dead)} {
		err := open(t, natssink.Config{URL: url, Core: true}).Check(within(t, patience))
		expect(t, "Check", kind(err), "outage")
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("a secret shows in %v", err)
		}
	}
}

// TestServersOfACluster: the configuration names one server, which goes away.
func TestServersOfACluster(t *testing.T) {
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
	ok(t, err)
	first := testserver.CoreNATS(t, clustered(routePort, ""))
	second := testserver.CoreNATS(t, clustered(-1, "nats://127.0.0.1:"+port))
	client := connect(t, as("app:pw", first.URL))
	testserver.Eventually(t, func() error {
		if len(client.DiscoveredServers()) == 0 {
			return errors.New("the servers have not met")
		}
		return nil
	})
	s := open(t, natssink.Config{URL: as("app:pw", first.URL), Core: true})
	ok(t, s.Send(within(t, patience), batch("a")))
	sub, err := connect(t, as("app:pw", second.URL)).SubscribeSync("a")
	ok(t, err)
	first.Stop()
	testserver.Eventually(t, func() error { return s.Send(within(t, patience), batch("a")) })
	if _, err := sub.NextMsg(patience); err != nil {
		t.Errorf("nothing arrived at the second server: %v", err)
	}
}

func TestNKey(t *testing.T) {
	t.Parallel()
	pair, err := nkeys.CreateUser()
	ok(t, err)
	public, err := pair.PublicKey()
	ok(t, err)
	seed, err := pair.Seed()
	ok(t, err)
	url := testserver.CoreNATS(t, func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: public}} }).URL
	file := filepath.Join(t.TempDir(), "seed")
	ok(t, os.WriteFile(file, append(seed, '\n'), 0o600))
	for _, nkey := range []string{file, string(seed)} {
		ok(t, open(t, natssink.Config{URL: url, Core: true, NKey: nkey}).Check(within(t, patience)))
	}
	expect(t, "Check", kind(open(t, natssink.Config{URL: url, Core: true}).Check(within(t, patience))), "outage")
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	key := func(pair nkeys.KeyPair, err error) (nkeys.KeyPair, string) {
		t.Helper()
		ok(t, err)
		public, err := pair.PublicKey()
		ok(t, err)
		return pair, public
	}
	operator, operatorKey := key(nkeys.CreateOperator())
	account, accountKey := key(nkeys.CreateAccount())
	user, userKey := key(nkeys.CreateUser())
	accountJWT, err := jwt.NewAccountClaims(accountKey).Encode(operator)
	ok(t, err)
	userJWT, err := jwt.NewUserClaims(userKey).Encode(account)
	ok(t, err)
	seed, err := user.Seed()
	ok(t, err)
	text, err := jwt.FormatUserConfig(userJWT, seed)
	ok(t, err)
	url := testserver.CoreNATS(t, func(o *server.Options) {
		resolver := &server.MemAccResolver{}
		ok(t, resolver.Store(accountKey, accountJWT))
		o.TrustedKeys, o.AccountResolver = []string{operatorKey}, resolver
	}).URL
	file := filepath.Join(t.TempDir(), "user.creds")
	ok(t, os.WriteFile(file, text, 0o600))
	for _, credentials := range []string{file, string(text), strings.TrimSpace(string(text))} {
		ok(t, open(t, natssink.Config{URL: url, Core: true, Credentials: credentials}).Check(within(t, patience)))
	}
	expect(t, "Check", kind(open(t, natssink.Config{URL: url, Core: true}).Check(within(t, patience))), "outage")
}

func TestTLS(t *testing.T) {
	t.Parallel()
	certificate, authority := selfSigned(t)
	url := testserver.CoreNATS(t, func(o *server.Options) {
		o.TLS, o.TLSTimeout = true, 5
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	}).URL
	trusting := &tls.Config{RootCAs: authority, MinVersion: tls.VersionTLS12}
	for _, scheme := range []string{"tls", "tls+nats"} {
		url := strings.Replace(url, "nats", scheme, 1)
		ok(t, open(t, natssink.Config{URL: url, Core: true, TLS: trusting}).Check(within(t, patience)))
		err := open(t, natssink.Config{URL: url, Core: true}).Check(within(t, patience))
		expect(t, "Check without the authority", kind(err), "outage")
	}
}

// selfSigned is a certificate for 127.0.0.1 and a pool that trusts it.
func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	ok(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	ok(t, err)
	parsed, err := x509.ParseCertificate(der)
	ok(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, pool
}

func TestNew(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config natssink.Config
		want   string
	}{
		{natssink.Config{}, "nats://host:4222"},
		{natssink.Config{URL: "redis://h"}, "nats://host:4222"},
		{natssink.Config{URL: "h:4222"}, "nats://host:4222"},
		{natssink.Config{URL: "nats://"}, "names no host"},
		{natssink.Config{URL: "nats://u:secret@h/path"}, "nothing was expected behind"},
		{natssink.Config{URL: "nats://secret@h?x=y"}, "nothing was expected behind"},
		{natssink.Config{URL: "nats://u:secret@h:port"}, "server 1 of the url is not a URL"},
		{natssink.Config{URL: "nats://h,"}, "names no host"},
		{natssink.Config{URL: "nats://h,tls://secret@i"}, "scheme nats was expected"},
		{natssink.Config{URL: "nats://h", Subject: "{id}"}, "neither {topic} nor {key}"},
		{natssink.Config{URL: "nats://h", Subject: "a b"}, "blank"},
		{natssink.Config{URL: "nats://h", Subject: "a.>"}, "wildcard"},
		{natssink.Config{URL: "nats://h", NKey: "SUsecret"}, "a file was expected"},
		{natssink.Config{URL: "nats://h", Credentials: "/no/secret"}, "a file was expected"},
		{natssink.Config{URL: "nats://h", Credentials: "a", NKey: "b"}, "exclude each other"},
	} {
		_, err := natssink.New(c.config)
		says(t, err, c.want)
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("a secret shows in %v", err)
		}
	}
}

func TestNewDoesNotConnect(t *testing.T) {
	t.Parallel()
	server := testserver.CoreNATS(t)
	server.Stop()
	s := open(t, natssink.Config{URL: server.URL, Core: true})
	expect(t, "Check", kind(s.Check(within(t, patience))), "outage")
	ok(t, server.Start())
	ok(t, s.Check(within(t, patience)))
}
