package config

import (
	"slices"
	"strings"
	"time"
)

// key defines one key for the reader, its error messages and the documentation.
type key struct {
	name  string
	value value
	// def is the default as YAML text; "" is the zero value.
	def string
	// required reports whether the key has no default.
	required bool
	// variants are the section variants that have the key, or their first words; nil means all.
	variants []string
	help     string
}

// value reads a key's value into the field that it is bound to.
type value interface {
	// expects describes valid values, to follow "expected ".
	expects() string
	read(*reader, entry)
}

// section is a mapping whose keys are known.
type section interface {
	// keys are read in this order, regardless of their order in the file.
	keys() []key
}

// variantSection is a section in which some keys belong to some variants only. The
// first keys decide the variant.
type variantSection interface{ variant() string }

// checker is a section with rules that involve several keys.
type checker interface{ check(*reader, entry, entries) }

func variantOf(s section) string {
	if v, ok := s.(variantSection); ok {
		return v.variant()
	}
	return ""
}

// appliesTo reports whether a variant may have the key. "redis" is a redis sink of unknown mode.
func (k key) appliesTo(variant string) bool {
	return len(k.variants) == 0 || slices.ContainsFunc(k.variants, func(v string) bool { return beginsWith(variant, v) || beginsWith(v, variant) })
}

// beginsWith reports whether a variant begins with the words of another.
func beginsWith(variant, words string) bool {
	return words == "" || variant == words || strings.HasPrefix(variant, words+" ")
}

// named returns the keys with a name, of which drivers of sink.Register may have several.
func named(keys []key, name string) []key {
	return slices.DeleteFunc(slices.Clone(keys), func(k key) bool { return k.name != name })
}

// keyNames lists the keys that a variant may have.
func keyNames(keys []key, variant string) (names []string) {
	for _, k := range keys {
		if k.appliesTo(variant) && !slices.Contains(names, k.name) {
			names = append(names, k.name)
		}
	}
	return names
}

func (c *Config) keys() []key {
	return []key{
		{name: "admin", value: mapping{&c.Admin}, help: "The HTTP endpoint for probes, metrics and the console."},
		{name: "log", value: mapping{&c.Log}, help: "Logging, on standard error."},
		{
			name: "shutdown_timeout", value: duration(&c.ShutdownTimeout, time.Millisecond, 24*time.Hour), def: "30s",
			help: "How long batches in flight may take to finish after the first signal.",
		},
		{name: "pipelines", value: pipelines{&c.Pipelines}, required: true, help: "The pipelines; each connects a buffer to a sink."},
	}
}

func (l *Log) keys() []key {
	return []key{
		{name: "level", value: level(&l.Level), def: "info", help: "The lowest level that is logged."},
		{name: "format", value: choice(&l.Format, "text", "json"), def: "text", help: "The format of log lines."},
	}
}

