// Package config reads relay.yaml: strictly, every mistake at once with its
// file, line and column, and without ever showing a secret.
//
// The keys, their types, defaults, limits and help stand in one place, the
// keys methods in schema.go; docs/configuration.md is made from them.
package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Config is a whole relay.yaml, checked and with its defaults filled in. It can
// be printed or logged by any means without showing a secret.
type Config struct {
	Admin Admin
	Log   Log
	// ShutdownTimeout is how long batches in flight may take to finish after
	// the first signal.
	ShutdownTimeout time.Duration
	// Pipelines are at least one, with different names and on different tables,
	// in the order of the file.
	Pipelines []Pipeline
}

// Admin is the HTTP endpoint for probes, metrics and the dashboard.
type Admin struct {
	// Listen is host:port; "" switches the endpoint off.
	Listen string
	// Token is never empty where Listen is beyond loopback.
	Token Secret
}

// Log says how the relay logs.
type Log struct {
	Level slog.Level
	// Format is "text" or "json".
	Format string
}

// Pipeline joins one buffer and one sink.
type Pipeline struct {
	// Place is where the pipeline begins in the file.
	Place Place
	// Name is unique and made of a-z, 0-9, _ and -.
	Name   string
	Source Source
	// Schedule says when to count and fan out.
	Schedule Schedule
	// Eager: go on at once while batches come back full.
	Eager bool
	// BatchSize is the most events of a batch, AutoBatchSize that the relay finds it,
	// up to BatchSize.
	BatchSize     int
	AutoBatchSize bool
	// MaxBatches is the most tickets of one distribution.
	MaxBatches int
	// MaxWaiting is how many batches may wait for a retry before claiming
	// stops.
	MaxWaiting int
	// Workers is how many batches this process sends at once (half as many more, two
	// at least, are claimed ahead), AutoWorkers that the relay finds it, up to Workers.
	Workers     int
	AutoWorkers bool
	// Lease is how long a silent worker keeps a batch.
	Lease time.Duration
	// Claim is "auto", "stamp" or "range".
	Claim string
	// RetryNow is "auto", "poll" or "notify".
	Wake string
	// Order is "none" or "key".
	Order string
	Sink  Sink
	Retry Retry
	// DeadLetter says who hears of dead letters.
	DeadLetter DeadLetter
	// Archive is where delivered events are kept.
	Archive Archive
}

// DeadLetter says who hears of dead letters.
type DeadLetter struct {
	// Hook is told of each; nil: nobody is.
	Hook *Sink
}

// Archive says where delivered events are kept.
type Archive struct {
	// Place is where the table was written.
	Place Place
	// Table is "table" or "schema.table"; "" keeps none.
	Table string
}

// Source is where a buffer is.
type Source struct {
	// Place is where the URL was written.
	Place Place
	// Driver is "postgres" or "sqlite".
	Driver string
	// URL is the database's; it prints without its userinfo and query.
	URL Secret
	// Path is SQLite's file, absolute; "" for other drivers.
	Path string
	// Table is the buffer table, "table" or "schema.table".
	Table string
	// Schema is where ledger and dead letters live; "" means the table's.
	Schema string
	// Own is how events are found in a table of the user's own, and what is sent of
	// them; zero: it is the relay's own table. A preset is filled in already.
	Own buffer.CustomTable
	// Preset is "" or one of presets.
	Preset string
	// Supervisor watches what holds the database back.
	Supervisor Supervisor
}

// Supervisor says what becomes of transactions that hold vacuum back.
type Supervisor struct {
	// WarnAfter is the age from which on they are logged.
	WarnAfter time.Duration
	// TerminateAfter is the age from which on their sessions are ended; 0: never. It
	// is longer than WarnAfter.
	TerminateAfter time.Duration
	// Users and Applications are whose sessions may be ended, nil: anybody's who is
	// no superuser. A superuser's only when Users names it.
	Users, Applications []string
}

// Schedule is a cron spec.
type Schedule struct {
	// Text is the spec as it was written.
	Text string
	cron.Schedule
}

func (s Schedule) String() string { return s.Text }

// Retry says how refused batches are tried again.
type Retry struct {
	// MaxAttempts is the number of refusals after which an event is buried.
	MaxAttempts int
	// Initial is the wait after the first refusal, Max the longest of all;
	// Initial is not above Max.
	Initial, Max time.Duration
	// Multiplier is what the wait grows by each time, at least 1.
	Multiplier float64
}

// Sink is where a pipeline's batches go. Driver says which of the parts below
// it counts; the others are zero.
type Sink struct {
	// Place is where the URL was written.
	Place Place
	// Driver is "redis", "nats", "http" or "file".
	Driver string
	// URL prints without its userinfo and query. The http driver's may hold
	// {topic} and {key}.
	URL   Secret
	Redis RedisSink
	NATS  NATSSink
	HTTP  HTTPSink
	File  FileSink
}

