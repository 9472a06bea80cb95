package scaffold

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/outboxrelay/relay/internal/jq"
)

// namedSink is a sink as the file has it.
type namedSink struct {
	// name is "" for a single one.
	name     string
	variable Variable
	api      api
}

// sinks are the sinks of the file: at least one.
func (d *Draft) sinks() []namedSink {
	if d.Sinks == nil {
		return []namedSink{{variable: Variable{SinkVariable, "the URL of the sink", d.Sink}, api: findAPI(d.Sink)}}
	}
	var all []namedSink
	for _, url := range d.Sinks {
		one := namedSink{api: findAPI(url)}
		scheme, _, _ := strings.Cut(url, ":")
		base, _, _ := strings.Cut(strings.TrimPrefix(scheme, "tls+"), "+") // redis+sentinel
		base = strings.ToLower(cmp.Or(one.api.name, strings.NewReplacer("rediss", "redis", "https", "http").Replace(base)))
		one.name = base
		for n := 2; slices.ContainsFunc(all, func(s namedSink) bool { return s.name == one.name }); n++ {
			one.name = fmt.Sprintf("%s%d", base, n)
		}
		one.variable = Variable{"RELAY_" + strings.ToUpper(one.name) + "_URL", "the URL of the sink " + one.name, url}
		all = append(all, one)
	}
	return all
}

// writeSinks writes the batch size and the sinks.
func (d *Draft) writeSinks(w *writer) {
	all := d.sinks()
	size, why := 1000, "the maximum number of events in a batch"
	if known, because := d.batchSize(&all[0]); d.Sinks == nil && known != 0 {
		size, why = known, because
	}
	w.line(2, fmt.Sprintf("batch_size: %d   # %s", size, why))
	w.line(2, "workers: 4   # batches that this process sends at once")
	w.blank()
	if d.Sinks == nil {
		w.line(2, "sink:")
		w.line(3, "url: ${"+SinkVariable+"}")
		d.writeSink(w, 3, &all[0])
		return
	}
	w.comment(2, "Each sink gets the events whose topic matches, with retries, rate and dead letters of its own; docs/sinks.md explains it. "+
		"In match, `*` is one token between dots, and `#` one or more at the end. Without match a sink gets every event.")
	w.line(2, "sinks:")
	for i := range all {
		s := &all[i]
		w.line(3, "- name: "+s.name+"   # in metrics, logs and dead letters")
		w.line(4, "url: ${"+s.variable.Name+"}")
		w.line(4, "#match: [orders.*, invoices.#]")
		if size, why := d.batchSize(s); size != 0 {
			w.line(4, fmt.Sprintf("batch_size: %d   # %s", size, why))
		} else {
			w.line(4, "#batch_size: 100   # and workers, retry: by default the pipeline's")
		}
		d.writeSink(w, 4, s)
	}
}

// DefaultBatchSize is the number of events in a request to an API that init does not know.
const DefaultBatchSize = 100

// batchSize returns the number of events that the sink takes at once, and the reason; 0 if it takes as many as there are.
func (d *Draft) batchSize(s *namedSink) (size int, why string) {
	switch {
	case s.api.batch != 0:
		return s.api.batch, s.api.batchWhy
	case !strings.HasPrefix(s.variable.Value, "http"):
		return 0, ""
	}
	return cmp.Or(d.BatchSize, DefaultBatchSize), "events in a request; at most what the API accepts"
}

// NeedsBatchSize reports whether a sink is an API whose limit of events in a request is not known.
func (d *Draft) NeedsBatchSize() bool {
	return slices.ContainsFunc(d.sinks(), func(s namedSink) bool {
		return s.api.batch == 0 && strings.HasPrefix(s.variable.Value, "http")
	})
}

// TrustsStatus reports whether a request to an API that init does not know has several events. Without a results program, its status is the answer for all of them.
func (d *Draft) TrustsStatus() bool {
	return d.NeedsBatchSize() && cmp.Or(d.BatchSize, DefaultBatchSize) > 1
}