func (p *Pipeline) keys() []key {
	return []key{
		{name: "name", value: name(&p.Name), required: true, help: "The name in metrics, logs and at the sink; unique."},
		{name: "source", value: mapping{&p.Source}, help: "The buffer."},
		{
			name: "schedule", value: schedule(&p.Schedule), def: "@every 1s",
			help: "When to count the backlog and issue tickets: a cron spec of 5 fields, of 6 with seconds, `@every`, or a name like `@hourly`. " +
				"The prefix `CRON_TZ=Europe/Berlin` sets the time zone.",
		},
		{
			name: "eager", value: boolean(&p.Eager), def: "true",
			help: "Continue immediately while batches are full; false: claim fresh events on schedule only.",
		},
		{
			name: "batch_size", value: orAuto(&p.AutoBatchSize, &p.BatchSize, 10_000, integer(&p.BatchSize, 1, 1_000_000)), def: "1000",
			help: "The maximum number of events in a batch; `auto` finds the best value up to 10,000.",
		},
		{name: "max_batches", value: integer(&p.MaxBatches, 1, 1_000_000), def: "50", help: "The maximum number of tickets of one distribution."},
		{
			name: "max_waiting", value: integer(&p.MaxWaiting, 1, 1_000_000), def: "1000",
			help: "The number of batches that may wait for a retry before claiming stops.",
		},
		{
			name: "workers", value: orAuto(&p.AutoWorkers, &p.Workers, 32, integer(&p.Workers, 1, 10_000)), def: "4",
			help: "The number of batches that this process sends at once; half as many more, at least two, are claimed ahead. `auto` finds the best value up to 32.",
		},
		{
			name: "lease", value: duration(&p.Lease, time.Second, 24*time.Hour), def: "30s",
			help: "How long a batch belongs to a worker; renewed while the worker is alive.",
		},
		{
			name: "claim", value: claimMode(&p.Claim), def: "auto",
			help: "How events are claimed; `auto` picks the best mode that the table and the database allow. See [Claims](claims.md).",
		},
		{
			name: "wake", value: choice(&p.Wake, "auto", "poll", "notify"), def: "auto",
			help: "How the relay learns of fresh events between two distributions: `notify` uses a trigger that `migrate` installs, `poll` counts them, " +
				"`auto` uses the trigger if it exists and polls otherwise. With `auto`, another `schedule` than the default or `eager: false` disables both.",
		},
		{name: "order", value: choice(&p.Order, "none", "key"), def: "none", help: "`key` keeps the order of events with the same key. See [Order](delivery.md#order)."},
		{name: "sink", value: optional{mapping{&p.Sink}}, help: "Where batches are sent."},
		{
			name: "sinks", value: routedSinks{&p.Sinks},
			help: "Several sinks instead of `sink`: each gets the events whose topic it matches. Every sink has the keys of `sink` and those below. See [Several sinks](sinks.md#several-sinks).",
		},
		{
			name: "unmatched", value: choice(&p.Unmatched, "error", "delete", "keep"), def: "error",
			help: "What happens to an event that none of `sinks` takes: it becomes a dead letter, which replay routes again; it is deleted; or it waits until the sinks change.",
		},
		{name: "retry", value: mapping{&p.Retry}, help: "When rejected events are retried."},
		{name: "dead_letter", value: mapping{&p.DeadLetter}, help: "What happens to dead letters."},
		{name: "archive", value: mapping{&p.Archive}, help: "A table for delivered events."},
	}
}

func (d *DeadLetter) keys() []key {
	return append(d.ownKeys(), key{
		name: "keep", value: keep(&d.Keep, minKeep, maxKeep),
		help: "How long dead letters are kept after they were replayed or discarded; relays then [delete](dead-letters.md#deleting-old-ones) them. Open ones always stay. Default: for ever.",
	})
}

// ownKeys are those that one of several sinks has, too.
func (d *DeadLetter) ownKeys() []key {
	return []key{{
		name: "hook", value: hook{&d.Hook},
		help: "A sink that is notified of every dead letter at least once, in batches. Its target must differ from the sink's.",
	}}
}

// Bounds of what is kept. The shortest time bounds what a mistake can delete: an hour ago, somebody still looks.
const (
	minKeep = time.Hour
	maxKeep = 3650 * day
)

func (a *Archive) keys() []key {
	return []key{{
		name: "table", value: archiveTable{a},
		help: "The table that delivered events are copied to, in the transaction that deletes them; created by `migrate`, in `source.schema` unless it is written `schema.table`. Default: no archive.",
	}, {
		name: "keep", value: keep(&a.Keep, minKeep, maxKeep),
		help: "How long events are kept in the archive; relays then [delete](running.md#the-archive) them, in small pieces. Default: for ever.",
	}, {
		name: "partition", value: choice(&a.Partition, "day"),
		help: "PostgreSQL, with `keep`: `migrate` makes the table with a partition a day, and relays [drop](running.md#an-archive-with-partitions) whole partitions. A table that exists stays as it is. Default: no partitions.",
	}, {
		name: "enabled", value: inverted(&a.Off), def: "true",
		help: "false: events are no longer copied, [on purpose](running.md#to-end-archiving). Relays with no `archive` at all warn if others, or earlier ones, have one.",
	}}
}

