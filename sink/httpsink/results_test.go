package httpsink_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// respondWith starts a server that responds to each request in this way.
func respondWith(t *testing.T, status int, body string, headers ...string) (url string) {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Add(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		write(t, w, body)
	})
}

// describe says for each named event its index, whether it was rejected for good, and why.
func describe(t *testing.T, err error) (all []string) {
	t.Helper()
	some, ok := errors.AsType[*sink.BatchError](err)
	if !ok || errors.Is(err, sink.ErrUnavailable) {
		t.Fatalf("got %v, want a *sink.BatchError", err)
	}
	for _, e := range some.Events {
		fate := "again"
		if errors.Is(e.Err, sink.ErrPermanent) {
			fate = "for good"
		}
		if errors.Is(e.Err, sink.ErrUnavailable) {
			fate = "unavailable"
		}
		all = append(all, fmt.Sprintf("%d %s: %v", e.Index, fate, e.Err))
	}
	return all
}

func TestResults(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 10_000)
	for name, c := range map[string]struct {
		program string
		status  int
		body    string
		want    []string
	}{
		"by id": {
			`[.body.errors[] | {id: .context.id[0], error: .message, retry: (.code == "BUSY")}]`, 207,
			`{"errors":[{"message":"no such lead","context":{"id":["2"]}},{"message":"busy","code":"BUSY","context":{"id":["1"]}}]}`,
			[]string{"0 again: busy", "1 for good: no such lead"},
		},
		"by index": {
			`[.body | to_entries[] | select(.value.ErrorCode != 0) | {index: .key, error: .value.Message}]`, 200,
			`[{"ErrorCode":0},{"ErrorCode":406,"Message":"inactive\nrecipient\u0000"},{"ErrorCode":0}]`,
			[]string{"1 for good: inactive recipient"},
		},
		"by both, in any order, twice": {
			`[{id: "3", index: 2, error: "c"}, {index: 0, error: "a", retry: true}, {id: 3, error: "again"}]`, 200, "{}",
			[]string{"0 again: a", "2 for good: c"},
		},
		"for good and again": {
			`.body`, 200, `[{"index":0,"error":"a"},{"id":"1","error":"b","retry":true},{"index":2},{"index":0,"error":"c"}]`,
			[]string{"0 again: b", "2 for good: rejected without a reason (200 OK)"},
		},
		"again and for good":       {`.body`, 200, `[{"index":0,"error":"a","retry":true},{"index":0,"error":"b"}]`, []string{"0 again: a"}},
		"a number as id":           {`[{id: .body.id}]`, 200, `{"id": 2}`, []string{"1 for good: rejected without a reason (200 OK)"}},
		"an integer as 1.0":        {`[{index: 1.0, error: ""}]`, 200, "", []string{"1 for good: rejected without a reason (200 OK)"}},
		"error is an object":       {`[{index: 0, error: .body}]`, 207, `{"b":1.10,"a":[null]}`, []string{`0 for good: {"a":[null],"b":1.10}`}},
		"nulls":                    {`[{id: "1", index: null, error: null, retry: null}]`, 202, "", []string{"0 for good: rejected without a reason (202 Accepted)"}},
		"some of a 4xx, by status": {`[if .status == 400 then {index: 1, error: "no"} else empty end]`, 400, "", []string{"1 for good: no"}},
		"all":                      {`[.events[] | {id, error: .topic}]`, 400, "", []string{"0 for good: a", "1 for good: b", "2 for good: c"}},
		"a long reason":            {`[{index: 0, error: .body}]`, 200, long, []string{"0 for good: " + long[:4096] + "..."}},
		"headers and status": {
			`[{index: 0, error: "\(.status) \(.headers["x-a"]) \(.headers | has("X-A"))"}]`, 201, "", []string{"0 for good: 201 1, 2 false"},
		},
		"text":           {`[{index: 0, error: (.body | type)}]`, 200, "not JSON", []string{"0 for good: string"}},
		"two values":     {`[{index: 0, error: .body}]`, 200, "1 2", []string{"0 for good: 1 2"}},
		"nothing":        {`[{index: 0, error: (.body | tojson)}]`, 200, "", []string{`0 for good: ""`}},
		"digits":         {`[{index: 0, error: .body}]`, 200, "12345678901234567890.10", []string{"0 for good: 12345678901234567890.10"}},
		"what was sent":  {`[{index: 1, error: (.events | map(.topic) | add)}]`, 200, "", []string{"1 for good: abc"}},
		"not Unicode":    {`[{index: 0, error: .body.e}]`, 200, "{\"e\":\"a\xffb\"}", []string{"0 for good: a b"}},
		"the key itself": {`[{index: 0, error: .body}]`, 200, `"your key s3cretKey is old"`, []string{"0 for good: your key *** is old"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := respondWith(t, c.status, c.body, "X-A", "1", "x-a", "2")
			s := open(t, httpsink.Config{URL: url, Results: c.program, Headers: map[string]string{"X-Key": "s3cretKey"}})
			if diff := cmp.Diff(c.want, describe(t, s.Send(testContext(t), batch("a", "b", "c")))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestResults_Failures expects a plain outage: halves would be sent under other group_ids.
func TestResults_Failures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ program, body, want string }{
		"error":            {`error("odd")`, "", "results: error: odd"},
		"not JSON":         {`[.body.errors[] | {id}]`, "<html>", "expected an object but got: string (\"<html>\") (the body is not JSON)"},
		"none":             {`empty`, "", "the program made no result"},
		"several":          {`.body[]`, "[[],[]]", "the program made more than one result"},
		"no array":         {`.body`, `{"a":1}`, "the program makes an object; expected an array of {id or index, error, retry}"},
		"null":             {`.body.errors`, `{}`, "the program makes null; expected an array"},
		"no object":        {`.body`, `["17"]`, "result 0: it is a string; expected an object {id or index, error, retry}"},
		"neither":          {`.body`, `[{"index":0},{"error":"x"}]`, "result 1: it has neither id nor index"},
		"unknown id":       {`.body`, `[{"id":"17"}]`, `result 0: its id is "17"; expected the id of an event in the request`},
		"unknown number":   {`.body`, `[{"id":17}]`, `its id is 17; expected the id of an event in the request`},
		"no id":            {`.body`, `[{"id":["1"]}]`, `its id is an array; expected a string`},
		"out of range":     {`.body`, `[{"index":3}]`, "its index is 3; expected 0 to 2, for the request had 3 events"},
		"below":            {`.body`, `[{"index":-1}]`, "its index is -1; expected 0 to 2"},
		"far out":          {`.body`, `[{"index":1e400}]`, "its index is 1e400; expected"},
		"half":             {`.body`, `[{"index":0.5}]`, "its index is 0.5; expected an integer"},
		"no index":         {`.body`, `[{"index":"0"}]`, `its index is "0"; expected an integer`},
		"contradiction":    {`.body`, `[{"index":0,"id":"2"}]`, `its id "2" and its index 0 name two events; expected one`},
		"no boolean":       {`.body`, `[{"index":0,"retry":"yes"}]`, "its retry is a string; expected true or false"},
		"another key":      {`.body`, `[{"index":0,"retryable":true}]`, `it has the key "retryable"; expected id or index, error, retry`},
		"a good and a bad": {`.body`, `[{"index":0},{"index":17}]`, "result 1: its index is 17"},
		"long response":    {`.body`, `"` + strings.Repeat("x", 16<<20) + `"`, "the response is larger than 16 MiB"},
		"the key itself":   {`error(.body)`, `"s3cretKey"`, "results: error: ***"},
		"shows the body":   {`.results | .[]`, `{"why":"s3cretKey is no address"}`, `; the response is {"why":"*** is no address"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, status := range []int{200, 207, 400, 422} {
				s := open(t, httpsink.Config{
					URL: respondWith(t, status, c.body), Results: c.program, Headers: map[string]string{"X-Key": "s3cretKey"},
				})
				err := s.Send(testContext(t), batch("a", "b", "c"))
				expectMaybePoison(t, err, false)
				if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), fmt.Sprint(status)) || len(err.Error()) > 400 {
					t.Errorf("got %v, want one that says %q", err, c.want)
				}
				if len(c.body) > 1<<20 {
					return // once is enough
				}
			}
		})
	}
}

// TestPrograms_SecretInPreview has programs whose errors quote the first bytes of a value, which is a secret or holds one.
func TestPrograms_SecretInPreview(t *testing.T) {
	t.Parallel()
	const secret = "sk_live_9fQ7ZxLm2VbT4nRw8KcY1uHs6DgJ3pEa5XoN0iBvQrStUvWxYz"
	expect := func(err error) {
		t.Helper()
		if err == nil || strings.Contains(err.Error(), secret[:4]) || !strings.Contains(err.Error(), "***") {
			t.Errorf("got %v; want an error with ***", err)
		}
	}
	for _, program := range []string{
		`[.body.errors[]]`, `.body + 1`, `{(.body): 1} + .body`, `[.body] + {}`, `{a: .body} + []`, `.body | tonumber`, `.body | fromjson`, `.body | strptime("%Y")`,
		`.body | test(1)`, `error(.body)`, `error({body})`, `.body | halt_error`, `.body | ltrimstr(1) | implode`, `try .body[] catch error`,
		`try .body[] catch [{index: 0, error: .}]`, `[{index: 0, error: .body[:30]}]`, `[{index: 0, error: [.body]}]`, `[{index: .body}]`, `[{id: .body}]`,
		`.body as $b | [{index: 0, ($b): 1}]`, `.body | @base64d`,
	} {
		for _, body := range []string{secret, "Key " + secret + " is not allowed", `"K=` + secret + ` bad"`} {
			s := open(t, httpsink.Config{URL: respondWith(t, 200, body), Results: program, Bearer: secret})
			if expect(s.Send(testContext(t), batch("a"))); t.Failed() {
				t.Fatalf("%s of %s", program, body)
			}
		}
	}
	for _, program := range []string{`$secret.KEY + 1`, `[$secret.KEY] - .events[0]`, `$secret.KEY | fromjson`, `error($secret.KEY)`, `error($secret.KEY | @base64)`, `error("user:" + $secret.KEY | @base64)`} {
		s := open(t, httpsink.Config{URL: respondWith(t, 200, ""), Request: program, ProgramSecrets: map[string]string{"KEY": secret}})
		expect(s.Send(testContext(t), numbered()))
	}
}

func TestResults_TruncatedResponse(t *testing.T) {
	t.Parallel()
	url := respondWith(t, 200, "[]", "Content-Length", "1000")
	err := open(t, httpsink.Config{URL: url, Results: ".body"}).Send(testContext(t), batch("a"))
	expectMaybePoison(t, err, false)
	if !strings.Contains(err.Error(), "the response could not be read") {
		t.Errorf("got %v", err)
	}
}

// TestResults_StatusFirst expects an outage for every body. For other statuses the program decides, unless it
// finds nothing in a 4xx, or only some events without a look at the status: many APIs take nothing of such a request.
func TestResults_StatusFirst(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		200: "delivered", 204: "delivered", 400: "rejected", 409: "rejected", 413: "rejected", 422: "rejected",
		301: "outage", 401: "outage", 403: "outage", 404: "outage", 408: "outage", 429: "outage", 500: "outage", 503: "outage",
	} {
		for _, program := range []string{"[]", `[{index: 0, error: "one"}]`, `[{index: 0, error: ({status: "one"} | .status)}]`, `[.status as $s | {index: 0, error: "one"}]`} {
			url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(status)
			})
			err := open(t, httpsink.Config{URL: url, Results: program}).Send(testContext(t), batch("a", "b"))
			switch {
			case want == "outage":
				expectOutage(t, err)
				if timed, ok := errors.AsType[*sink.UnavailableError](err); status >= 400 && (!ok || timed.RetryAfter != 7*time.Second) {
					t.Errorf("%d: Retry-After is lost in %v", status, err)
				}
			case strings.Contains(program, "$s") || want == "delivered" && program != "[]":
				if diff := cmp.Diff([]string{"0 for good: one"}, describe(t, err)); diff != "" {
					t.Errorf("%d (-want +got):\n%s", status, diff)
				}
			case want == "delivered":
				testkit.NoError(t, err)
			default:
				if _, some := errors.AsType[*sink.BatchError](err); some || !errors.Is(err, sink.ErrPermanent) || errors.Is(err, sink.ErrTooLarge) != (status == 413) {
					t.Errorf("%d: got %v, want the batch refused as a whole", status, err)
				}
			}
		}
	}
	// An override.
	s := open(t, httpsink.Config{URL: respondWith(t, 503, ""), Results: `[select(.status == 503) | {index: 0}]`, Refused: []int{503}})
	expectRejected(t, s.Send(testContext(t), batch("a", "b")), 0)
}

// TestResults_RejectedEvents expects an index to count the events that were sent.
func TestResults_RejectedEvents(t *testing.T) {
	t.Parallel()
	for _, request := range []string{"", "[.events[].id]"} {
		s := open(t, httpsink.Config{
			URL: respondWith(t, 200, "[]"), Request: request, MaxBytes: 1000,
			Results: `[{index: 1, error: "\(.events | map(.id))"}]`,
		})
		b := batch("a", "a", "a", "a")
		b.Events[0].Headers = outbox.Headers("no")
		if request == "" {
			b.Events[2].Payload = []byte(`"` + strings.Repeat("x", 2000) + `"`) // larger than max_bytes
		} else {
			b.Events[2].Payload = []byte("{")
		}
		err := sendSplit(t, s, b)
		got := describe(t, err)
		if len(got) != 3 || got[2] != `3 for good: ["2","4"]` || !strings.HasPrefix(got[0], "0 for good: headers") || !strings.HasPrefix(got[1], "2 for good: its ") {
			t.Errorf("request %q: got %q", request, got)
		}
	}
}

func TestResults_UnavailableAddress(t *testing.T) {
	t.Parallel()
	err := open(t, httpsink.Config{URL: respondWith(t, 200, "") + "/{topic}", Results: `error("x")`}).Send(testContext(t), batch("a", "a"))
	expectOutage(t, err)
	if some, ok := errors.AsType[*sink.BatchError](err); !ok || len(some.Events) != 2 {
		t.Errorf("got %v, want an outage of the events' address", err)
	}
}

func TestResults_ExactlyNamedEvents(t *testing.T) {
	t.Parallel()
	type result struct {
		ID    string `json:"id,omitempty"`
		Index *int   `json:"index,omitempty"`
		Error string `json:"error,omitempty"`
		Retry bool   `json:"retry,omitempty"`
	}
	responses := make(chan []byte, 1)
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if _, err := w.Write(<-responses); err != nil {
			t.Error(err)
		}
	})
	s := open(t, httpsink.Config{URL: url, Results: ".body"})
	rapid.Check(t, func(r *rapid.T) {
		b := batch(make([]string, rapid.IntRange(1, 30).Draw(r, "events"))...)
		named := rapid.SliceOfDistinct(rapid.IntRange(0, len(b.Events)-1), rapid.ID[int]).Draw(r, "named")
		results := []result{}
		want := map[int]bool{}
		for _, i := range named {
			one := result{Retry: rapid.Bool().Draw(r, "retry"), Error: rapid.String().Draw(r, "error")}
			how := rapid.IntRange(0, 2).Draw(r, "how")
			if how != 0 {
				one.ID = b.Events[i].Identity()
			}
			if how != 1 {
				one.Index = &i
			}
			for range rapid.IntRange(1, 2).Draw(r, "times") {
				results = append(results, one)
			}
			want[i] = one.Retry
		}
		text, err := json.Marshal(results)
		if err != nil {
			r.Fatal(err)
		}
		responses <- text
		err = s.Send(t.Context(), b)
		got := map[int]bool{}
		if some, ok := errors.AsType[*sink.BatchError](err); ok {
			for at, e := range some.Events {
				if _, twice := got[e.Index]; twice || at > 0 && e.Index < some.Events[at-1].Index || e.Err.Error() == "" {
					r.Fatalf("the events are not in order, or without a reason: %v", some.Events)
				}
				got[e.Index] = !errors.Is(e.Err, sink.ErrPermanent)
			}
		} else if err != nil {
			r.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			r.Fatalf("%s (-want +got):\n%s", text, diff)
		}
	})
}
