package scaffold

import (
	"fmt"
	"strings"
)

// sink writes how many events go at once, and where to.
func (d *Draft) sink(w *writer) {
	a := known(d.Sink)
	if a.batch == 0 {
		a.batch, a.batchWhy = 1000, "the most events that go at once"
	}
	w.line(2, fmt.Sprintf("batch_size: %d   # %s", a.batch, a.batchWhy))
	w.line(2, "workers: 4   # batches that this process sends at once")
	w.blank()
	w.line(2, "sink:")
	w.line(3, "url: "+scalar(d.Sink.Text))
	scheme, _, _ := strings.Cut(d.Sink.Full, ":")
	switch {
	case a.name != "":
		w.comment(3, "What "+a.name+" wants and answers; see "+a.recipe+".")
		w.lines(3, a.text(d.uuids()))
	case strings.HasPrefix(scheme, "http"):
		w.lines(3, anAPI)
	case strings.HasPrefix(scheme, "redis"):
		w.lines(3, aRedis)
	case strings.HasSuffix(scheme, "nats"):
		w.lines(3, aNATS)
	default:
		w.comment(3, "One event a line, as JSON.")
	}
}

// uuids tells whether the events' ids are uuids.
func (d *Draft) uuids() bool {
	t := d.Source.Table
	return t != nil && d.Source.IsOwn() && len(t.Key) == 1 && t.Column(t.Key[0]).Type == "uuid"
}

const aRedis = `
# An entry of the stream for each event. A batch that is sent again within
# dedupe_window adds nothing.
stream: "{topic}"   # made of text, {topic} and {key}
#mode: stream   # or list, publish, sidekiq, asynq
#maxlen: 100000   # about how many entries the stream is trimmed to
#dedupe_window: 1h
`

const aNATS = `
# To JetStream: a stream has to be there whose subjects include this one.
subject: "{topic}"   # made of text, {topic} and {key}
#core: false   # true: plain NATS, without acknowledgements
#format: payload   # or cloudevents
`

const anAPI = `
# One request for each batch, with Idempotency-Key: <group_id>, and this body:
#   {"pipeline": "...", "group_id": "...", "events": [
#     {"id": "17", "topic": "...", "key": "...", "payload": {...},
#      "headers": {...}, "created_at": "..."}, ...]}
#format: json   # or ndjson, array, form, cloudevents
# request makes another body of it, in jq:
#request: |
#  {records: [.events[] | .payload + {external_id: .id}]}
# The status says whether the batch was taken. Where the answer says more,
# results finds the events that were not, in {status, headers, body, events}:
# an array of {id or index, error, retry}.
#results: |
#  [(.body.errors // [])[] | {index: .index, error: .message, retry: false}]
#headers: {X-Tenant: "7"}
#bearer: ${API_TOKEN}   # or basic, oauth2, sign, tls: docs/http.md
#rate: {requests: 10, per: 1s}   # shared: true counts for all processes
#max_bytes: 5000000   # the largest body that is taken
timeout: 30s
# For HubSpot, Postmark, Elasticsearch, Stripe, Salesforce, Slack: docs/recipes.
`