func (s *Source) variant() string { return s.Driver }

func (s *Source) keys() []key {
	return []key{
		{name: "url", value: sourceURL{s}, required: true, help: "The database."},
		{
			name: "table", value: table(&s.Table), def: "outbox_events",
			help: "The buffer table; may be schema.table on PostgreSQL. Each pipeline needs its own.",
		},
		{
			name: "schema", value: schemaName(&s.Schema), variants: []string{"postgres"},
			help: "The schema of ledger and dead letters. Default: the table's schema.",
		},
		{name: "supervisor", variants: []string{"postgres"}, value: mapping{&s.Supervisor}, help: "Watches long-running transactions that block vacuum."},
		{
			name: "id", value: columnName(&s.Custom.ID),
			help: "The primary key of a custom table: a growing integer, or a uuid on PostgreSQL. Default: `id`. See [Custom tables](tables.md).",
		},
		{
			name: "cursor", value: columnName(&s.Custom.Cursor), variants: []string{"postgres"},
			help: "A growing column (integer, unique, not null) of a custom table whose primary key does not grow. Claims then skip dead rows.",
		},
		{
			name: "created_at", value: columnName(&s.Custom.CreatedAt),
			help: "The column of a custom table that says when a row was inserted: ages are measured by it, and it is the events' `created_at`. Default: `created_at`, if the table has it. " +
				"Without one, ages are [unknown](tables.md#the-age-of-events).",
		},
		{
			name: "available_at", value: columnName(&s.Custom.AvailableAt),
			help: "The column of a custom table (on PostgreSQL timestamptz), with an index, that delays events: one is not delivered before that time. Default: none. See [Delayed events](enqueue.md#delayed-events).",
		},
		{
			name: "where", value: multiline(&s.Custom.Where, "a condition on the columns of a row"),
			help: "Which rows of a custom table are events, such as `status = 'ready'`. The others stay, and become events when the condition becomes true. Default: all. " +
				"See [Rows that are not events](tables.md#rows-that-are-not-events).",
		},
		{
			name: "done", value: choice(&s.Done, "delete", "mark"), def: "delete",
			help: "What becomes of a row of a custom table whose event is delivered, or a dead letter: it is deleted, or stays and is marked, in a table that is also a journal. A preset may have another default. " +
				"See [Rows that stay](tables.md#rows-that-stay).",
		},
		{
			name: "mark", value: expressions{&s.Custom.Mark},
			help: "With `done: mark`, the columns that are set, and to which SQL expressions; `source.where` must be false then. Default: `{processed_at: now()}`, with `where: processed_at IS NULL` " +
				"(on SQLite `strftime('%Y-%m-%dT%H:%M:%fZ', 'now')`).",
		},
		{
			name: "project", value: multiline(&s.Custom.Project, "a SELECT from the rows of a batch"),
			help: "What to send from a custom table: a SELECT that runs once for each batch. `{events}` stands for the rows of the batch, `$1` (`?` on SQLite) for its group_id. " +
				"It returns one row for each event, with the columns `id` and `payload` and optionally `topic`, `key`, `headers` and `created_at`. It makes the table a custom table, which `migrate` does not change.",
		},
		{
			name: "preset", value: presetName(&s.Preset),
			help: "`id` and `project` for a known table layout. See [Presets](tables.md#presets).",
		},
	}
}

func (s *Supervisor) keys() []key {
	return []key{
		{
			name: "warn_after", value: duration(&s.WarnAfter, time.Second, 30*24*time.Hour), def: "5m",
			help: "The age from which a transaction, prepared transaction or replication slot that blocks vacuum is logged.",
		},
		{
			name: "terminate_after", value: duration(&s.TerminateAfter, time.Second, 30*24*time.Hour),
			help: "The age from which the session of such a transaction is terminated; more than warn_after. Default: never.",
		},
		{
			name: "users", value: names(&s.Users),
			help: "The users whose sessions may be terminated. Default: all except superusers, who must be named here.",
		},
		{name: "applications", value: names(&s.Applications), help: "The applications (application_name) whose sessions may be terminated. Default: all."},
	}
}

