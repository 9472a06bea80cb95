package config

import (
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/sqlite"
)

// TestOpen_SharedRatesAreSeparate: a pipeline and its hook write to different APIs, so
// each has a bucket of its own in the buffer.
func TestOpen_SharedRatesAreSeparate(t *testing.T) {
	t.Parallel()
	c, err := Parse("relay.yaml", []byte(`
pipelines:
  - name: orders
    source: {url: "sqlite:///app.db"}
    sink: {url: "https://api.example/in", rate: {requests: 1, shared: true}}
    dead_letter: {hook: {url: "https://ops.example/dead", rate: {requests: 1, shared: true}}}
  - name: alone
    source: {url: "sqlite:///other.db"}
    sink: {url: "https://api.example/in", rate: {requests: 1}}
`), lookup)
	if err != nil {
		t.Fatal(err)
	}
	p, alone := &c.Pipelines[0], &c.Pipelines[1]
	b := &sqlite.Buffer{}
	if p.Sink.bucket(b) != b || p.DeadLetter.Hook.bucket(b) != b || alone.Sink.bucket(b) != nil {
		t.Error("the bucket is not the buffer's, or a rate that is not shared has one")
	}
	if !p.sharesRate() || alone.sharesRate() {
		t.Error("a buffer does not know whether it counts a rate")
	}
	if got := []string{p.bucketName(&p.Sink), p.bucketName(p.DeadLetter.Hook)}; got[0] != "orders" || got[1] != "orders:hook" {
		t.Errorf("the buckets are named %q", got)
	}
}

// TestSendTimeout_IncludesRateLimit: where the others come first, its time is not up before
// theirs is.
func TestSendTimeout_IncludesRateLimit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		`timeout: 10s`: 40 * time.Second,
		`timeout: 10s, rate: {requests: 10, per: 1s}`: 40*time.Second + 400*time.Millisecond,
		`timeout: 10s, rate: {requests: 2, per: 1m}`:  40*time.Second + 2*time.Minute,
		`timeout: 10s, rate: {requests: 1, per: 24h}`: 40*time.Second + 10*time.Minute,
		`timeout: 10s, max_in_flight: 2`:              40*time.Second + 20*time.Second,
		`timeout: 10s, max_in_flight: 9`:              40 * time.Second,
	} {
		c, err := Parse("relay.yaml", []byte(`
pipelines:
  - name: orders
    workers: 4
    source: {url: "sqlite:///app.db"}
    sink: {url: "https://api.example/in", `+text+`}
`), lookup)
		if err != nil {
			t.Fatal(err)
		}
		p := &c.Pipelines[0]
		if got := p.pipelineConfig(Process{}).SendTimeout; got != want {
			t.Errorf("%s: a send may take %v, want %v", text, got, want)
		}
	}
}
