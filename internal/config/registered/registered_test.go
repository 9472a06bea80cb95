// Package registered tests the configuration of sinks whose schemes were registered. It is a package of its own, because
// a registered scheme appears in the messages of every configuration of the process.
package registered

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// driver has a setting of each type. Its scheme is the first word of another scheme's and the other way round.
type driver struct {
	Topic    sink.Template
	Acks     string
	Free     string
	Password string
	Sync     bool
	Port     int
	Big      int64
	Share    float64
	Timeout  time.Duration
	Servers  []string
	TLS      sink.TLS

	opened sink.Options
}

func (d *driver) Settings() []sink.Setting {
	return []sink.Setting{
		{Name: "topic", Into: &d.Topic, Required: true},
		{Name: "acks", Into: &d.Acks, OneOf: []string{"all", "one"}, Default: "all"},
		{Name: "free", Into: &d.Free},
		{Name: "password", Into: &d.Password, Secret: true},
		{Name: "sync", Into: &d.Sync, Default: "true"},
		{Name: "port", Into: &d.Port, Default: "9092", Expects: "a port from 1 to 65535", Check: func() error {
			if d.Port < 1 || d.Port > 65535 {
				return errors.New("no port")
			}
			return nil
		}},
		{Name: "big", Into: &d.Big},
		{Name: "share", Into: &d.Share},
		{Name: "timeout", Into: &d.Timeout, Default: "5s"}, // of http, too
		{Name: "servers", Into: &d.Servers, Check: func() error {
			if len(d.Servers) == 1 {
				return errors.New("only one")
			}
			return nil
		}},
		{Name: "tls", Into: &d.TLS},
	}
}

func (d *driver) Open(o sink.Options) (sink.Sink, error) {
	if strings.Contains(o.URL, "refused") {
		return nil, fmt.Errorf("no such place as %s with %s", o.URL, d.Password)
	}
	d.opened = o
	return &recorder{driver: d}, nil
}

// recorder is the sink of a driver.
type recorder struct{ driver *driver }

func (*recorder) Send(context.Context, *buffer.Batch) error { return nil }
func (*recorder) Check(context.Context) error               { return nil }
func (*recorder) Close() error                              { return nil }

func init() {
	for _, scheme := range []string{"h", "red", "redis.cluster", "kafka"} { // no prefix of a scheme is taken for the scheme
		sink.Register(scheme, func() sink.Driver { return &driver{} })
	}
	sink.Register("bare", func() sink.Driver { return bare{} })
}

// bare has no settings.
type bare struct{}

func (bare) Settings() []sink.Setting             { return nil }
func (bare) Open(sink.Options) (sink.Sink, error) { return nil, nil }

const head = `pipelines:
  - name: orders
    source: {url: postgres://app@db/app}
`

func parse(text string, env map[string]string) (*config.Config, error) {
	return config.Parse("relay.yaml", []byte(head+text), func(name string) (string, bool) { v, ok := env[name]; return v, ok })
}

