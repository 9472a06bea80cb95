// Package config reads relay.yaml: strictly, every mistake at once with its
// file, line and column, and without ever showing a secret.
//
// The keys, their types, defaults, limits and help stand in one place, the
// keys methods in schema.go; docs/configuration.md is made from them.
package config

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Config is a relay.yaml, validated and with its defaults. It prints without secrets.
type Config struct {
	Admin Admin
	Log   Log
	// ShutdownTimeout is how long batches in flight may take after the first signal.
	ShutdownTimeout time.Duration
	// Pipelines are in the order of the file. There is at least one; names and tables are unique.
	Pipelines []Pipeline

	redaction redaction
}

// Log configures logging.
type Log struct {
	Level slog.Level
	// Format is "text" or "json".
	Format string
}

// Pipeline joins a buffer and a sink.
type Pipeline struct {
	// Place is where the pipeline begins in the file.
	Place Place
	// Name is unique and made of a-z, 0-9, _ and -.
	Name   string
	Source Source
	// Schedule is when to count the backlog and issue tickets.
	Schedule Schedule
	// Eager reports whether claims continue at once while batches are full.
	Eager bool
	// BatchSize is the maximum number of events in a batch. If AutoBatchSize is true, the relay finds the size.
	BatchSize     int
	AutoBatchSize bool
	// MaxBatches is the maximum number of tickets of one distribution.
	MaxBatches int
	// MaxWaiting is the number of batches that may wait for a retry before claiming stops.
	MaxWaiting int
	// Workers is the number of batches that this process sends at once; half as many more, at least two, are
	// claimed ahead. If AutoWorkers is true, it is the maximum, and the relay finds the number.
	Workers     int
	AutoWorkers bool
	// Lease is how long a batch belongs to a silent worker.
	Lease time.Duration
	// Claim is "auto", "stamp" or "range".
	Claim string
	// Wake is "auto", "poll" or "notify".
	Wake string
	// Order is "none" or "key".
	Order string
	// Sink is the only sink; zero if there are Sinks. SinkName and Match are set if it is one of several: see PerSink.
	Sink     Sink
	SinkName string
	Match    []string
	// Sinks are several sinks; nil if there is a single one.
	Sinks []RoutedSink
	// Unmatched says what happens to an event that none of Sinks takes: "error", "delete" or "keep".
	Unmatched string
	Retry     Retry
	// DeadLetter configures what happens to dead letters.
	DeadLetter DeadLetter
	// Archive keeps delivered events.
	Archive Archive

	redaction redaction // of the whole file
}

// DeadLetter configures what happens to dead letters.
type DeadLetter struct {
	// Hook is notified of every dead letter; nil means no hook.
	Hook *Sink
	// Keep is how long closed dead letters are kept; 0 means for ever. Only the pipeline's own has it.
	Keep time.Duration
}

// Archive is a table for delivered events.
type Archive struct {
	// Place is the place of Table in the file.
	Place Place
	// Table is "table" or "schema.table"; "" means no archive.
	Table string
	// Keep is how long events are kept in it; 0 means for ever.
	Keep time.Duration
	// Partition is "day" if migrate makes it with a partition a day, otherwise "".
	Partition string
	// Off is set if delivered events are no longer copied, on purpose; Table is "" then.
	Off bool
}

// Source is where a buffer is.
type Source struct {
	// Place is the place of URL in the file.
	Place Place
	// Driver is "postgres" or "sqlite".
	Driver string
	// URL prints without userinfo and query.
	URL Secret
	// Path is the absolute path of an SQLite file; "" for other drivers.
	Path string
	// Table is the buffer table, "table" or "schema.table".
	Table string
	// Schema is the schema of ledger and dead letters; "" means the table's.
	Schema string
	// Custom is set for a custom table, with its preset filled in; zero for the relay's own.
	Custom buffer.CustomTable
	// Done is "delete" or "mark": what becomes of the row of an event that is delivered or dead. Custom.Mark is nil unless it is "mark".
	Done string
	// Preset is "" or a name in presets.
	Preset string
	// Supervisor watches transactions that block vacuum.
	Supervisor Supervisor

	outdated outdated
}

// Supervisor says what happens to transactions that block vacuum.
type Supervisor struct {
	// WarnAfter is the age from which they are logged.
	WarnAfter time.Duration
	// TerminateAfter is the age from which their sessions are terminated, more than WarnAfter; 0 means never.
	TerminateAfter time.Duration
	// Users and Applications limit whose sessions are terminated. Nil means all; superusers must be in Users.
	Users, Applications []string
}

// Schedule is a cron spec.
type Schedule struct {
	// Text is the spec in the file.
	Text string
	cron.Schedule
}

func (s Schedule) String() string { return s.Text }

// Retry says when rejected events are retried.
type Retry struct {
	// MaxAttempts is the number of attempts after which an event becomes a dead letter.
	MaxAttempts int
	// Initial is the first delay, Max the longest; Initial is at most Max.
	Initial, Max time.Duration
	// Multiplier is the factor between a delay and the next, at least 1.
	Multiplier float64
}

