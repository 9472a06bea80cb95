package scaffold

import (
	"fmt"
	"strings"
)

// writeSink writes the batch size and the sink.
func (d *Draft) writeSink(w *writer) {
	a := findAPI(d.Sink)
	if a.batch == 0 {
		a.batch, a.batchWhy = 1000, "the maximum number of events in a batch"
	}
	w.line(2, fmt.Sprintf("batch_size: %d   # %s", a.batch, a.batchWhy))
	w.line(2, "workers: 4   # batches that this process sends at once")
	w.blank()
	w.line(2, "sink:")
	w.line(3, "url: ${"+SinkVariable+"}")
	scheme, _, _ := strings.Cut(d.Sink, ":")
	switch {
	case a.name != "":
		w.comment(3, "For "+a.name+"; "+a.recipe+" explains it.")
		w.lines(3, a.text(d.hasUUIDs()))
	case strings.HasPrefix(scheme, "http"):
		w.lines(3, httpKeys)
	case strings.HasPrefix(scheme, "redis"):
		w.lines(3, redisKeys)
	case strings.HasSuffix(scheme, "nats"):
		w.lines(3, natsKeys)
	default:
		w.comment(3, "One event a line, as JSON.")
	}
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
#format: json   # or ndjson, array, form, cloudevents
# request is a jq program that makes another body from it:
#request: |
#  {records: [.events[] | .payload + {external_id: .id}]}
# The status says whether the batch was accepted. If the response says more,
# results is a jq program that finds the rejected events in
# {status, headers, body, events}: an array of {id or index, error, retry}.
#results: |
#  [(.body.errors // [])[] | {index: .index, error: .message, retry: false}]
#headers: {X-Tenant: "7"}
#bearer: ${API_TOKEN}   # or basic, oauth2, sign, tls: docs/http.md
#rate: {requests: 10, per: 1s}   # shared: true counts all processes together
#max_bytes: 5000000   # the largest body that the server accepts
timeout: 30s
# docs/recipes: HubSpot, Postmark, Elasticsearch, Stripe, Salesforce, Slack.
`
