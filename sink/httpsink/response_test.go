package httpsink

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

func kind(err error) string {
	_, timed := errors.AsType[*sink.UnavailableError](err)
	kind := "delivered"
	switch {
	case errors.Is(err, sink.ErrMaybePoison) && errors.Is(err, sink.ErrUnavailable):
		kind = "maybe poison"
	case errors.Is(err, sink.ErrNotAccepted) && errors.Is(err, sink.ErrUnavailable):
		kind = "not accepted"
	case errors.Is(err, sink.ErrAskedToWait) && errors.Is(err, sink.ErrUnavailable):
		kind = "asked"
	case errors.Is(err, sink.ErrUnavailable):
		kind = "outage"
	case errors.Is(err, sink.ErrPermanent):
		kind = "rejected"
	case err != nil:
		kind = err.Error()
	}
	if timed {
		kind += " for a time"
	}
	return kind
}

func TestClassifyStatus(t *testing.T) {
	t.Parallel()
	kinds := map[string][]int{
		"delivered":    {200, 201, 202, 204, 207, 299},
		"outage":       {300, 301, 302, 303, 304},
		"asked":        {408, 425, 429},
		"not accepted": {307, 308, 401, 403, 404, 405, 407, 410, 421},
		"maybe poison": {500, 501, 502, 503, 504, 507, 599, 600, 999},
		"rejected":     {400, 402, 406, 409, 411, 412, 413, 414, 415, 416, 417, 418, 422, 423, 424, 426, 428, 431, 451, 499},
	}
	for want, all := range kinds {
		for _, status := range all {
			if got := kind(response{status: status}.classifyStatus(Config{})); got != want {
				t.Errorf("%d: got %s, want %s", status, got, want)
			}
			timed := map[string]string{"outage": "outage", "asked": "asked", "not accepted": "asked", "maybe poison": "maybe poison"}[want]
			if timed == "" {
				continue
			}
			timed += " for a time"
			if got := kind(response{status: status, retryAfter: time.Second}.classifyStatus(Config{})); got != timed {
				t.Errorf("%d with Retry-After: got %s, want %s", status, got, timed)
			}
		}
	}
}

func TestClassifyStatus_Overrides(t *testing.T) {
	t.Parallel()
	o := Config{Refused: []int{404, 503, 301}, Unavailable: []int{422, 500, 599, 100, 410, 429}}
	for status, want := range map[int]string{
		404: "rejected", 503: "rejected", 301: "rejected",
		422: "outage", 500: "outage", 599: "outage", 100: "outage", 410: "outage", 429: "outage",
		403: "not accepted", 405: "not accepted", 421: "not accepted", 423: "rejected", 501: "maybe poison", 504: "maybe poison", 598: "maybe poison", 200: "delivered",
	} {
		if got := kind(response{status: status}.classifyStatus(o)); got != want {
			t.Errorf("%d: got %s, want %s", status, got, want)
		}
	}
	if got := kind(response{status: 422, retryAfter: time.Second}.classifyStatus(o)); got != "outage for a time" {
		t.Errorf("422 with Retry-After: got %s, want an outage for a time", got)
	}
	if got := kind(response{status: 503, retryAfter: time.Second}.classifyStatus(o)); got != "rejected" {
		t.Errorf("503 with Retry-After: got %s, want rejected", got)
	}
}

// TestClassify_Conflict: a 409 to a batch that the server may be at is an outage after which nobody knows what was accepted.
func TestClassify_Conflict(t *testing.T) {
	t.Parallel()
	first, again := &buffer.Batch{FirstSend: true}, &buffer.Batch{MaybeSent: true}
	conflict, later := response{status: http.StatusConflict}, response{status: http.StatusConflict, retryAfter: time.Second}
	for name, c := range map[string]struct {
		answer response
		batch  *buffer.Batch
		config Config
		want   string
		unsure bool // of what was accepted
	}{
		"first":                  {conflict, first, Config{}, "rejected", false},
		"again":                  {conflict, again, Config{}, "maybe poison", true},
		"again, with a pause":    {later, again, Config{}, "maybe poison for a time", true},
		"again, refused":         {conflict, again, Config{Refused: []int{409}}, "rejected", false},
		"again, unavailable":     {conflict, again, Config{Unavailable: []int{409}}, "outage", false},
		"again, another refusal": {response{status: 422}, again, Config{}, "rejected", false},
	} {
		err := c.answer.classify(c.config, c.batch)
		if got, unsure := kind(err), errors.Is(err, sink.ErrMaybeAccepted); got != c.want || unsure != c.unsure {
			t.Errorf("%s: got %s, unsure %v; want %s, %v", name, got, unsure, c.want, c.unsure)
		}
	}
}

