package scaffold

import "strings"

// api is an API whose requests and responses are known. docs/recipes has the same programs, and their
// tests run them.
type api struct {
	name, recipe string
	// batch is the number of events in a request, batchWhy the reason.
	batch    int
	batchWhy string
	// wants is a property that every payload must have, or "".
	wants string
	// text is the rest of the sink's section; uuids reports whether the ids of the events are uuids.
	text      func(uuids bool) string
	variables []Variable
}

// findAPI finds the API by its host or, for proxies and private servers, by the path.
func findAPI(sink string) api {
	host, path := hostAndPath(sink)
	at := func(domain string) bool { return host == domain || strings.HasSuffix(host, "."+domain) }
	switch {
	case at("hubapi.com"), strings.HasPrefix(path, "/crm/v3/objects/") && strings.HasSuffix(path, "/batch/upsert"):
		return hubspot(path)
	case at("api.postmarkapp.com"), strings.HasSuffix(path, "/email/batch"):
		return postmark
	case strings.HasSuffix(path, "/_bulk"):
		return elasticsearch
	case at("api.stripe.com"):
		return stripe
	case at("salesforce.com"), strings.Contains(path, "/composite/sobjects"):
		return salesforce(host)
	case at("hooks.slack.com"):
		return slack
	}
	return api{}
}

func always(text string) func(bool) string { return func(bool) string { return text } }

// hubspot upserts objects by a property that is unique among them.
func hubspot(path string) api {
	property := "external_id"
	switch {
	case strings.Contains(path, "/contacts/"):
		property = "email"
	case strings.Contains(path, "/companies/"):
		property = "domain"
	}
	return api{
		name: "HubSpot", recipe: "docs/recipes/hubspot.md", batch: 100, batchWhy: "the limit of a HubSpot request", wants: property,
		variables: []Variable{{Name: "HUBSPOT_TOKEN", What: "the access token of a private app"}},
		text: always(strings.ReplaceAll(`
bearer: ${HUBSPOT_TOKEN}
rate: {requests: 10, per: 1s}   # shared: true counts all processes together
# A payload has the properties of one object, under HubSpot's names. EMAIL
# identifies the object: an event without it is rejected and becomes a dead
# letter. Of several events about one object, the last one is sent.
request: |
  {inputs: [.events | group_by(.payload.EMAIL // error("event \(.id) has no EMAIL"))[] | last
    | {id: .payload.EMAIL, idProperty: "EMAIL", properties: .payload, objectWriteTraceId: .id}]}
# 207 lists the rejected inputs. Other events about the same object are
# retried without it.
results: |
  [select(.status == 207) | .events as $events
    | .body.errors[] | .message as $why
    | (.context.objectWriteTraceId[]? // error("an error without objectWriteTraceId: \($why)")) as $id
    | (($events[] | select(.id == $id)) // error("an error about \($id), which was not sent: \($why)")) as $bad
    | $events[] | select(.payload.EMAIL == $bad.payload.EMAIL)
    | {id, error: $why, retry: (.id != $id)}]
`, "EMAIL", property)),
	}
}

var postmark = api{
	name: "Postmark", recipe: "docs/recipes/postmark.md", batch: 500, batchWhy: "the limit of a Postmark request",
	variables: []Variable{{Name: "POSTMARK_TOKEN", What: "the server's API token"}},
	text: always(`
headers: {Accept: application/json, X-Postmark-Server-Token: "${POSTMARK_TOKEN}"}
max_bytes: 50_000_000
# A payload is one e-mail: From, To, Subject, TextBody, ...
request: |
  [.events[].payload]
# The response has one entry for each e-mail, in order. A missing entry is an
# error. 100, 405 and 429 are temporary.
results: |
  [select(.status == 200) | .body as $answers | range(.events | length) as $index
    | $answers[$index] // error("no answer to e-mail \($index)") | select(.ErrorCode != 0)
    | {index: $index, error: "\(.ErrorCode) \(.Message)", retry: (.ErrorCode | IN(100, 405, 429))}]
`),
}