func TestParse_EveryType(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"h", "red", "redis.cluster", "kafka"} {
		c, err := parse(`    order: key
    sink:
      url: `+scheme+`://user:p4ssword@one,two:9/x
      topic: "orders.{topic}"
      acks: one
      free: ${FREE}
      password: ${PASSWORD}
      sync: false
      port: 1_234
      big: 9000000000
      share: 0.5
      timeout: 1m
      servers: [a, b]
      tls: {ca: /ca.pem, insecure_skip_verify: true}
`, map[string]string{"FREE": "here", "PASSWORD": "s3cret"})
		testkit.NoError(t, err)
		d := open(t, c)[0]
		testkit.Equal(t, "address", address(c), "topic orders.{topic}")
		want := &driver{
			Acks: "one", Free: "here", Password: "s3cret", Port: 1234, Big: 9_000_000_000, Share: 0.5, Timeout: time.Minute,
			Servers: []string{"a", "b"}, TLS: sink.TLS{CA: "/ca.pem", InsecureSkipVerify: true},
			opened: sink.Options{URL: scheme + "://user:p4ssword@one,two:9/x", Pipeline: "orders", Ordered: true, Workers: 4, ResendWithin: d.opened.ResendWithin},
		}
		d.Topic = sink.Template{}
		if diff := cmp.Diff(want, d, cmp.AllowUnexported(driver{}, sink.Template{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", scheme, diff)
		}
		if d.opened.ResendWithin < 5*time.Minute {
			t.Errorf("ResendWithin is %v; expected more than retry.max", d.opened.ResendWithin)
		}
		testkit.Equal(t, "redacted", c.Redactor()("s3cret of p4ssword"), "*** of ***")
		if text := fmt.Sprintf("%+v %#v", c, c); strings.Contains(text, "s3cret") {
			t.Errorf("printing the configuration shows a secret: %s", text)
		}
	}
}

func TestParse_Defaults(t *testing.T) {
	t.Parallel()
	c, err := parse("    sink: {url: 'kafka://k', topic: t}\n", nil)
	testkit.NoError(t, err)
	d := open(t, c)[0]
	testkit.Equal(t, "acks", d.Acks, "all")
	testkit.Equal(t, "sync", d.Sync, true)
	testkit.Equal(t, "port", d.Port, 9092)
	testkit.Equal(t, "timeout", d.Timeout, 5*time.Second)
}

// TestParse_Several: each sink and hook has values of its own, of a driver of its own.
func TestParse_Several(t *testing.T) {
	t.Parallel()
	c, err := parse(`    sinks:
      - {name: a, url: kafka://k, topic: a}
      - {name: b, url: kafka://k, topic: b, port: 7}
      - {name: c, url: https://api.example/x, timeout: 7s}
    dead_letter: {hook: {url: red://k, topic: dead}}
`, nil)
	testkit.NoError(t, err)
	all := open(t, c)
	testkit.Equal(t, "drivers", len(all), 3)
	for i, want := range []string{"a 9092 a", "b 7 b", "dead 9092 "} {
		testkit.Equal(t, "driver", fmt.Sprint(all[i].Topic, " ", all[i].Port, " ", all[i].opened.Sink), want)
	}
	testkit.Equal(t, "timeout", c.Pipelines[0].Sinks[2].HTTP.Timeout, 7*time.Second)
}

func TestParse_Errors(t *testing.T) {
	t.Parallel()
	const schemes = `redis://, rediss://, redis+cluster://, rediss+cluster://, redis+sentinel://, rediss+sentinel://, nats://, tls+nats://, http://, https://, postgres://, postgresql://, file://, stdout:, bare://, h://, kafka://, red:// or redis.cluster:// (a sink of your own: use the program that registers it, docs/embedding.md#a-sink-of-your-own)`
	for _, c := range []struct{ sink, want string }{
		{"{url: 'kafka://k'}", "4:5: sink.topic is missing; expected text, {topic} and {key}"},
		{"{url: 'kafka://k', topic: '{tpoic}'}", `4:37: sink.topic is "{tpoic}"; expected text, {topic} and {key}`},
		{"{url: 'kafka://k', topic: ''}", `4:37: sink.topic is ""; expected text, {topic} and {key}`},
		{"{url: 'kafka://k', topic: [t]}", `4:37: sink.topic is a list; expected text, {topic} and {key} (text that begins with { or [ goes in quotes)`},
		{"{url: 'kafka://k', topic: t, acks: two}", `4:46: sink.acks is "two"; expected "all" or "one"`},
		{"{url: 'kafka://k', topic: t, sync: 1}", `4:46: sink.sync is the number 1; expected true or false`},
		{"{url: 'kafka://k', topic: t, port: 0}", `4:46: sink.port is 0 (no port); expected a port from 1 to 65535`},
		{"{url: 'kafka://k', topic: t, port: '1'}", `4:46: sink.port is the text "1"; expected a port from 1 to 65535 (without quotes)`},
		{"{url: 'kafka://k', topic: t, big: 1.5}", `4:45: sink.big is 1.5; expected an integer`},
		{"{url: 'kafka://k', topic: t, timeout: 5}", `4:49: sink.timeout is the number 5; expected a duration (like 30s) (write 5s)`},
		{"{url: 'kafka://k', topic: t, timeout: -1s}", `4:49: sink.timeout is "-1s"; expected a duration (like 30s)`},
		{"{url: 'kafka://k', topic: t, servers: x}", `4:49: sink.servers is text; expected a list of texts`},
		{"{url: 'kafka://k', topic: t, servers: [x]}", `4:49: sink.servers is invalid (only one); expected a list of texts`},
		{"{url: 'kafka://k', topic: t, tls: {cert: c}}", `4:46: sink.tls.cert is used without sink.tls.key; expected both`},
		{"{url: 'kafka://k', topic: t, tls: {serverName: c}}", `4:46: unknown key "serverName" in sink.tls (did you mean server_name?); expected ca, cert, key, server_name or insecure_skip_verify`},
		{"{url: 'kafka://k', topc: t, topic: t}", `4:30: unknown key "topc" in sink (did you mean topic?); expected url, topic, acks, free, password, sync, port, big, share, timeout, servers or tls`},
		{"{url: 'kafka://k', topic: t, stream: t}", `4:40: sink.stream is a key of redis stream; expected a key of kafka: url, topic, acks, free, password, sync, port, big, share, timeout, servers or tls`},
		{"{url: 'bare://k', timeout: 5s}", `4:29: sink.timeout is a key of http, h, kafka, red or redis.cluster; expected a key of bare: url`},
		{"{url: 'redis://k', acks: all}", `4:30: sink.acks is a key of h, kafka, red or redis.cluster; expected a key of redis stream: url, mode, stream, maxlen, dedupe_window, wait_replicas, wait_timeout, sentinel_password or tls`},
		{"{url: 'kafak://k', topic: t}", `4:17: sink.url has the unknown scheme "kafak"; expected ` + schemes},
		{"{url: 'spool://k', extension: t}", `4:17: sink.url has the unknown scheme "spool"; expected ` + schemes},
		{"{url: 'kafka://k:0', topic: t}", `4:17: sink.url has an invalid port; expected a URL like kafka://host`},
		{"{url: 'kafka://k', topic: t, password: [x]}", `4:50: sink.password is a list; expected text (text that begins with { or [ goes in quotes)`},
		{"{url: 'kafka://k', topic: t, password: '${NONE}'}", `4:50: sink.password needs the environment variable NONE, which is not set; set it, or write ${NONE:-default}`},
	} {
		_, err := parse("    sink: "+c.sink+"\n", nil)
		if err == nil || !strings.HasPrefix(err.Error(), "relay.yaml:"+c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s\n got %v\nwant relay.yaml:%s", c.sink, err, c.want)
		}
	}
	_, err := parse(`    sinks:
      - {name: a, url: kafka://k, topic: a}
      - {name: b, url: kafka://k, topic: a}
`, nil)
	if err == nil || !strings.Contains(err.Error(), "relay.yaml:6:24: sinks.url is the target of the sink on line 5") {
		t.Errorf("two sinks with one target: got %v", err)
	}
}

// TestOpen_Errors: what the driver itself finds stands at the place of url, without secrets.
func TestOpen_Errors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{url: 'kafka://u:p4ssword@refused', topic: t, password: s3cret}": "relay.yaml:4:17: no such place as kafka://***@refused with ***",
		"{url: 'bare://k'}": "relay.yaml:4:17: the driver of bare:// opened no sink, and gave no error",
	} {
		c, err := parse("    sink: "+text+"\n", nil)
		testkit.NoError(t, err)
		_, err = c.Open(func(string) config.Process { return config.Process{} })
		if err == nil || err.Error() != want {
			t.Errorf("got %v; want %s", err, want)
		}
	}
}

// open opens a configuration and returns the drivers of its registered sinks, hooks last.
func open(t *testing.T, c *config.Config) (drivers []*driver) {
	t.Helper()
	all, err := c.Open(func(string) config.Process { return config.Process{} })
	testkit.NoError(t, err)
	for _, o := range all {
		for _, s := range o.Sinks {
			if r, ok := s.Sink.(*recorder); ok {
				drivers = append(drivers, r.driver)
			}
		}
		for _, h := range o.Hooks {
			if r, ok := h.Sink.(*recorder); ok {
				drivers = append(drivers, r.driver)
			}
		}
		testkit.NoError(t, o.Close())
	}
	return drivers
}

func address(c *config.Config) string {
	text, _ := c.Pipelines[0].Sink.Address()
	return text
}