// TestClassifyStatus_Credentials expects an outage that only the user can end to say what to check.
func TestClassifyStatus_Credentials(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		401: "401 Unauthorized (check the sink's credentials; the events wait): no such key",
		403: "403 Forbidden (check the sink's credentials; the events wait): no such key",
		407: "407 Proxy Authentication Required (check the proxy's user and password; the events wait): no such key",
		404: "404 Not Found (check the sink's URL; the events wait): no such key",
		405: "405 Method Not Allowed (check the sink's URL; the events wait): no such key",
		410: "410 Gone (check the sink's URL; the events wait): no such key",
	} {
		a := response{status: status, quote: "no such key"}
		if err := a.classifyStatus(Config{}); !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if err := a.classifyStatus(Config{}); errors.Is(err, sink.ErrAccess) != (status == 401 || status == 403 || status == 407) || !errors.Is(err, sink.ErrUnavailable) {
			t.Errorf("%d: sink.ErrAccess is found in the error: %v", status, errors.Is(err, sink.ErrAccess))
		}
		if err := a.classifyStatus(Config{Refused: []int{status}}); strings.Contains(err.Error(), "wait") {
			t.Errorf("a rejection has the error %v; its events do not wait", err)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		retryAfter, date string
		want             time.Duration
	}{
		{"", "", 0},
		{"0", "", 0},
		{"120", "", 2 * time.Minute},
		{"-1", "", 0},
		{"1.5", "", 1500 * time.Millisecond},
		{"soon", "", 0},
		{"86401", "", maxRetryAfter},
		{"99999999999999999999999999", "", maxRetryAfter},
		{"Fri, 02 Jan 2026 03:05:05 GMT", "", time.Minute},
		{"Fri, 02 Jan 2026 03:05:05 GMT", "Fri, 02 Jan 2026 03:05:00 GMT", 5 * time.Second}, // by the server's clock
		{"Friday, 02-Jan-26 03:05:05 GMT", "nonsense", time.Minute},
		{"Fri, 02 Jan 2026 03:04:00 GMT", "", 0},
		{"Fri, 02 Jan 2096 03:04:00 GMT", "", maxRetryAfter},
	} {
		h := http.Header{}
		h.Set("Retry-After", c.retryAfter)
		if c.date != "" {
			h.Set("Date", c.date)
		}
		if got := retryAfter(h, now); got != c.want {
			t.Errorf("Retry-After %q, Date %q: got %v, want %v", c.retryAfter, c.date, got, c.want)
		}
	}
}

// FuzzRedactor expects a quote to be one short line without secrets.
func FuzzRedactor(f *testing.F) {
	const secret, token = "s3cr3t/+p%", "t0ken!x"
	to, err := parseURL("http://app:s3cr3t%2F+p%25@h/?key=" + token)
	if err != nil {
		f.Fatal(err)
	}
	r := newRedactor(to, map[string]string{"Authorization": "Bearer b3arer-value", "X": "123"})
	f.Add([]byte("wrong password "+secret+" for you"), false)
	f.Add([]byte(strings.Repeat("x", 195)+secret), false)
	f.Add([]byte(strings.Repeat(token, 100)+"t0ken"), true)
	f.Add([]byte("\x00\n\t\xff 123 b3arer-value s3cr3t%2F%2Bp%25"), false)
	f.Add([]byte(strings.Repeat("ü", 150)), false)
	f.Fuzz(func(t *testing.T, text []byte, cut bool) {
		got := r.quote(text, cut)
		if len(got) > maxQuote+3 || !utf8.ValidString(got) || strings.ContainsFunc(got, func(c rune) bool { return !unicode.IsPrint(c) }) {
			t.Errorf("%q is quoted as %q", text, got)
		}
		for _, s := range []string{secret, token, "b3arer-value", "s3cr3t%2F%2Bp%25"} {
			if strings.Contains(got, s) {
				t.Errorf("%q is quoted as %q, with a secret", text, got)
			}
		}
	})
}

func TestRedactor_Quote(t *testing.T) {
	t.Parallel()
	to, err := parseURL("http://s3cr3t@h/")
	if err != nil {
		t.Fatal(err)
	}
	r := newRedactor(to, map[string]string{
		"Authorization": "Bearer b3arer", "accept": "application/json", "Content-Type": "application/vnd.api+json", "X-Accept": "cust0m", "Cookie": "c00kie",
	})
	for text, want := range map[string]string{
		"": "",
		"  {\"error\":\r\n\t\"no such index\"}\n":             `{"error": "no such index"}`,
		"password s3cr3t, Bearer b3arer b3arer":               "password ***, *** ***",
		"basic czNjcjN0Og==":                                  "basic ***",
		"415: application/json, not application/vnd.api+json": "415: application/json, not application/vnd.api+json",
		"got cust0m, c00kie":                                  "got ***, ***",
		strings.Repeat("é", 101):                              strings.Repeat("é", 100) + "...",
		"x" + strings.Repeat("é", 101):                        "x" + strings.Repeat("é", 99) + "...",
	} {
		if got := r.quote([]byte(text), false); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if got := r.quote([]byte("your password is s3cr"), true); strings.Contains(got, "s3c") {
		t.Errorf("half a secret shows: %q", got)
	}
}
