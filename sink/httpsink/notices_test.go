package httpsink_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

var clock = regexp.MustCompile(`\d\d:\d\d:\d\d`)

// Answers that decide what happens to events although they look wrong are noticed for an hour.
// TestNotices_Preview: an answer that somebody tries is not the sink's.
func TestNotices_Preview(t *testing.T) {
	t.Parallel()
	s := open(t, httpsink.Config{URL: "http://127.0.0.1:9", Pipeline: "orders"})
	for _, a := range []sink.Answer{
		{Status: http.StatusUnprocessableEntity, Header: http.Header{}},
		{Status: http.StatusOK, Header: http.Header{"Content-Type": {"text/html"}}, Body: []byte("<html>")},
		{Status: http.StatusOK, Header: http.Header{}, Body: []byte(`{"errors": [1]}`)},
	} {
		_ = s.PreviewAnswer(testContext(t), batch("a", "b"), a) // what it means is TestPreviewAnswer's
		if got := s.Notices(); got != nil {
			t.Errorf("after a tried answer with %d the notices are %v", a.Status, got)
		}
	}
}

// texts joins notices. Those of events that count as delivered are to be kept.
func texts(notices []sink.Notice) string {
	var all []string
	for _, n := range notices {
		if n.Settled != strings.Contains(n.Text, "The events count as delivered") {
			return "wrong Settled: " + n.Text
		}
		all = append(all, n.Text)
	}
	return strings.Join(all, "|")
}

