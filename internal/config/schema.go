package config

import (
	"slices"
	"strings"
	"time"
)

// key is all there is to know about one key: for the reader, for its messages
// and for the documentation.
type key struct {
	name  string
	value value
	// def is the default as it would be written; "" is the zero value.
	def string
	// needed: there is no default that serves.
	needed bool
	// later: recognised, and not there yet.
	later bool
	// of names the variants of its section that the key belongs to, by prefix;
	// none: to all of them.
	of   []string
	help string
}

// value reads a key's value into the field it is bound to.
type value interface {
	// expects says what is taken, after "..., " and before " was expected".
	expects() string
	read(*reader, entry)
}

// section is a mapping whose keys are known.
type section interface {
	// keys are read in this order, whatever the file's.
	keys() []key
}

// varied is a section of which some keys belong to some variants only. The
// variant is known once the first keys were read.
type varied interface{ variant() string }

// checker is a section with rules between its keys.
type checker interface{ check(*reader, entry, written) }

func variantOf(s section) string {
	if v, ok := s.(varied); ok {
		return v.variant()
	}
	return ""
}

// serves tells whether the key belongs to the variant, as far as that is known:
// "redis" is a redis sink whose mode is not.
func (k key) serves(variant string) bool {
	return len(k.of) == 0 || slices.ContainsFunc(k.of, func(of string) bool {
		return strings.HasPrefix(variant, of) || strings.HasPrefix(of, variant)
	})
}

// oneOf lists the keys one may write.
func oneOf(keys []key, variant string) string {
	var all []string
	for _, k := range keys {
		if !k.later && k.serves(variant) {
			all = append(all, k.name)
		}
	}
	if len(all) == 1 {
		return all[0]
	}
	return "one of " + strings.Join(all, ", ")
}

func (c *Config) keys() []key {
	return []key{
		{name: "admin", value: mapping{&c.Admin}, help: "The HTTP endpoint for probes, metrics and the dashboard."},
		{name: "log", value: mapping{&c.Log}, help: "How the relay logs, on standard error."},
		{
			name: "shutdown_timeout", value: duration(&c.ShutdownTimeout, time.Millisecond, 24*time.Hour), def: "30s",
			help: "How long batches in flight may take to finish after the first signal.",
		},
		{name: "pipelines", value: pipelines{&c.Pipelines}, needed: true, help: "What goes where."},
	}
}

func (a *Admin) keys() []key {
	return []key{
		{
			name: "listen", value: listen(&a.Listen), def: "127.0.0.1:7070",
			help: `Where to listen; "" switches the endpoint off. Beyond loopback, token is required.`,
		},
		{name: "token", value: secret(&a.Token), help: "What `Authorization: Bearer` must carry for `/` and `/api`; probes and metrics are open."},
	}
}

func (l *Log) keys() []key {
	return []key{
		{name: "level", value: level(&l.Level), def: "info", help: "The least severe entries that are logged."},
		{name: "format", value: choice(&l.Format, []string{"text", "json"}), def: "text", help: "How they look."},
	}
}

func (p *Pipeline) keys() []key {
	return []key{
		{name: "name", value: name(&p.Name), needed: true, help: "Names the pipeline in metrics, logs and at the sink; unique."},
		{name: "source", value: mapping{&p.Source}, help: "Where the buffer is."},
		{
			name: "schedule", value: schedule(&p.Schedule), def: "@every 1s",
			help: "When to count and fan out: 5 fields, 6 with seconds, `@every`, or a name like `@hourly`; " +
				"`CRON_TZ=Europe/Berlin` in front of it sets the time zone.",
		},
		{
			name: "eager", value: boolean(&p.Eager), def: "true",
			help: "Go on at once while batches come back full; false: fresh events on schedule only.",
		},
		{
			name: "batch_size", value: orAuto(&p.AutoBatchSize, &p.BatchSize, 10_000, integer(&p.BatchSize, 1, 1_000_000)), def: "1000",
			help: "The most events of a batch; `auto`: as many as the sink takes quickly, up to 10,000.",
		},
		{name: "max_batches", value: integer(&p.MaxBatches, 1, 1_000_000), def: "50", help: "Tickets one distribution may hand out."},
		{
			name: "max_waiting", value: integer(&p.MaxWaiting, 1, 1_000_000), def: "1000",
			help: "Batches that may wait for a retry before claiming stops.",
		},
		{
			name: "workers", value: orAuto(&p.AutoWorkers, &p.Workers, 32, integer(&p.Workers, 1, 10_000)), def: "4",
			help: "Batches this process sends at once; half as many more, two at least, are claimed ahead. `auto`: as many as the sink gets quicker by, up to 32.",
		},
		{
			name: "lease", value: duration(&p.Lease, time.Second, 24*time.Hour), def: "30s",
			help: "How long a silent worker keeps a batch; extended while it is alive.",
		},
		{
			name: "claim", value: choice(&p.Claim, []string{"auto", "stamp", "optimistic", "range"}), def: "auto",
			help: "How events are claimed; `auto` is the best that table and database allow. See [Claims](claims.md).",
		},
		{
			name: "wake", value: choice(&p.Wake, []string{"auto", "poll", "notify"}), def: "auto",
			help: "How the relay hears of fresh events between two distributions: `notify` by a trigger that `migrate` makes, `poll` by looking, " +
				"`auto` by the trigger where there is one and looking else, and not at all where `schedule` is not the default or `eager` is false.",
		},
		{name: "order", value: choice(&p.Order, []string{"none", "key"}), def: "none", help: "What order is kept by; see [Order](delivery.md#order)."},
		{name: "sink", value: mapping{&p.Sink}, help: "Where batches go."},
		{name: "retry", value: mapping{&p.Retry}, help: "How refused batches are tried again."},
		{name: "dead_letter", value: mapping{&p.DeadLetter}, help: "Who hears of dead letters."},
		{name: "archive", value: mapping{&p.Archive}, help: "Where delivered events are kept."},
	}
}

