package config

import (
	"fmt"
	"strings"
	"testing"
)

func TestWarnings(t *testing.T) {
	t.Parallel()
	const database = "source: {url: 'postgres://db.example/app?sslmode=verify-full'}"
	for yaml, want := range map[string]string{
		"source: {url: 'postgres://app:s3cret@db.example/app'}":                                                                                                                                                         "source.url has no sslmode that requires TLS",
		"source: {url: 'postgres://app:s3cret@db.example/app?sslmode=prefer'}":                                                                                                                                          "source.url has no sslmode that requires TLS",
		"source: {url: 'postgres:///app?host=db.example'}":                                                                                                                                                              "source.url has no sslmode that requires TLS",
		"source: {url: 'postgres://127.0.0.1,db.example/app?sslmode=disable'}":                                                                                                                                          "source.url has no sslmode that requires TLS",
		"source: {url: 'postgres://app:s3cret@127.0.0.1/app'}":                                                                                                                                                          "",
		"source: {url: 'postgres://[::1]/app'}":                                                                                                                                                                         "",
		"source: {url: 'postgres:///app?host=/run/postgresql'}":                                                                                                                                                         "",
		"source: {url: 'sqlite:///var/lib/app.db'}":                                                                                                                                                                     "",
		database + "\n  sink: {url: 'http://api.example/in', bearer: s3cret-token}":                                                                                                                                     "sink.url is http://, so credentials cross the network",
		database + "\n  sink: {url: 'http://u:s3cret@api.example/in'}":                                                                                                                                                  "sink.url is http://",
		database + "\n  sink: {url: 'http://api.example/in?key=s3cret-key'}":                                                                                                                                            "sink.url is http://",
		database + "\n  sink: {url: 'http://api.example/in', headers: {X-Key: s3cret}}":                                                                                                                                 "sink.url is http://",
		database + "\n  sink: {url: 'http://api.example/in', request: '{k: $secret.RELAY_ADMIN_TOKEN}'}":                                                                                                                "sink.url is http://",
		database + "\n  sink: {url: 'https://api.example/in', bearer: s3cret-token}":                                                                                                                                    "",
		database + "\n  sink: {url: 'http://127.0.0.1:80/in', bearer: s3cret-token}":                                                                                                                                    "",
		database + "\n  sink: {url: 'http://localhost/in', bearer: s3cret-token}":                                                                                                                                       "",
		database + "\n  sink: {url: 'https://api.example/in', request: '[.events[] | {id, data: .paylod}]'}":                                                                                                            "sink.request reads .paylod of an event, which has no such member: it is null (did you mean .payload?); expected id, topic, key, payload,",
		database + "\n  sink: {url: 'https://api.example/in', request: '[.event[] | {id, data: .payload}]'}":                                                                                                            "sink.request reads .event of the body, which has no such member: it is null (did you mean .events?); expected pipeline, group_id, events",
		database + "\n  sink: {url: 'https://api.example/in', results: '[.bodi.results[]? | {id, error}]'}":                                                                                                             "sink.results reads .bodi of the answer, which has no such member: it is null (did you mean .body?); expected status, headers, body, events",
		database + "\n  sink: {url: 'https://api.example/in', results: '[.body.bodi[]? | {id, error}]'}":                                                                                                                "",
		database + "\n  sink: {url: 'https://api.example/in', request: '[.events[] | {id, data: .payload.paylod}]'}":                                                                                                    "",
		database + "\n  sink: {url: 'https://api.example/in', request: '.events[0].payload'}":                                                                                                                           "sink.request sends one event of a batch of up to 1000 (batch_size), and all of them count as delivered; set batch_size: 1, or send all events",
		database + "\n  batch_size: auto\n  sink: {url: 'https://api.example/in', format: form, request: '.events[0].payload'}":                                                                                         "sink.request sends one event of a batch with batch_size: auto,",
		database + "\n  batch_size: 50\n  sink: {url: 'https://api.example/in', request: '{records: .events[:10]}'}":                                                                                                    "sink.request sends at most 10 events of a batch of up to 50 (batch_size), and all of them count as delivered; set batch_size: 10,",
		database + "\n  batch_size: 10\n  sink: {url: 'https://api.example/in', request: '{records: .events[:10]}'}":                                                                                                    "",
		database + "\n  batch_size: 1\n  sink: {url: 'https://api.example/in', request: '.events[0].payload'}":                                                                                                          "",
		database + "\n  batch_size: 1\n  sinks: [{name: a, url: 'https://api.example/in', request: '.events[0]', batch_size: 2}]":                                                                                       "a.request sends one event of a batch of up to 2",
		database + "\n  sink: {url: 'https://api.example/in', request: '[.events[1:][] | .payload]'}":                                                                                                                   "sink.request leaves out events of a batch by .[1:], and they count as delivered, too; send all events,",
		database + "\n  sink: {url: 'https://api.example/in', request: \".events[1:] # not sent: events\"}":                                                                                                             "",
		database + "\n  sink: {url: 'https://api.example/in', request: '[.events[] | select(.topic == \"a\") | .payload]'}":                                                                                             `sink.request sends only the events that pass select(.topic == "a"), and the others count as delivered, too; name those that are meant by match of a sink,`,
		database + "\n  sink: {url: 'https://api.example/in', request: '[.events[] | select(.topic==\"a\") | .payload]'}":                                                                                               `sink.request sends only the events that pass a condition, and the others count as delivered, too;`,
		database + "\n  sink: {url: 'https://api.example/in', request: \"[.events[] | select(.topic) | .payload] # not sent: events without topic\"}":                                                                   "",
		database + "\n  sink: {url: 'stdout:'}\n  dead_letter: {hook: {url: 'https://ops.example/dead', request: '{text: [.events[] | select(.topic)]}'}}":                                                              "",
		database + "\n  sink: {url: 'stdout:'}\n  dead_letter: {hook: {url: 'https://ops.example/dead', request: '{text: .events[0].id}'}}":                                                                             "",
		database + "\n  sink: {url: 'https://api.example/in', headers: {x-tenant: 'a {tenant_id}'}}":                                                                                                                    "sink.headers.x-tenant has {tenant_id}, which is no placeholder: it is sent as it is written; expected {topic} or {key};",
		database + "\n  sink: {url: 'https://api.example/in', headers: {X-Tenant: '{tenant_id}', X-Topic: '{topic}'}}":                                                                                                  "sink.headers.X-Tenant has {tenant_id}, which is no placeholder: it is sent as it is written; expected {topic} or {key};",
		database + "\n  sink: {url: 'https://api.example/in', headers: {X-Topic: '{Topic}'}}":                                                                                                                           "sink.headers.X-Topic has {Topic}",
		database + "\n  sink: {url: 'https://api.example/in', headers: {X-Topic: '{topic}-{key}', X-A: '{\"a\": {}}', X-B: '${RELAY_ADMIN_TOKEN}'}}":                                                                    "",
		database + "\n  sink: {url: 'redis://cache', stream: 'ev:{event_type}'}":                                                                                                                                        "sink.stream has {event_type}, which is no placeholder but a hash tag: it stands in the name as it is written; expected {topic} or {key};",
		database + "\n  sink: {url: 'redis://cache', mode: list, list: '{id}'}":                                                                                                                                         "sink.list has {id}",
		database + "\n  sink: {url: 'redis+cluster://a,b', stream: '{orders}:{topic}'}":                                                                                                                                 "",
		database + "\n  sink: {url: 'https://api.example/in', headers: {idempotency-key: '{key}'}}":                                                                                                                     `sink.headers.idempotency-key takes the place of the key that the relay makes for each batch, or differs from it: an API that honours it drops further requests with the same value, and their events count as delivered; remove it;`,
		database + "\n  sink: {url: 'https://api.example/in', bearer: \"$API_TOKEN\"}":                                                                                                                                  `sink.bearer is a variable without braces, and is sent as it is written; write ${NAME}`,
		database + "\n  sink: {url: 'https://api.example/in', bearer: \"${NO_TOKEN:-}\"}":                                                                                                                               `sink.bearer is empty, because its variable or file is: requests carry no credentials; set it`,
		database + "\n  sink: {url: 'https://api.example/in', bearer: \"a$API_TOKEN\"}":                                                                                                                                 ``,
		database + "\n  sink: {url: 'https://api.example/in', basic: {user: u, password: $API_PASSWORD}}":                                                                                                               `sink.basic.password is a variable without braces`,
		database + "\n  sink: {url: 'https://api.example/in', oauth2: {token_url: 'https://auth.example/token', client_id: relay, client_secret: $API_SECRET}}":                                                         `sink.oauth2.client_secret is a variable without braces`,
		database + "\n  sink: {url: 'https://api.example/in', headers: {Authorization: 'Bearer $API_TOKEN'}}":                                                                                                           `sink.headers.Authorization is a variable without braces`,
		database + "\n  sink: {url: 'https://api.example/in', headers: {Authorization: 'Bearer ${NO_TOKEN:-}'}}":                                                                                                        `sink.headers.Authorization is empty`,
		database + "\n  sink: {url: 'https://api.example/in', headers: {authorisation: 'Bearer s3cret'}}":                                                                                                               `sink.headers.authorisation looks like a misspelt Authorization, and its value is in clear text in the file; write Authorization: ${NAME}, or bearer`,
		database + "\n  sink: {url: 'https://api.example/in', headers: {Authorizaton: '${RELAY_ADMIN_TOKEN}'}}":                                                                                                         `sink.headers.Authorizaton looks like a misspelt Authorization; write Authorization, or bearer`,
		database + "\n  sink: {url: 'https://api.example/in', headers: {X-Api-Key: s3cret}}":                                                                                                                            `sink.headers.X-Api-Key looks like a secret, and its value is in clear text in the file; write ${NAME} or ${file:/path}`,
		database + "\n  sink: {url: 'https://api.example/in', headers: {Authorization: 'Bearer ${RELAY_ADMIN_TOKEN}', X-Api-Key: '${RELAY_ADMIN_TOKEN}', X-Key: s3cret, X-Tenant: '${NO_TENANT:-}', X-Token: '{key}'}}": ``,
		"source: {url: 'postgres://app:s3cret@db/app'}":                                                                                                                                                                 "",
		database + "\n  sink: {url: 'http://api.example/in'}":                                                                                                                                                           "",
		database + "\n  sink: {url: 'https://api.example/in', oauth2: {token_url: 'http://auth.example/token', client_id: relay, client_secret: s3cret}}":                                                               "sink.oauth2.token_url is http://",
		database + "\n  sink: {url: 'https://search.example/products/_bulk?pipeline=x', format: ndjson}":                                                                                                                "sink.url is a _bulk API",
		database + "\n  sink: {url: 'https://search.example/_bulk', results: '[]'}":                                                                                                                                     "",
		database + "\n  sink: {url: 'stdout:'}\n  dead_letter: {hook: {url: 'http://ops.example/dead', bearer: s3cret-token}}":                                                                                          "dead_letter.hook.url is http://",
	} {
		if !strings.Contains(yaml, "sink") {
			yaml += "\n  sink: {url: 'stdout:'}"
		}
		c, err := Parse("relay.yaml", []byte("pipelines:\n- name: p\n  "+yaml+"\n"), lookup)
		if err != nil {
			t.Errorf("%s: %v", yaml, err)
			continue
		}
		got := fmt.Sprint(c.Warnings())
		if len(c.Warnings()) > 1 || want == "" && got != "[]" || !strings.Contains(got, want) || !strings.Contains(c.Redactor()(got), want) || strings.Contains(got, "s3cret") {
			t.Errorf("%s: got %s; want %q", yaml, got, want)
		}
		if want != "" && !strings.HasPrefix(got, "[relay.yaml:") {
			t.Errorf("%s: %s has no place", yaml, got)
		}
	}
}