func TestNotices(t *testing.T) {
	t.Parallel()
	const (
		page   = "answers 200 with text/html: is the URL right? The events count as delivered: 1 so far, first that with id 1 at TIME UTC; see docs/http.md#pages"
		halved = "answered 422 within the last 5 minutes, and no results program says which events failed: the relay halves the batch, and sends its good events again; see docs/http.md#results"
	)
	noJSON := strings.Replace(page, "text/html", "application/json and a body that is not JSON", 1)
	const multi = "answers 207 Multi-Status, which says what became of each part and which no results program reads. The events count as delivered: 2 so far, first that with id 1 at TIME UTC; see docs/http.md#success-with-errors"
	failed := func(what string, events int) string {
		return fmt.Sprintf("answers 200 with %s in the body, which no results program reads. The events count as delivered: %d so far, first that with id 1 at TIME UTC; see docs/http.md#success-with-errors", what, events)
	}
	type answer struct {
		status     int
		kind, body string
	}
	login := answer{200, "text/html; charset=utf-8", "\n<!DOCTYPE html><form>"}
	for name, c := range map[string]struct {
		answers []answer
		events  int
		results string
		want    string
	}{
		"a page":                    {[]answer{login}, 1, "", page},
		"a page and then JSON":      {[]answer{login, {200, "application/json", "{}"}}, 1, "", page},
		"a page and then nothing":   {[]answer{login, {204, "", ""}}, 1, "", page},
		"text that is called HTML":  {[]answer{{200, "text/html", "OK"}}, 1, "", ""},
		"nothing called HTML":       {[]answer{{200, "text/html", ""}}, 1, "", ""},
		"a page called JSON":        {[]answer{{200, "application/json", "<html>"}}, 1, "", noJSON},
		"half of a JSON":            {[]answer{{200, "application/json", `{"a": `}}, 1, "", noJSON},
		"text called JSON":          {[]answer{{200, "application/problem+json", "OK"}}, 1, "", strings.Replace(noJSON, "application/json", "application/problem+json", 1)},
		"JSON":                      {[]answer{{200, "application/json", " "}, {200, "application/json", "{} [1]\n"}, {200, "text/plain", "OK"}, {200, "application/json", `["` + strings.Repeat("no", 100_000) + `"]`}}, 1, "", ""},
		"errors and no JSON":        {[]answer{{200, "application/json", `{"errors": [1]} x`}}, 1, "", failed(`"errors"`, 1)},
		"called JSON, of an outage": {[]answer{{503, "application/json", "<html>"}}, 1, "", ""},
		"a page of an outage":       {[]answer{{503, "text/html", "<html>"}}, 1, "", ""},
		"422":                       {[]answer{{422, "text/html", "<html>"}}, 2, "", halved},
		"422 and then 200":          {[]answer{{422, "", ""}, {200, "", ""}}, 2, "", halved},
		"422 to one event":          {[]answer{{422, "", ""}}, 1, "", ""},
		"400":                       {[]answer{{400, "", ""}}, 2, "", ""},
		"both":                      {[]answer{{422, "", ""}, login}, 2, "", strings.Replace(page, ": 1 so", ": 2 so", 1) + "|" + halved},
		"errors":                    {[]answer{{200, "application/json", `{"took": {"errors": [1]}, "errors": [{"index": 0}]}`}}, 3, "", failed(`"errors"`, 3)},
		"errors twice":              {[]answer{{200, "", `{"errors": true}`}, {200, "", "{}"}, {200, "", `{"rejected": {"a": 1}}`}}, 2, "", failed(`"rejected"`, 4)},
		"failed":                    {[]answer{{200, "", `{"failed": 2}`}}, 2, "", failed(`"failed"`, 2)},
		"failures":                  {[]answer{{200, "", `{"failures": "bad"}`}}, 2, "", failed(`"failures"`, 2)},
		"no success":                {[]answer{{200, "", ` {"success": false}`}}, 1, "", failed(`"success": false`, 1)},
		"not ok":                    {[]answer{{200, "", `{"ok":false}`}}, 1, "", failed(`"ok": false`, 1)},
		"long errors":               {[]answer{{200, "", `{"errors": [` + strings.Repeat(`"no",`, 100_000) + `""]}`}}, 2, "", failed(`"errors"`, 2)},
		"no errors":                 {[]answer{{200, "", `{"errors": [], "failed": 0, "failures": {}, "rejected": null, "success": true, "ok": "false", "x": [{"errors": 1}]}`}}, 2, "", ""},
		"no errors either":          {[]answer{{200, "", `{"errors": "", "failed": false, "rejected": [ ]}`}}, 2, "", ""},
		"no object":                 {[]answer{{200, "", `[[{"errors": [1]}], "error", 1]`}, {200, "", `"errors"`}, {200, "", "OK"}, {200, "", `{"errors": `}, {200, "", ""}}, 2, "", ""},
		"an error":                  {[]answer{{200, "", `{"error": {"code": 1, "message": "bad"}}`}}, 2, "", failed(`"error"`, 2)},
		"a status of error":         {[]answer{{200, "", `{"status": "error", "message": "invalid token"}`}}, 2, "", failed(`"status": "error"`, 2)},
		"a status of FAILED":        {[]answer{{200, "", `{"status": "FAILED"}`}}, 2, "", failed(`"status": "FAILED"`, 2)},
		"a status of fail":          {[]answer{{200, "", `{"status": "fail", "data": {"title": "required"}}`}}, 2, "", failed(`"status": "fail"`, 2)},
		"a result of error":         {[]answer{{200, "", `{"result": "error", "code": 17}`}}, 2, "", failed(`"result": "error"`, 2)},
		"errors in data":            {[]answer{{200, "", `{"data": {"id": 1, "errors": [{"id": "7"}]}, "ok": true}`}}, 2, "", failed(`"errors" in "data"`, 2)},
		"errors in a result":        {[]answer{{200, "", `{"result": {"Errors": {"name": "bad"}}}`}}, 2, "", failed(`"Errors" in "result"`, 2)},
		"errors after data":         {[]answer{{200, "", `{"data": {"errors": [], "error": "kept", "x": {"errors": [1]}}, "result": 7, "errors": [1]}`}}, 2, "", failed(`"errors"`, 2)},
		"data without errors":       {[]answer{{200, "", `{"data": {"errors": [], "error": "kept", "x": {"errors": [1]}}, "result": "ok"}`}, {200, "", `{"data": [{"errors": [1]}], "result": {"status": "error"}}`}}, 2, "", ""},
		"has errors":                {[]answer{{200, "", `{"hasErrors": true}`}}, 2, "", failed(`"hasErrors": true`, 2)},
		"a list with a code":        {[]answer{{200, "", `[1, {"ErrorCode": 0, "a": [{}]}, {"ErrorCode": 300}]`}}, 2, "", failed(`an element's "ErrorCode"`, 2)},
		"a list with an error":      {[]answer{{200, "", `[{"id": 1}, {"id": 2, "error": "no"}, `}}, 2, "", failed(`an element's "error"`, 2)},
		"207":                       {[]answer{{207, "", `{"results": [{"id": 1, "status": 422}]}`}}, 2, "", multi},
		"207 with errors":           {[]answer{{207, "", `{"errors": [1]}`}}, 2, "", strings.Replace(failed(`"errors"`, 2), "200", "207", 1)},
		"207 with results":          {[]answer{{207, "", `{"errors": [1]}`}}, 2, "[]", ""},
		"no error":                  {[]answer{{200, "", `{"error": null, "errors": []}`}, {200, "", `{"error": false, "status": "ok"}`}, {200, "", `{"error": "", "hasErrors": false, "status": 500}`}, {200, "", `{"error": 0}`}}, 2, "", ""},
		"a list without errors":     {[]answer{{200, "", `[{"error": null, "errors": [], "error_code": "0", "status": "failed", "x": {"error": 1}}, 7, [{"error": 1}]]`}, {200, "", `[]`}}, 2, "", ""},
		"errors of a refusal":       {[]answer{{400, "", `{"errors": [1]}`}, {503, "", `{"ok": false}`}}, 2, "", ""},
		"errors with results":       {[]answer{{200, "", `{"errors": [1]}`}}, 2, "[]", ""},
		"with results":              {[]answer{{422, "", "{}"}, {200, "text/html", "{}"}}, 2, "[]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := 0
			url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Type"] = []string{c.answers[n].kind}
				w.WriteHeader(c.answers[n].status)
				_, _ = w.Write([]byte(c.answers[n].body))
				n++
			})
			s := open(t, httpsink.Config{URL: url, Results: c.results})
			if got := s.Notices(); got != nil {
				t.Errorf("before any answer: %v", got)
			}
			for range c.answers {
				_ = s.Send(testContext(t), batch(strings.Split("a a a", " ")[:c.events]...)) // the notices count
			}
			if got := clock.ReplaceAllString(texts(s.Notices()), "TIME"); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