func (y *Retry) keys() []key {
	return []key{
		{
			name: "max_attempts", value: integer(&y.MaxAttempts, 1, 1_000_000), def: "10",
			help: "Attempts after which an event becomes a dead letter. An outage is not an attempt.",
		},
		{
			name: "initial", value: duration(&y.Initial, time.Millisecond, 24*time.Hour), def: "1s",
			help: "The delay after the first attempt; at most max.",
		},
		{name: "max", value: duration(&y.Max, time.Millisecond, 24*time.Hour), def: "5m", help: "The longest delay."},
		{name: "multiplier", value: number(&y.Multiplier, 1, 1000), def: "2", help: "The factor between a delay and the next."},
	}
}

// variant is the driver, with the mode for redis, as far as they are known.
func (s *Sink) variant() string {
	if s.Driver == "redis" && s.Redis.Mode != "" {
		return "redis " + s.Redis.Mode
	}
	return s.Driver
}

func (s *Sink) keys() []key {
	const (
		redis   = "redis"
		stream  = "redis stream"
		list    = "redis list"
		publish = "redis publish"
		sidekiq = sidekiqVariant
		asynq   = "redis asynq"
		nats    = "nats"
		http    = "http"
	)
	return append([]key{
		{name: "url", value: sinkURL{s}, required: true, help: "The sink; the scheme selects the kind. The path and query of an http URL may contain `{topic}` and `{key}`."},
		{
			name: "mode", variants: []string{redis}, value: choice(&s.Redis.Mode, redisModes...), def: redisModes[0],
			help: "XADD to a stream, RPUSH to a list, PUBLISH to a channel, or jobs for Sidekiq or asynq. See [Sidekiq and asynq](sinks.md#sidekiq-and-asynq).",
		},
		{
			name: "stream", variants: []string{stream}, value: redisKey(&s.Redis.Stream), def: "{topic}",
			help: "The name of the stream; may contain `{topic}`, `{key}` and a hash tag.",
		},
		{name: "list", variants: []string{list}, value: redisKey(&s.Redis.List), def: "{topic}", help: "The name of the list; may contain `{topic}`, `{key}` and a hash tag."},
		{name: "channel", variants: []string{publish}, value: channel(&s.Redis.Channel), def: "{topic}", help: "The name of the channel; may contain `{topic}` and `{key}`."},
		{name: "queue", variants: []string{sidekiq, asynq}, value: channel(&s.Redis.Queue), def: "default", help: "The queue; may contain `{topic}` and `{key}`."},
		{name: "class", variants: []string{sidekiq, asynq}, value: channel(&s.Redis.Class), def: "{topic}", help: "The class of the job, or the type of the asynq task; may contain `{topic}` and `{key}`."},
		{
			name: "retry", variants: []string{sidekiq}, value: jobRetry{&s.Redis.Retry}, def: "true",
			help: "The retries of a job in Sidekiq: `true` (Sidekiq's 25), `false`, a number, or `class`: what the class says with `sidekiq_options`. See [Sidekiq](sinks.md#sidekiq-and-asynq).",
		},
		{
			name: "maxlen", variants: []string{stream}, value: integer(&s.Redis.MaxLen, 1, 1_000_000_000_000),
			help: "The approximate number of entries that the stream is trimmed to. Default: not trimmed.",
		},
		{
			name: "dedupe_window", variants: []string{stream, asynq}, value: duration(&s.Redis.DedupeWindow, time.Millisecond, 366*24*time.Hour), def: "1h",
			help: "How long a batch (asynq: a task) is remembered, so that sending it again adds nothing.",
		},
		{
			name: "wait_replicas", variants: []string{stream, list, sidekiq, asynq}, value: integer(&s.Redis.WaitReplicas, 0, 1000), def: "0",
			help: "The number of replicas that must acknowledge a write.",
		},
		{
			name: "wait_timeout", variants: []string{stream, list, sidekiq, asynq}, value: duration(&s.Redis.WaitTimeout, time.Millisecond, time.Hour), def: "1s",
			help: "How long to wait for the replicas.",
		},
		{
			name: "sentinel_password", variants: []string{redis}, value: secret(&s.Redis.SentinelPassword),
			help: "The password of the sentinels. User and password in `url` are those of the data servers.",
		},
		{name: "subject", variants: []string{nats}, value: subject(&s.NATS.Subject), def: "{topic}", help: "The subject; may contain `{topic}` and `{key}`."},
		{name: "core", variants: []string{nats}, value: boolean(&s.NATS.Core), def: "false", help: "Plain NATS: no JetStream, no acknowledgements."},
		{name: "credentials", variants: []string{nats}, value: credential(&s.NATS.Credentials), help: "A .creds file, or its content as `${file:...}`."},
		{name: "nkey", variants: []string{nats}, value: credential(&s.NATS.NKey), help: "A file with the seed of a user nkey, or the seed; not with credentials."},
		{name: "method", variants: []string{http}, value: choice(&s.HTTP.Method, "POST", "PUT", "PATCH"), def: "POST", help: "The request method."},
		{name: "headers", variants: []string{http}, value: headers{&s.HTTP.Headers, &s.HTTP.literal, &s.HTTP.odd}, help: "Additional headers; values may contain `{topic}` and `{key}`. They override the relay's own; do not set Idempotency-Key."},
		{
			name: "format", variants: []string{nats, http}, value: sinkFormat{s},
			help: "http: `json` (default), one JSON object; `ndjson`, one event a line; `array`, an array of events; `form`, the fields that `request` returns; " +
				"`cloudevents`, batched, or structured with `batch_size: 1`; `cloudevents-binary`, with the attributes in the headers, which needs `batch_size: 1`. nats: `payload` (default); `cloudevents`, with its attributes in the headers (binary mode).",
		},
		{name: "gzip", variants: []string{http}, value: boolean(&s.HTTP.Gzip), def: "false", help: "Compresses the body."},
		{
			name: "timeout", variants: []string{http}, value: duration(&s.HTTP.Timeout, time.Millisecond, time.Hour), def: "30s",
			help: "The timeout of a request.",
		},
		{
			name: "tls", variants: []string{redis, nats, http, "postgres"}, value: mapping{&s.TLS},
			help: "TLS settings; for `https://`, `tls+nats://`, `postgres://` and every Redis URL (which then uses TLS, as with `rediss://`).",
		},
		{
			name: "request", variants: []string{http}, value: jqProgram(&s.HTTP.Request, &s.HTTP.Secrets),
			help: "A jq program from the default body to the body to send. `$secret.NAME` is the environment variable. See [jq](http.md#request).",
		},
		{
			name: "results", variants: []string{http}, value: jqProgram(&s.HTTP.Results, &s.HTTP.Secrets),
			help: "A jq program from the response `{status, headers, body, events}` to the events that failed: an array of `{id | index, error, retry}`. See [Results](http.md#results).",
		},
		{name: "rate", variants: []string{http}, value: optional{mapping{&httpRate{&s.HTTP}}}, help: "A rate limit."},
		{
			name: "max_in_flight", variants: []string{http}, value: integer(&s.HTTP.MaxInFlight, 1, 10_000),
			help: "The maximum number of concurrent requests of this process. Default: `workers`.",
		},
		{name: "bearer", variants: []string{http}, value: noted(secret(&s.HTTP.Bearer), "bearer", &s.HTTP.odd), help: "A token for `Authorization: Bearer`."},
		{name: "basic", variants: []string{http}, value: optional{mapping{&httpBasic{&s.HTTP}}}, help: "A user and password for `Authorization: Basic`."},
		{name: "oauth2", variants: []string{http}, value: optional{mapping{&httpOAuth2{&s.HTTP}}}, help: "Client credentials, for a token that the relay fetches and renews."},
		{name: "sign", variants: []string{http}, value: optional{mapping{&s.HTTP.Sign}}, help: "Standard Webhooks signatures."},
		{name: "proxy", variants: []string{http}, value: httpURL(&s.HTTP.Proxy), help: "The URL of a proxy. Default: HTTPS_PROXY, HTTP_PROXY and NO_PROXY."},
		{
			name: "max_bytes", variants: []string{http}, value: integer(&s.HTTP.MaxBytes, 1, 1_000_000_000_000),
			help: "The largest body that the server accepts, in bytes. Larger batches are split before they are sent.",
		},
		{
			name: "refused", variants: []string{http}, value: statuses(&s.HTTP.Refused),
			help: "Status codes to treat as a rejection instead of an outage.",
		},
		{
			name: "unavailable", variants: []string{http}, value: statuses(&s.HTTP.Unavailable),
			help: "Status codes to treat as an outage instead of a rejection.",
		},
	}, s.registeredKeys()...)
}