func (d *DeadLetter) keys() []key {
	return []key{{
		name: "hook", value: hook{&d.Hook},
		help: "Is told of every dead letter, at least once, in batches like any other. Not where the sink writes to.",
	}}
}

func (a *Archive) keys() []key {
	return []key{{
		name: "table", value: archiveTable{a},
		help: "The table that delivered events are copied to, in the transaction that deletes them; made by `migrate`. None when left out.",
	}}
}

func (s *Source) variant() string { return s.Driver }

func (s *Source) keys() []key {
	return []key{
		{name: "url", value: sourceURL{s}, needed: true, help: "The database."},
		{
			name: "table", value: table(&s.Table), def: "outbox_events",
			help: "The buffer table, which may be schema.table on PostgreSQL. Every pipeline has one of its own.",
		},
		{
			name: "schema", value: schemaName(&s.Schema), of: []string{"postgres"},
			help: "Where ledger and dead letters live; the table's when left out.",
		},
		{name: "supervisor", of: []string{"postgres"}, value: mapping{&s.Supervisor}, help: "Watches the transactions that hold vacuum back."},
		{
			name: "id", value: columnName(&s.Own.ID),
			help: "The primary key of a table of your own: an integer that grows, or a uuid on PostgreSQL. `id` when left out. See [Tables of your own](tables.md).",
		},
		{
			name: "cursor", value: columnName(&s.Own.Cursor), of: []string{"postgres"},
			help: "A column that grows (an integer, unique, not null) beside a primary key that does not, so that claims need not walk over dead rows.",
		},
		{
			name: "project", value: lines(&s.Own.Project, "a SELECT with the batch's group_id as its parameter"),
			help: "What to send from a table of your own: a SELECT that is run once a batch, `$1` (`?` on SQLite) its group_id, and returns one row an event with " +
				"columns `id` and `payload`, and perhaps `topic`, `key`, `headers` and `created_at`. It makes the table yours: nothing is added to it.",
		},
		{
			name: "preset", value: presetName(&s.Preset),
			help: "`id` and `project` of a table whose shape is known; see [Presets](tables.md#presets).",
		},
	}
}

func (s *Supervisor) keys() []key {
	return []key{
		{
			name: "warn_after", value: duration(&s.WarnAfter, time.Second, 30*24*time.Hour), def: "5m",
			help: "The age from which on a transaction, prepared transaction or replication slot that holds vacuum back is logged.",
		},
		{
			name: "terminate_after", value: duration(&s.TerminateAfter, time.Second, 30*24*time.Hour),
			help: "The age from which on a session whose transaction does so is ended; never when left out. Longer than warn_after.",
		},
		{
			name: "users", value: names(&s.Users),
			help: "Whose sessions may be ended; anybody's but superusers' when left out. A superuser's only when named here.",
		},
		{name: "applications", value: names(&s.Applications), help: "Of which applications (application_name); any when left out."},
	}
}