// RedisSink is what a redis sink needs beside its URL.
type RedisSink struct {
	// Mode is "stream", "list", "publish", "sidekiq" or "asynq".
	Mode string
	// Queue and Class are templates, of the queue's name and of the class that runs an
	// event (asynq: the task's type); only where Mode is one of those two.
	Queue, Class string
	// Stream, List and Channel are address templates; only the mode's is set.
	// Stream and List may hold a hash tag beside {topic} and {key}.
	Stream, List, Channel string
	// MaxLen is about how many entries a stream is trimmed to; 0: it is not.
	MaxLen int64
	// DedupeWindow is how long a stream remembers a batch.
	DedupeWindow time.Duration
	// WaitReplicas must have a write before it counts, within WaitTimeout;
	// 0 does not wait.
	WaitReplicas int
	WaitTimeout  time.Duration
}

// NATSSink is what a nats sink needs beside its URL.
type NATSSink struct {
	// Subject is an address template.
	Subject string
	// Format is "payload" or "cloudevents".
	Format string
	// Core: plain NATS without JetStream.
	Core bool
	// Credentials is the path of a .creds file or its content, NKey the path of
	// a file with a user's nkey seed or the seed; "" for none, and never both.
	Credentials, NKey Secret
}

// HTTPSink is what an http sink needs beside its URL.
type HTTPSink struct {
	// Method is "POST", "PUT" or "PATCH".
	Method string
	// Headers have canonical names, and values that may hold {topic} and {key}; nil
	// when there are none.
	Headers map[string]Secret
	// Format is "json", "ndjson", "array", "form" or "cloudevents".
	Format string
	// Request and Results are jq programs; "" for none.
	Request, Results string
	// Gzip compresses the body.
	Gzip bool
	// Rate is how many requests may begin in a time; zero: as many as can. RateShared:
	// it holds for all processes together.
	Rate       sink.Rate
	RateShared bool
	// MaxInFlight is how many requests may be under way at once; 0: as many as workers.
	MaxInFlight int
	// Bearer is a token, Basic a user and password, OAuth2 client credentials, each for
	// the header Authorization; one of them at most.
	Bearer Secret
	Basic  Basic
	OAuth2 OAuth2
	// Sign adds Standard Webhooks signatures.
	Sign Sign
	// Proxy is a URL; "" goes by the environment.
	Proxy Secret
	// Timeout is for one request.
	Timeout time.Duration
	TLS     TLS
	// MaxBytes is the largest body the server takes; 0: there is no limit.
	MaxBytes int64
	// Refused and Unavailable are statuses, 300 to 599, that refuse the batch and
	// that are an outage, whatever they mean else. None is in both.
	Refused, Unavailable []int
}

// Basic is HTTP basic authentication; zero: none.
type Basic struct {
	User     string
	Password Secret
}

// OAuth2 are client credentials (RFC 6749, 4.4); zero: none.
type OAuth2 struct {
	TokenURL     Secret
	ClientID     string
	ClientSecret Secret
	Scopes       []string
	Audience     string
}

// Sign is how requests are signed (standardwebhooks.com); zero: they are not.
type Sign struct {
	// Secret is whsec_ and base64.
	Secret Secret
}

// TLS is zero unless the URL is https.
type TLS struct {
	// CA is a file of PEM certificates to trust instead of the system's.
	CA string
	// Cert and Key are the client's own, PEM files, both or none.
	Cert, Key string
	// ServerName is expected in the server's certificate instead of the URL's
	// host.
	ServerName string
	// InsecureSkipVerify accepts any certificate.
	InsecureSkipVerify bool
}

// FileSink is what a file sink needs.
type FileSink struct {
	// Path is absolute; "" is standard output.
	Path string
}

// Lookup finds an environment variable, as os.LookupEnv does.
type Lookup func(name string) (value string, set bool)

// maxBytes is far beyond any real configuration; it stops -c /dev/zero.
const maxBytes = 256 << 10

// Load reads the file at path, with the process's environment. The error is the
// file's (errors.Is finds fs.ErrNotExist) or [Errors].
func Load(path string) (*Config, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	return Parse(path, text, os.LookupEnv)
}

// Parse reads the text of a configuration; name stands for the file in
// messages. The error is always [Errors].
func Parse(name string, text []byte, env Lookup) (*Config, error) {
	return newReader(name, env, readFile).config(text)
}

var errTooLarge = errors.New("larger than 256 KiB")

func readFile(path string) (text []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	text, err = io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = &os.PathError{Op: "read", Path: path, Err: errTooLarge}
	}
	return text, err
}