// redisModes are the modes of a redis sink, the default first.
var redisModes = []string{"stream", "list", "publish", "sidekiq", "asynq"}

// httpRate is the rate limit of an http sink.
type httpRate struct{ *HTTPSink }

func (h *httpRate) keys() []key {
	return []key{
		{name: "requests", value: integer(&h.Rate.Requests, 1, 1_000_000), required: true, help: "The number of requests that may start within `per`."},
		{name: "per", value: duration(&h.Rate.Per, time.Millisecond, 24*time.Hour), def: "1s", help: "The interval."},
		{
			name: "shared", value: boolean(&h.RateShared), def: "false",
			help: "The limit applies to all processes of the pipeline together; they count in its database.",
		},
	}
}

// httpBasic is the basic authentication of an http sink.
type httpBasic struct{ *HTTPSink }

func (h *httpBasic) keys() []key {
	b := &h.Basic
	return []key{
		{name: "user", value: nonEmpty(&b.User, "a user name"), required: true, help: "The user."},
		{name: "password", value: noted(secret(&b.Password), "basic.password", &h.odd), help: "The password."},
	}
}

// httpOAuth2 is the OAuth2 of an http sink.
type httpOAuth2 struct{ *HTTPSink }

func (h *httpOAuth2) keys() []key {
	o := &h.OAuth2
	return []key{
		{name: "token_url", value: httpURL(&o.TokenURL), required: true, help: "The token endpoint."},
		{name: "client_id", value: nonEmpty(&o.ClientID, "a client id"), required: true, help: "The client id."},
		{name: "client_secret", value: noted(secret(&o.ClientSecret), "oauth2.client_secret", &h.odd), required: true, help: "The client secret."},
		{name: "scopes", value: names(&o.Scopes), help: "The scopes of the token."},
		{name: "audience", value: nonEmpty(&o.Audience, "an audience"), help: "The audience of the token, if the server requires one."},
	}
}

func (s *Sign) keys() []key {
	return []key{{
		name: "secret", value: signingSecrets{&s.Secrets}, required: true,
		help: "`whsec_` and the key in base64, 24 to 64 bytes; or a list of secrets, each of which signs every request while receivers change from one to another.",
	}}
}

func (t *TLS) keys() []key {
	return []key{
		{name: "ca", value: path(&t.CA), help: "A PEM file of certificates to trust instead of the system's."},
		{name: "cert", value: path(&t.Cert), help: "The client certificate, a PEM file; requires key."},
		{name: "key", value: path(&t.Key), help: "The client's private key, a PEM file."},
		{name: "server_name", value: hostName(&t.ServerName), help: "The name to expect in the server's certificate. Default: the host of the URL."},
		{name: "insecure_skip_verify", value: boolean(&t.InsecureSkipVerify), def: "false", help: "Accepts any certificate; for tests only."},
	}
}