var elasticsearch = api{
	name: "Elasticsearch's or OpenSearch's bulk API", recipe: "docs/recipes/elasticsearch.md",
	batch: 1000, batchWhy: "the maximum number of events in a batch",
	variables: []Variable{{Name: "ELASTIC_API_KEY", What: "an API key, encoded"}},
	text: func(uuids bool) string {
		// The newest version of a document wins, in any order of arrival. A uuid is not a version.
		version := `, version: (.id | tonumber), version_type: "external_gte"`
		if uuids {
			version = ""
		}
		return strings.ReplaceAll(`
headers: {Authorization: "ApiKey ${ELASTIC_API_KEY}"}
format: ndjson
gzip: true
max_bytes: 10_000_000
# The topic is the index, the key is the document's id.
request: |
  [.events[] | {index: {_index: .topic, _id: .keyVERSION}}, .payload]
# The response has one entry for each document, in order. A missing entry is an
# error. 409: a newer version exists.
results: |
  [select(.status == 200) | .body.items as $answers | range(.events | length) as $index
    | $answers[$index].index // error("no answer to document \($index)")
    | select(.status >= 300 and .status != 409)
    | {index: $index, error: "\(.error.type): \(.error.reason)", retry: (.status == 429 or .status >= 500)}]
`, "VERSION", version)
	},
}

var stripe = api{
	name: "Stripe", recipe: "docs/recipes/stripe.md", batch: 1, batchWhy: "Stripe accepts one object a request",
	variables: []Variable{{Name: "STRIPE_SECRET_KEY", What: "a secret or restricted key"}},
	text: always(`
bearer: ${STRIPE_SECRET_KEY}
headers: {Stripe-Version: "2024-06-20"}
format: form
timeout: 80s
rate: {requests: 80, per: 1s}
unavailable: [409, 424]   # retried with the same Idempotency-Key
# A payload has the fields of the object.
request: |
  if .events[1] then error("Stripe accepts one object a request; expected batch_size: 1") else .events[0] end
    | .payload
results: |
  [select(.status >= 300) | .body.error
    | {index: 0, error: "\(.code // .type): \(.message)", retry: false}]
`),
}

func salesforce(host string) api {
	if host == "" || !strings.Contains(host, "salesforce") {
		host = "MyDomain.my.salesforce.com"
	}
	return api{
		name: "Salesforce", recipe: "docs/recipes/salesforce.md", batch: 200, batchWhy: "the limit of a Salesforce request",
		variables: []Variable{
			{Name: "SALESFORCE_CLIENT_ID", What: "the connected app's consumer key"},
			{Name: "SALESFORCE_CLIENT_SECRET", What: "the connected app's consumer secret"},
		},
		text: always(`
method: PATCH   # upsert by the external id that ends the URL: .../composite/sobjects/Lead/Relay_Event__c
oauth2:
  token_url: https://` + host + `/services/oauth2/token
  client_id: ${SALESFORCE_CLIENT_ID}
  client_secret: ${SALESFORCE_CLIENT_SECRET}
# The topic is the object's type, a payload has its fields.
request: |
  {allOrNone: false,
   records: [.events[] | {attributes: {type: .topic}, Relay_Event__c: .id} + .payload]}
# The response has one entry for each record, in order. A missing entry is an
# error.
results: |
  [select(.status == 200) | .body as $answers | range(.events | length) as $index
    | $answers[$index] // error("no answer to record \($index)") | select(.success | not)
    | {index: $index, error: (.errors | map("\(.statusCode): \(.message)") | join("; ")),
       retry: any(.errors[]; .statusCode | IN("UNABLE_TO_LOCK_ROW", "QUERY_TIMEOUT", "REQUEST_RUNNING_TOO_LONG"))}]
`),
	}
}

var slack = api{
	name: "Slack", recipe: "docs/recipes/slack.md", batch: 20, batchWhy: "as many as fit in a readable message",
	text: always(`
rate: {requests: 1, per: 1s}
unavailable: [410]
request: |
  def escape: gsub("&"; "&amp;") | gsub("<"; "&lt;") | gsub(">"; "&gt;");
  {text: ([.events[] | "• *\(.topic | escape)* \(.payload | tojson | escape)"] | join("\n"))}
`),
}