// Sink is where batches are sent. Driver selects the part that is set; the other parts are zero.
type Sink struct {
	// Place is the place of URL in the file.
	Place Place
	// Driver is "redis", "nats", "http", "postgres" or "file", or the scheme of a driver of sink.Register.
	Driver string
	// URL prints without userinfo and query. An http URL may contain {topic} and {key}.
	URL Secret
	// TLS is zero unless the URL's scheme uses TLS. For Redis, it turns TLS on under every scheme.
	TLS   TLS
	Redis RedisSink
	NATS  NATSSink
	HTTP  HTTPSink
	File  FileSink

	// registered are drivers of sink.Register, by scheme: with the values of this sink, if the scheme is Driver. Nil if there are none.
	registered        map[string]sink.Driver
	registeredSecrets []Secret

	formatAt Place
	outdated outdated
}

// RedisSink has the keys of a redis sink.
type RedisSink struct {
	// Mode is "stream", "list", "publish", "sidekiq" or "asynq".
	Mode string
	// Queue and Class are templates of the queue and of the job's class or task's type, for sidekiq and asynq.
	Queue, Class string
	// Retry is what a Sidekiq job says of its retries: "true", "false", a number, or "class" for what its class says.
	Retry string
	// Stream, List and Channel are address templates; only the one of the mode is set. Stream and List may also
	// contain a hash tag.
	Stream, List, Channel string
	// MaxLen is the approximate number of entries that a stream is trimmed to; 0 means not trimmed.
	MaxLen int64
	// DedupeWindow is how long a stream remembers a batch.
	DedupeWindow time.Duration
	// WaitReplicas is the number of replicas that must acknowledge a write within WaitTimeout; 0 does not wait.
	WaitReplicas int
	WaitTimeout  time.Duration
	// SentinelPassword is the password of the sentinels, if the URL names sentinels.
	SentinelPassword Secret
}

// NATSSink has the keys of a nats sink.
type NATSSink struct {
	// Subject is an address template.
	Subject string
	// Format is "payload" or "cloudevents".
	Format string
	// Core is plain NATS, without JetStream.
	Core bool
	// Credentials is a .creds file or its content, NKey a seed or a file with it. At most one is set.
	Credentials, NKey Secret
}

// HTTPSink has the keys of an http sink.
type HTTPSink struct {
	// Method is "POST", "PUT" or "PATCH".
	Method string
	// Headers have canonical names; values may contain {topic} and {key}. Nil if there are none.
	Headers map[string]Secret
	literal []literalBrace // in Headers
	odd     []oddSecret
	// Format is "json", "ndjson", "array", "form", "cloudevents" or "cloudevents-binary".
	Format string
	// Request and Results are jq programs; "" means none. Secrets are what they read as $secret.NAME, by name.
	Request, Results string
	Secrets          map[string]Secret
	// Gzip compresses the body.
	Gzip bool
	// Rate limits the requests; zero means no limit. RateShared reports whether all processes share it.
	Rate       sink.Rate
	RateShared bool
	// MaxInFlight is the maximum number of concurrent requests; 0 means the number of workers.
	MaxInFlight int
	// Bearer, Basic and OAuth2 set the header Authorization. At most one is set.
	Bearer Secret
	Basic  Basic
	OAuth2 OAuth2
	// Sign adds Standard Webhooks signatures.
	Sign Sign
	// Proxy is a URL; "" means the environment's.
	Proxy Secret
	// Timeout is the timeout of a request.
	Timeout time.Duration
	// MaxBytes is the largest body that the server accepts; 0 means no limit.
	MaxBytes int64
	// Refused and Unavailable are statuses, 300 to 599, to treat as a rejection and as an outage. They have no
	// status in common.
	Refused, Unavailable []int
}

// Basic is HTTP basic authentication; zero means none.
type Basic struct {
	User     string
	Password Secret
}

// OAuth2 are client credentials (RFC 6749, 4.4); zero means none.
type OAuth2 struct {
	TokenURL     Secret
	ClientID     string
	ClientSecret Secret
	Scopes       []string
	Audience     string
}

// Sign are the keys that sign requests (standardwebhooks.com); zero means none.
type Sign struct {
	// Secrets are whsec_ and base64 each.
	Secrets []Secret
}

// TLS says which servers to trust and which certificate to present; see [sink.TLS].
type TLS struct {
	// CA is a PEM file of certificates to trust instead of the system's.
	CA string
	// Cert and Key are the client's PEM files; both or none are set.
	Cert, Key string
	// ServerName is the name to expect in the server's certificate; "" means the URL's host.
	ServerName string
	// InsecureSkipVerify accepts any certificate.
	InsecureSkipVerify bool
}

// FileSink has the path of a file sink.
type FileSink struct {
	// Path is absolute; "" is standard output.
	Path string
}

// Lookup finds an environment variable, as os.LookupEnv does.
type Lookup func(name string) (value string, set bool)

// Load reads the file at path, with the process's environment. The error is the
// file's (errors.Is finds fs.ErrNotExist) or [Errors].
func Load(path string) (*Config, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	return Parse(path, text, os.LookupEnv)
}

// LoadWithoutSinks is Load for commands that talk to no sink: what a sink or a hook needs may be unset. A URL that lacks something is "".
func LoadWithoutSinks(path string) (*Config, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	r := newReader(path, os.LookupEnv, readFile)
	r.withoutSinks = true
	return r.config(text)
}

// Parse reads the text of a configuration; name is the name of the file in
// messages. The error is always [Errors].
func Parse(name string, text []byte, env Lookup) (*Config, error) {
	return newReader(name, env, readFile).config(text)
}