func (y *Retry) keys() []key {
	return []key{
		{
			name: "max_attempts", value: integer(&y.MaxAttempts, 1, 1_000_000), def: "10",
			help: "Refusals after which an event is buried. An outage is not one.",
		},
		{
			name: "initial", value: duration(&y.Initial, time.Millisecond, 24*time.Hour), def: "1s",
			help: "The wait after the first; not above max.",
		},
		{name: "max", value: duration(&y.Max, time.Millisecond, 24*time.Hour), def: "5m", help: "The longest wait."},
		{name: "multiplier", value: number(&y.Multiplier, 1, 1000), def: "2", help: "What the wait grows by each time."},
	}
}

// variant is the driver, and with redis the mode as well, once they are known.
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
		sidekiq = "redis sidekiq"
		asynq   = "redis asynq"
		nats    = "nats"
		http    = "http"
	)
	return []key{
		{name: "url", value: sinkURL{s}, needed: true, help: "The sink; its scheme says which kind it is. An http URL may hold `{topic}` and `{key}` in its path and query."},
		{
			name: "mode", of: []string{redis}, value: choice(&s.Redis.Mode, []string{"stream", "list", "publish", "sidekiq", "asynq"}), def: "stream",
			help: "XADD to a stream, RPUSH to a list, PUBLISH to a channel, or what Sidekiq or asynq runs. See [Sidekiq and asynq](sinks.md#sidekiq-and-asynq).",
		},
		{
			name: "stream", of: []string{stream}, value: redisKey(&s.Redis.Stream), def: "{topic}",
			help: "The stream's name, made of `{topic}` and `{key}`; it may have a hash tag.",
		},
		{name: "list", of: []string{list}, value: redisKey(&s.Redis.List), def: "{topic}", help: "The list's name, likewise."},
		{name: "channel", of: []string{publish}, value: channel(&s.Redis.Channel), def: "{topic}", help: "The channel's name, without hash tags."},
		{name: "queue", of: []string{sidekiq, asynq}, value: channel(&s.Redis.Queue), def: "default", help: "The queue, made of text, `{topic}` and `{key}`."},
		{name: "class", of: []string{sidekiq, asynq}, value: channel(&s.Redis.Class), def: "{topic}", help: "The class that runs an event, and with asynq the type of its task."},
		{
			name: "maxlen", of: []string{stream}, value: integer(&s.Redis.MaxLen, 1, 1_000_000_000_000),
			help: "About how many entries the stream is trimmed to; not trimmed when left out.",
		},
		{
			name: "dedupe_window", of: []string{stream, asynq}, value: duration(&s.Redis.DedupeWindow, time.Millisecond, 366*24*time.Hour), def: "1h",
			help: "How long a stream remembers a batch, and asynq a task, so that it adds nothing when sent again.",
		},
		{
			name: "wait_replicas", of: []string{stream, list, sidekiq, asynq}, value: integer(&s.Redis.WaitReplicas, 0, 1000), def: "0",
			help: "Replicas that must have a write before it counts.",
		},
		{
			name: "wait_timeout", of: []string{stream, list, sidekiq, asynq}, value: duration(&s.Redis.WaitTimeout, time.Millisecond, time.Hour), def: "1s",
			help: "How long to wait for them.",
		},
		{name: "subject", of: []string{nats}, value: subject(&s.NATS.Subject), def: "{topic}", help: "The subject, made of `{topic}` and `{key}`."},
		{name: "core", of: []string{nats}, value: boolean(&s.NATS.Core), def: "false", help: "Plain NATS, without JetStream and its acknowledgements."},
		{name: "credentials", of: []string{nats}, value: credential(&s.NATS.Credentials), help: "A .creds file, or its content from `${file:...}`."},
		{name: "nkey", of: []string{nats}, value: credential(&s.NATS.NKey), help: "A file with a user's nkey seed, or the seed; not together with credentials."},
		{name: "method", of: []string{http}, value: choice(&s.HTTP.Method, []string{"POST", "PUT", "PATCH"}), def: "POST", help: "The request's method."},
		{name: "headers", of: []string{http}, value: headers{&s.HTTP.Headers}, help: "Headers to add, with `{topic}` and `{key}` where wanted; they overrule the relay's own."},
		{
			name: "format", of: []string{nats, http}, value: sinkFormat{s},
			help: "http: `json` (the default), one JSON object; `ndjson`, one event a line; `array`, an array of events; `form`, fields of what `request` makes; " +
				"`cloudevents`, batched, and structured with `batch_size: 1`. nats: `payload` (the default), or `cloudevents`, its attributes in the headers (binary mode).",
		},
		{name: "gzip", of: []string{http}, value: boolean(&s.HTTP.Gzip), def: "false", help: "Compress the body."},
		{
			name: "timeout", of: []string{http}, value: duration(&s.HTTP.Timeout, time.Millisecond, time.Hour), def: "30s",
			help: "How long one request may take.",
		},
		{name: "tls", of: []string{http}, value: mapping{&s.HTTP.TLS}, help: "For https only."},
		{
			name: "request", of: []string{http}, value: request(&s.HTTP.Request),
			help: "A jq program that makes the body to send, of the body that would be sent without it. See [jq](http.md#request).",
		},
		{
			name: "results", of: []string{http}, value: results(&s.HTTP.Results),
			help: "A jq program that finds the events which did not succeed in the answer `{status, headers, body, events}`: an array of `{id | index, error, retry}`. See [Results](http.md#results).",
		},
		{name: "rate", of: []string{http}, value: optional{mapping{&httpRate{&s.HTTP}}}, help: "The most requests in a time."},
		{
			name: "max_in_flight", of: []string{http}, value: integer(&s.HTTP.MaxInFlight, 1, 10_000),
			help: "The most requests under way at once in this process; as many as `workers` when left out.",
		},
		{name: "bearer", of: []string{http}, value: secret(&s.HTTP.Bearer), help: "A token for `Authorization: Bearer`."},
		{name: "basic", of: []string{http}, value: optional{mapping{&s.HTTP.Basic}}, help: "A user and password for `Authorization: Basic`."},
		{name: "oauth2", of: []string{http}, value: optional{mapping{&s.HTTP.OAuth2}}, help: "Client credentials, for a token that is fetched and renewed."},
		{name: "sign", of: []string{http}, value: optional{mapping{&s.HTTP.Sign}}, help: "Standard Webhooks signatures."},
		{name: "proxy", of: []string{http}, value: proxyURL(&s.HTTP.Proxy), help: "A proxy's URL; HTTPS_PROXY, HTTP_PROXY and NO_PROXY decide when left out."},
		{
			name: "max_bytes", of: []string{http}, value: integer(&s.HTTP.MaxBytes, 1, 1_000_000_000_000),
			help: "The largest body the server takes, in bytes; what is larger is divided before it is sent.",
		},
		{
			name: "refused", of: []string{http}, value: statuses{&s.HTTP.Refused},
			help: "Statuses that refuse the batch, although they would be an outage else.",
		},
		{
			name: "unavailable", of: []string{http}, value: statuses{&s.HTTP.Unavailable},
			help: "Statuses that are an outage, although they would refuse the batch else.",
		},
	}
}

