package cli

import (
	"strings"
	"testing"
)

const answeredEvents = `{"pipeline": "orders", "group_id": "x", "events": [
  {"id": "17", "topic": "orders", "key": "a", "payload": {"n": 1}, "headers": {"h": "1"}, "created_at": "2026-01-02T03:04:05.123456Z"},
  {"id": "18", "topic": "orders", "payload": 2, "created_at": "2026-01-02T03:04:05.123456Z"},
  {"id": "0198c0de-0000-7000-8000-000000000001", "topic": "orders", "payload_base64": "AAE=", "created_at": "2026-01-02T03:04:05.123456Z"}]}`

// An answer is tried without a database and without the API.
func TestPreview_Answer(t *testing.T) {
	t.Parallel()
	config := func(program string) string {
		return write(t, "pipelines:\n- name: orders\n  source: {url: '"+unreachable+"'}\n  sink:\n    url: http://127.0.0.1:1/v1?key=s3cret-path\n    headers: {X-Key: s3cret-1}\n    results: '"+program+"'\n")
	}
	events := write(t, answeredEvents)
	each := config(`[.body.results[] | {index, error: (.error + .id), retry: (.retry // false)}]`)
	partial := write(t, `{"results": [{"index": 1, "error": "email is not valid"}, {"index": 2, "error": "busy", "retry": true}]}`)
	r := do(t, nil, "preview", "-c", each, "--answer", partial, "--status", "207", "--events-file", events)
	r.want(t, 0, `3 events answered with 207 Multi-Status; nothing was claimed or sent.

event 17  delivered
event 18  rejected for good: email is not valid
event 0198c0de-0000-7000-8000-000000000001  rejected, sent again: busy
`, "")

	problem := write(t, `{"error": "email is not a valid address, s3cret-1"}`)
	r = do(t, nil, "preview", "-c", each, "--answer", problem, "--status", "422", "--events-file", events)
	r.want(t, 1, "A program fails, so nobody knows what was accepted.", "")
	r.want(t, 1, "422 Unprocessable Entity: results: ", "")
	r.want(t, 1, "The answer's body:\n{\n  \"error\": \"email is not a valid address, ***\"\n}\n", "")
	if strings.Contains(r.stdout, "s3cret") {
		t.Errorf("a secret is shown:\n%s", r.stdout)
	}

	byHeader := config(`[{index: 0, error: .headers["x-why"]}]`)
	do(t, nil, "preview", "-c", byHeader, "--answer", problem, "--header", "X-Why: so", "--events-file", events).want(t, 0, "event 17  rejected for good: so\nevent 18  delivered\n", "")
	misspelt := config("[.bodi.results[]? | {index, error}]")
	do(t, nil, "preview", "-c", misspelt, "--answer", partial, "--events-file", events).want(t, 0,
		"\nwarning: the results program reads .bodi of the answer, which has no such member: it is null (did you mean .body?)\nexpected status, headers, body, events\n", "")
	none := config("[]")
	do(t, nil, "preview", "-c", none, "--answer", problem, "--status", "400", "--events-file", events).want(t, 0, "The batch is rejected as a whole. It is halved until each rejected event is alone:\n", "")
	do(t, nil, "preview", "-c", none, "--answer", problem, "--status", "503", "--events-file", events).want(t, 0, "The events wait, and are sent again: an outage.\n", "")
	do(t, nil, "preview", "-c", none, "--answer", problem).want(t, 1, "", "relay: orders: ") // the database is unavailable
}

// The next events of the buffer are answered, and stay there.
func TestPreview_AnswerToBuffer(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, onePipeline("orders", db.url, "http://127.0.0.1:1/"))
	answer := write(t, `{}`)
	do(t, nil, "preview", "-c", path, "--answer", answer).want(t, 1, "", "the buffer has no events that are not claimed yet; expected --events-file FILE")
	db.insert(2)
	do(t, nil, "preview", "-c", path, "--answer", answer).want(t, 0, "event 1  delivered\nevent 2  delivered\n", "")
	if db.count("SELECT count(*) FROM outbox_events WHERE group_id IS NULL") != 2 {
		t.Error("preview changed the buffer")
	}
}

func TestPreview_AnswerUsage(t *testing.T) {
	t.Parallel()
	path := write(t, onePipeline("orders", unreachable, "http://127.0.0.1:1/"))
	answer, bad := write(t, "{}"), write(t, `{"events": []}`)
	for args, says := range map[string]string{
		"--status 422":                                    "--status is used without --answer; expected --answer FILE",
		"--events-file " + bad:                            `it has no events; expected {"events": [...]}, or one envelope a line`,
		"--answer /nowhere":                               "--answer: open /nowhere",
		"--answer " + answer + " --status 100":            "--status is 100; expected 200 to 599",
		"--answer " + answer + " --header Name":           `--header is "Name"; expected 'Name: value'`,
		"--answer " + answer + " --events-file " + bad:    `it has no events; expected {"events": [...]}, or one envelope a line`,
		"--answer " + answer + " --events-file " + answer: `an event's id is ""; expected a number or a uuid`,
		"--answer " + answer + " --sink crm":              `--sink is "crm"; no selected pipeline has a sink of this name`,
	} {
		do(t, nil, append([]string{"preview", "-c", path}, strings.Fields(args)...)...).want(t, 2, "", says)
	}
	stdout := write(t, onePipeline("orders", unreachable, "stdout:"))
	do(t, nil, "preview", "-c", stdout, "--answer", answer).want(t, 1, "", "--answer is for http sinks")
}