// writeSink writes the keys of a sink beside url.
func (d *Draft) writeSink(w *writer, level int, s *namedSink) {
	scheme, _, _ := strings.Cut(s.variable.Value, ":")
	switch {
	case s.api.name != "":
		w.comment(level, "For "+s.api.name+"; "+s.api.recipe+" explains it.")
		w.lines(level, s.api.text(d.hasUUIDs()))
	case strings.HasPrefix(scheme, "http"):
		w.lines(level, httpKeys)
	case strings.HasPrefix(scheme, "redis"):
		w.lines(level, redisKeys)
	case strings.HasSuffix(scheme, "nats"):
		w.lines(level, natsKeys)
	case strings.HasPrefix(scheme, "postgres"):
		w.comment(level, "Each event is a row, once. relay schema --inbox NAME prints the table of ?table=NAME; docs/sinks.md explains it.")
	default:
		w.comment(level, "One event a line, as JSON.")
	}
}

// ignored are the fields of the events that the sink's program for requests leaves out.
func (s *namedSink) ignored(uuids bool) (fields []string) {
	if s.api.text == nil {
		return nil
	}
	var keys struct {
		Request string `yaml:"request"`
	}
	if err := yaml.Unmarshal([]byte(s.api.text(uuids)), &keys); err != nil || keys.Request == "" {
		return nil
	}
	for _, field := range []string{"id", "topic", "key", "headers", "created_at"} {
		if jq.Ignores(keys.Request, field) {
			fields = append(fields, field)
		}
	}
	return fields
}

// hasUUIDs reports whether the ids of the events are uuids.
func (d *Draft) hasUUIDs() bool {
	t := d.Source.Table
	return t != nil && d.Source.IsCustom() && len(t.Key) == 1 && t.Column(t.Key[0]).Type == "uuid"
}

const redisKeys = `
# One stream entry for each event. A batch that is sent again within
# dedupe_window adds nothing.
stream: "{topic}"   # text, {topic} and {key}
#mode: stream   # or list, publish, sidekiq, asynq
#maxlen: 100000   # approximate number of entries to keep
#dedupe_window: 1h
`

const natsKeys = `
# JetStream: a stream must exist whose subjects include this one.
subject: "{topic}"   # text, {topic} and {key}
#core: false   # true: plain NATS, without acknowledgements
#format: payload   # or cloudevents
`

const httpKeys = `
# One request for each batch, with Idempotency-Key: <group_id>, and this body:
#   {"pipeline": "...", "group_id": "...", "events": [
#     {"id": "17", "topic": "...", "key": "...", "payload": {...},
#      "headers": {...}, "created_at": "..."}, ...]}
#format: json   # or ndjson, array, form, cloudevents, cloudevents-binary
# request is a jq program that makes another body from it:
#request: |
#  {records: [.events[] | .payload + {external_id: .id}]}
# Without results, the status decides: all events of a 200 count as delivered,
# even if its body lists errors, or is the HTML page of a login.
# results is a jq program that finds the rejected events in
# {status, headers, body, events}: an array of {id or index, error, retry}.
# An empty array after a 4xx rejects the whole batch, which is then divided
# until the bad event is alone. If the program fails, as this one on a page,
# no event is lost: all are sent again, until the answer or the program is
# right.
#results: |
#  if .status >= 400 or .body == "" then []
#  else [(.body.errors // [])[] | {index: .index, error: .message, retry: false}] end
#headers: {X-Tenant: "7"}
#bearer: ${API_TOKEN}   # or basic, oauth2, sign, tls: docs/http.md
#rate: {requests: 10, per: 1s}   # shared: true counts all processes together
#max_bytes: 5000000   # the largest body that the server accepts
timeout: 30s
# docs/recipes: HubSpot, Postmark, Elasticsearch, Stripe, Salesforce, Slack.
`
