package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// comparers compare the types that cmp cannot.
var comparers = cmp.Options{
	cmpopts.IgnoreUnexported(Config{}, Token{}, Pipeline{}, Source{}, Sink{}, HTTPSink{}),
	cmp.Comparer(func(a, b Secret) bool { return a.Reveal() == b.Reveal() && a.String() == b.String() }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b Schedule) bool { return a.Text == b.Text && (a.Schedule == nil) == (b.Schedule == nil) }),
}

func TestParse_FillsInDefaults(t *testing.T) {
	t.Parallel()
	got, err := parseFile(t, "testdata/minimal.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if next := got.Pipelines[0].Schedule.Next(now); next != now.Add(time.Second) {
		t.Errorf("the default schedule fires at %v, want a second after %v", next, now)
	}
	want := &Config{
		Admin:           Admin{Listen: "127.0.0.1:7070", Payloads: true},
		Log:             Log{Level: slog.LevelInfo, Format: "text"},
		ShutdownTimeout: 30 * time.Second,
		Pipelines: []Pipeline{{
			Place: Place{"minimal.good.yaml", 2, 5},
			Name:  "orders",
			Source: Source{
				Place:  Place{"minimal.good.yaml", 3, 19},
				Driver: "postgres",
				URL:    secretText("postgres://app@db/app", "postgres://***@db/app"),
				Table:  "outbox_events",

				Done: "delete", Supervisor: Supervisor{WarnAfter: 5 * time.Minute},
			},
			Schedule:   Schedule{"@every 1s", got.Pipelines[0].Schedule.Schedule},
			Eager:      true,
			BatchSize:  1000,
			MaxBatches: 50,
			MaxWaiting: 1000,
			Workers:    4,
			Lease:      30 * time.Second,
			Claim:      "auto",
			Wake:       "auto",
			Order:      "none", Unmatched: "error",
			Sink: Sink{
				Place:  Place{"minimal.good.yaml", 4, 17},
				Driver: "redis",
				URL:    secretText("redis://cache:6379/0", "redis://cache:6379/0"),
				Redis:  RedisSink{Mode: "stream", Stream: "{topic}", DedupeWindow: time.Hour, WaitTimeout: time.Second},
			},
			Retry: Retry{MaxAttempts: 10, Initial: time.Second, Max: 5 * time.Minute, Multiplier: 2},
		}},
	}
	if diff := cmp.Diff(want, got, comparers); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
}

