package scaffold

import (
	"strings"
)

// api is an API whose requests and answers are known. The programs are those of
// docs/recipes, which are run against a server like it.
type api struct {
	name, recipe string
	// batch is how many events go in one request, and why.
	batch    int
	batchWhy string
	// wants is what a payload has to have; "" where that is up to the user.
	wants string
	// text is the rest of the sink's section; uuids: the events' ids are uuids.
	text      func(uuids bool) string
	variables []Variable
}

// known finds the API by its host or, for proxies and servers of one's own, by the path.
func known(u URL) api {
	host, path := hostAndPath(u.Full)
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
		name: "HubSpot", recipe: "docs/recipes/hubspot.md", batch: 100, batchWhy: "what HubSpot takes in one request", wants: property,
		variables: []Variable{{Name: "HUBSPOT_TOKEN", What: "the access token of a private app"}},
		text: always(strings.ReplaceAll(`
bearer: ${HUBSPOT_TOKEN}
rate: {requests: 10, per: 1s}   # shared: true counts for all processes
# A payload holds the properties of one object, as HubSpot calls them, and EMAIL
# is what it is found by: an event without one is refused, and becomes a dead
# letter. Of several events about one object the last is sent.
request: |
  {inputs: [.events | group_by(.payload.EMAIL // error("event \(.id) has no EMAIL"))[] | last
    | {id: .payload.EMAIL, idProperty: "EMAIL", properties: .payload, objectWriteTraceId: .id}]}
# 207 says which inputs were refused. Others about the same object are tried
# again without it.
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
	name: "Postmark", recipe: "docs/recipes/postmark.md", batch: 500, batchWhy: "what Postmark takes in one request",
	variables: []Variable{{Name: "POSTMARK_TOKEN", What: "the server's API token"}},
	text: always(`
headers: {Accept: application/json, X-Postmark-Server-Token: "${POSTMARK_TOKEN}"}
max_bytes: 50_000_000
# A payload is one e-mail: From, To, Subject, TextBody, ...
request: |
  [.events[].payload]
# The answer has one entry an e-mail, in order; one that is missing is no success.
# 100, 405 and 429 pass by.
results: |
  [select(.status == 200) | .body as $answers | range(.events | length) as $index
    | $answers[$index] // error("no answer to e-mail \($index)") | select(.ErrorCode != 0)
    | {index: $index, error: "\(.ErrorCode) \(.Message)", retry: (.ErrorCode | IN(100, 405, 429))}]
`),
}

var elasticsearch = api{
	name: "Elasticsearch's or OpenSearch's bulk API", recipe: "docs/recipes/elasticsearch.md",
	batch: 1000, batchWhy: "the most events that go at once",
	variables: []Variable{{Name: "ELASTIC_API_KEY", What: "an API key, encoded"}},
	text: func(uuids bool) string {
		// The newest version of a document wins, whatever comes last. A uuid is none.
		version := `, version: (.id | tonumber), version_type: "external_gte"`
		if uuids {
			version = ""
		}
		return strings.ReplaceAll(`
headers: {Authorization: "ApiKey ${ELASTIC_API_KEY}"}
format: ndjson
gzip: true
max_bytes: 10_000_000
# The topic is the index, the key the document's id.
request: |
  [.events[] | {index: {_index: .topic, _id: .keyVERSION}}, .payload]
# The answer has one entry a document, in order; one that is missing is no success.
# 409: a newer version is there already.
results: |
  [select(.status == 200) | .body.items as $answers | range(.events | length) as $index
    | $answers[$index].index // error("no answer to document \($index)")
    | select(.status >= 300 and .status != 409)
    | {index: $index, error: "\(.error.type): \(.error.reason)", retry: (.status == 429 or .status >= 500)}]
`, "VERSION", version)
	},
}

var stripe = api{
	name: "Stripe", recipe: "docs/recipes/stripe.md", batch: 1, batchWhy: "Stripe takes one object a request",
	variables: []Variable{{Name: "STRIPE_SECRET_KEY", What: "a secret or restricted key"}},
	text: always(`
bearer: ${STRIPE_SECRET_KEY}
headers: {Stripe-Version: "2024-06-20"}
format: form
timeout: 80s
rate: {requests: 80, per: 1s}
unavailable: [409, 424]   # to be tried again with the same Idempotency-Key
# A payload holds the fields of the object.
request: |
  if .events[1] then error("Stripe takes one object a request: batch_size: 1 was expected") else .events[0] end
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
		name: "Salesforce", recipe: "docs/recipes/salesforce.md", batch: 200, batchWhy: "what Salesforce takes in one request",
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
# The topic is the object's type, and a payload holds its fields.
request: |
  {allOrNone: false,
   records: [.events[] | {attributes: {type: .topic}, Relay_Event__c: .id} + .payload]}
# The answer has one entry a row, in order; one that is missing is no success.
results: |
  [select(.status == 200) | .body as $answers | range(.events | length) as $index
    | $answers[$index] // error("no answer to record \($index)") | select(.success | not)
    | {index: $index, error: (.errors | map("\(.statusCode): \(.message)") | join("; ")),
       retry: any(.errors[]; .statusCode | IN("UNABLE_TO_LOCK_ROW", "QUERY_TIMEOUT", "REQUEST_RUNNING_TOO_LONG"))}]
`),
	}
}

var slack = api{
	name: "Slack", recipe: "docs/recipes/slack.md", batch: 20, batchWhy: "as many as one reads in one post",
	text: always(`
rate: {requests: 1, per: 1s}
unavailable: [410]
request: |
  def escape: gsub("&"; "&amp;") | gsub("<"; "&lt;") | gsub(">"; "&gt;");
  {text: ([.events[] | "• *\(.topic | escape)* \(.payload | tojson | escape)"] | join("\n"))}
`),
}