// httpRate is the section about an HTTP sink's rate.
type httpRate struct{ *HTTPSink }

func (h *httpRate) keys() []key {
	return []key{
		{name: "requests", value: integer(&h.Rate.Requests, 1, 1_000_000), needed: true, help: "How many requests may begin in that time."},
		{name: "per", value: duration(&h.Rate.Per, time.Millisecond, 24*time.Hour), def: "1s", help: "The time."},
		{
			name: "shared", value: boolean(&h.RateShared), def: "false",
			help: "The rate holds for all processes that run the pipeline together; they count in its database.",
		},
	}
}

func (b *Basic) keys() []key {
	return []key{
		{name: "user", value: text(&b.User, "a user's name", func(s string) bool { return s != "" }), needed: true, help: "The user."},
		{name: "password", value: secret(&b.Password), help: "The password."},
	}
}

func (o *OAuth2) keys() []key {
	return []key{
		{name: "token_url", value: tokenURL(&o.TokenURL), needed: true, help: "Where tokens are fetched."},
		{name: "client_id", value: text(&o.ClientID, "a client's id", func(s string) bool { return s != "" }), needed: true, help: "The client."},
		{name: "client_secret", value: secret(&o.ClientSecret), needed: true, help: "Its secret."},
		{name: "scopes", value: names(&o.Scopes), help: "What the token is to be good for."},
		{name: "audience", value: text(&o.Audience, "an audience", func(s string) bool { return s != "" }), help: "Whom the token is for, where the server wants to know."},
	}
}

func (s *Sign) keys() []key {
	return []key{{name: "secret", value: signingSecret(&s.Secret), needed: true, help: "`whsec_` and the key in base64, 24 to 64 bytes of it."}}
}

func (t *TLS) keys() []key {
	return []key{
		{name: "ca", value: path(&t.CA), help: "PEM certificates to trust instead of the system's."},
		{name: "cert", value: path(&t.Cert), help: "The client's own certificate, PEM; together with key."},
		{name: "key", value: path(&t.Key), help: "Its private key, PEM."},
		{name: "server_name", value: hostName(&t.ServerName), help: "The name to expect in the server's certificate; the URL's host when left out."},
		{name: "insecure_skip_verify", value: boolean(&t.InsecureSkipVerify), def: "false", help: "Accept any certificate: for tests."},
	}
}