// The contract's example says what the defaults are.
func TestParse_DocumentedExampleIsTheDefaults(t *testing.T) {
	t.Parallel()
	example, err := parseFile(t, "testdata/contract.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	minimal, err := parseFile(t, "testdata/minimal.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got := example.Admin.Token.Reveal(); got != environment["RELAY_ADMIN_TOKEN"] {
		t.Errorf("token %q, want what the environment says", got)
	}
	if got, want := example.Pipelines[0].Source.URL.Reveal(), "postgres://app:p%40ss%2Fw%3Ard%3F%23%25@db/app"; got != want {
		t.Errorf("source.url %q, want %q", got, want)
	}
	example.Admin.Token = Secret{}
	p, m := &example.Pipelines[0], &minimal.Pipelines[0]
	p.Place, p.Source.Place, p.Sink.Place = m.Place, m.Source.Place, m.Sink.Place
	p.Source.URL = m.Source.URL
	if p.DeadLetter.Hook == nil || p.DeadLetter.Hook.URL.Reveal() != "https://ops.example/dead" || p.Archive.Table != "outbox_archive" {
		t.Errorf("dead_letter %v, archive %v", p.DeadLetter.Hook, p.Archive)
	}
	if p.Source.Custom.ID != "id" || !strings.Contains(p.Source.Custom.Project, "FROM {events} e") {
		t.Errorf("source.id and source.project: %+v", p.Source.Custom)
	}
	p.DeadLetter, p.Archive, p.Source.Custom = DeadLetter{}, Archive{}, buffer.CustomTable{} // off unless named
	p.Source.Schema = ""                                                                     // the contract's "default: the table's" is not text
	if diff := cmp.Diff(minimal, example, comparers); diff != "" {
		t.Errorf("defaults against the contract's example (-defaults +example):\n%s", diff)
	}
}

func TestParse_ReadsEveryKey(t *testing.T) {
	t.Parallel()
	c, err := parseFile(t, "testdata/full.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p := map[string]*Pipeline{}
	for i := range c.Pipelines {
		p[c.Pipelines[i].Name] = &c.Pipelines[i]
	}
	check := func(name string, got, want any) {
		t.Helper()
		if diff := cmp.Diff(want, got, comparers); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	check("admin", c.Admin, Admin{
		Listen: "0.0.0.0:7070", Token: secretText("t0kenS3cret", "***"),
		Tokens: []Token{{Name: "alice", Token: secretText("t0kenS3cret2", "***")}, {Name: "wall", Token: secretText("w4llS3cret", "***"), ReadOnly: true}},
		Proxy:  Proxy{[]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}, "X-Forwarded-User"},
		TLS:    ServerTLS{Place: c.Admin.TLS.Place, Cert: "/etc/relay/tls.crt", Key: "/etc/relay/tls.key"},
	})
	check("log", c.Log, Log{slog.LevelDebug, "json"})
	check("shutdown_timeout", c.ShutdownTimeout, 90*time.Second)

	s := p["stream_1"]
	check("a URL that is one expansion is taken as it is", s.Source.URL,
		secretText(environment["DATABASE_URL"], "postgres://***@db.example:5433/shop?***"))
	check("expanded boolean", s.Eager, false)
	check("expanded integer in quotes", s.Workers, 8)
	check("expanded duration", s.Lease, 90*time.Second)
	check("integer with underscore", s.BatchSize, 1000)
	check("schema", s.Source.Schema, "relay")
	check("redis", s.Sink.Redis, RedisSink{
		Mode: "stream", Stream: "{orders}:{topic}:{key}", MaxLen: 100000, DedupeWindow: 2 * time.Hour,
		WaitReplicas: 1, WaitTimeout: 500 * time.Millisecond,
	})
	check("retry", s.Retry, Retry{1, 10 * time.Millisecond, 10 * time.Millisecond, 1.5})

	hook := s.DeadLetter.Hook
	check("the hook's URL", hook.URL, secretText("https://ops:h00kS3cret@ops.example/dead?k=h00kS3cret", "https://***@ops.example/dead?***"))
	check("the hook's part", hook.HTTP, HTTPSink{
		Method: "POST", Format: "json", Timeout: 3 * time.Second, Headers: map[string]Secret{"X-Key": secretText("h00kS3cret", "***")},
	})
	check("archive", s.Archive.Table, "app.outbox_archive")
	check("archive.keep", s.Archive.Keep, 30*24*time.Hour)
	check("dead_letter.keep", s.DeadLetter.Keep, 365*24*time.Hour)
	check("no hook", p["list"].DeadLetter, DeadLetter{})
	check("no archive", p["list"].Archive, Archive{})

	check("sqlite's path", p["list"].Source.Path, "/var/lib/relay/list.db")
	check("sqlite's driver", p["list"].Source.Driver, "sqlite")
	check("braces in a default", p["list"].Sink.Redis.List, "queue:{topic}")
	check("channel", p["publish"].Sink.Redis, RedisSink{
		Mode: "publish", Channel: "events.{topic}", SentinelPassword: secretText("l1teralS3cret", "***"),
	})
	check("tls of redis", p["publish"].Sink.TLS, TLS{CA: "ca.pem"})
	check("nats", p["jetstream"].Sink.NATS, NATSSink{Subject: "orders.{topic}", Format: "payload", Credentials: secretText("/etc/relay/user.creds", "***")})
	check("tls of nats", p["core"].Sink.TLS, TLS{CA: "ca.pem", ServerName: "nats.internal"})
	check("core nats", p["core"].Sink.NATS, NATSSink{Subject: "{topic}", Format: "payload", Core: true, NKey: secretText("SUAS3cret", "***")})
	check("http", p["bulk"].Sink.HTTP, HTTPSink{
		Method: "PUT", Format: "ndjson", Timeout: 5 * time.Second,
		Headers: map[string]Secret{
			"Authorization": secretText("Bearer t0kenS3cret", "***"),
			"Content-Type":  secretText("application/vnd.api+json", "***"),
			"X-Literal":     secretText("${NOT_EXPANDED}", "***"),
		},
		MaxBytes: 1_000_000, Refused: []int{409, 503}, Unavailable: []int{422},
	})
	check("tls", p["bulk"].Sink.TLS, TLS{CA: "ca.pem", Cert: "cert.pem", Key: "key.pem", ServerName: "api.internal"})
	check("http URL", p["bulk"].Sink.URL, secretText(
		"https://user:l1teralS3cret@api.example/v1/{topic}/bulk?k={key}", "https://***@api.example/v1/{topic}/bulk?***"))
	check("webhook", p["hook"].Sink.URL, secretText(environment["HOOK_URL"], "https://hooks.example/***"))
	check("http's defaults", p["hook"].Sink.HTTP, HTTPSink{Method: "POST", Format: "json", Timeout: 30 * time.Second})
	check("stdout", p["stdout"].Sink.File, FileSink{})
	check("file", p["file"].Sink.File, FileSink{Path: "/var/log/events.ndjson"})
	for _, name := range []string{"stdout", "file"} {
		check("the file driver", p[name].Sink.Driver, "file")
	}
}

// A qualified table names the ledger's schema too.
func TestParse_SchemaOfTableIsDefault(t *testing.T) {
	t.Parallel()
	c := parseGood(t, pipelineWith("source: {url: postgres://app@db/app, table: app.events}"))
	if got := c.Pipelines[0].Source.Schema; got != "app" {
		t.Errorf("schema %q, want app", got)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	token := write(t, folder, "token", "  f1leS3cret \n")
	path := write(t, folder, "relay.yaml", "admin: {token: '${file:"+token+"}'}\n"+pipelineWith(""))
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Admin.Token.Reveal(); got != "f1leS3cret" {
		t.Errorf("token %q, want the file's content without the space around it", got)
	}
	if got := c.Pipelines[0].Place.File; got != path {
		t.Errorf("place in %q, want the path that was given", got)
	}

	if _, err := Load(filepath.Join(folder, "none.yaml")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is missing: %v, want fs.ErrNotExist", err)
	}
	if _, err := Load("/dev/zero"); !errors.Is(err, errTooLarge) {
		t.Errorf("an endless file: %v, want %v", err, errTooLarge)
	}
	var mistakes Errors
	if _, err := Load(write(t, folder, "bad.yaml", "{}")); !errors.As(err, &mistakes) {
		t.Errorf("a bad file: %v, want Errors", err)
	}
}

// Windows line ends, a byte order mark and comments move nothing.
func TestPlace_MatchesEditors(t *testing.T) {
	t.Parallel()
	const text = "# é\r\nlog: {level: nö, format: \"x\"} # é\r\npipelines:\r\n- name: 'É'\r\n  batch_size:   \t-1\r\n  retry:\r\n\r\n    max: >-\r\n      1d\r\n"
	_, err := Parse("f", []byte("\uFEFF"+text), lookup)
	var got []string
	for line := range strings.Lines(err.Error()) {
		got = append(got, strings.Join(strings.SplitN(line, " ", 3)[:2], " "))
	}
	want := []string{
		"f:2:14: log.level", "f:2:26: log.format", "f:4:3: source.url", "f:4:3: sink", "f:4:9: name",
		"f:5:18: batch_size", "f:8:10: retry.max",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("places (-want +got):\n%s\nof\n%v", diff, err)
	}
}

func TestPlace_SyntaxErrorWithWindowsLineEnds(t *testing.T) {
	t.Parallel()
	_, err := Parse("f", []byte("# one\r\n# two\r\nlog: {}\r\nname: @x\r\n"), lookup)
	if err == nil || !strings.HasPrefix(err.Error(), "f:4:7: the file is not valid YAML") {
		t.Errorf("%v, want a syntax error at f:4:7", err)
	}
}

func secretText(text, masked string) Secret { return Secret{text: &text, masked: masked} }

// pipelineWith is a good file, with some of a pipeline's keys instead of the
// usual ones.
func pipelineWith(lines string) string {
	keys := "pipelines:\n- name: p\n"
	if !strings.Contains(lines, "source:") {
		keys += "  source: {url: postgres://app@db/app}\n"
	}
	if !strings.Contains(lines, "sink:") {
		keys += "  sink: {url: redis://cache}\n"
	}
	for line := range strings.Lines(lines) {
		keys += "  " + line
	}
	return keys
}

func parseGood(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse("relay.yaml", []byte(text), lookup)
	if err != nil {
		t.Fatalf("%v\nin\n%s", err, text)
	}
	return c
}

func write(t *testing.T, folder, name, text string) string {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSchemes_CannotBeRegistered: sink.Register knows every built-in scheme.
func TestSchemes_CannotBeRegistered(t *testing.T) {
	t.Parallel()
	for _, s := range sinkSchemes {
		name, _, _ := strings.Cut(s.prefix, ":")
		func() {
			defer func() {
				if text := fmt.Sprint(recover()); !strings.Contains(text, "built in") {
					t.Errorf("Register(%q): %s", name, text)
				}
			}()
			sink.Register(name, func() sink.Driver { return nil })
		}()
	}
}
