package httpsink_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// TestPreview compares the preview with what Send then sends.
func TestPreview(t *testing.T) {
	t.Parallel()
	type sent struct {
		Line, Body string
		Header     http.Header
	}
	var got []sent
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		for _, name := range []string{"Accept-Encoding", "Content-Length"} {
			r.Header.Del(name)
		}
		got = append(got, sent{r.Method + " http://" + r.Host + r.RequestURI, string(body), r.Header})
	})
	s := open(t, httpsink.Config{
		URL: url + "/T0SECRETSECRET12/{topic}?wait=1&sig=s3cret1&for={key}", Method: http.MethodPut, Pipeline: "orders",
		Request: `{ids: [.events[].id], payloads: [.events[].payload]}`,
		Bearer:  "s3cret2",
		Headers: map[string]string{"X-Api-Key": "s3cret3", "X-Tenant": "{key}", "X-Mixed": "s3cret4-{key}", "Accept": "text/plain", "Notion-Version": "2022-06-28"},
		Sign:    []string{"whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("s3cret", 5)))},
	})
	key, evil := "k1", "a\nb"
	b := batch("a", "b", "a", "a")
	for i := range b.Events {
		b.Events[i].Key = &key
	}
	b.Events[3].Key = &evil
	shown, err := s.Preview(testContext(t), b)
	expectRejected(t, err, 3)
	if len(got) > 0 {
		t.Fatalf("a preview sent %v", got)
	}
	if text := fmt.Sprint(shown, err); strings.Contains(text, "s3cret") || strings.Contains(text, "SECRET") {
		t.Errorf("a secret shows in %s", text)
	}
	if len(shown) != 2 || !slices.Equal(shown[0].Events, []int{0, 2}) || !slices.Equal(shown[1].Events, []int{1}) {
		t.Fatalf("shown: %+v", shown)
	}
	for _, one := range shown {
		part := *b
		part.Events = nil
		for _, i := range one.Events {
			part.Events = append(part.Events, b.Events[i])
		}
		got = nil
		testkit.NoError(t, s.Send(testContext(t), &part))
		address, _ := s.AddressOf(&part.Events[0])
		line := "PUT " + url + "/***/{topic}?*** (" + address + ")"
		if one.Summary != line || string(one.Body) != got[0].Body {
			t.Errorf("shown\n%s\n%s\nsent\n%s\n%s", one.Summary, one.Body, line, got[0].Body)
		}
		var names []string
		for _, f := range one.Header {
			names = append(names, f.Name)
			value := got[0].Header.Get(f.Name)
			switch f.Name {
			case "Authorization":
				value = "Bearer ***"
			case "X-Api-Key", "X-Mixed", "Webhook-Signature":
				value = "***"
			case "Idempotency-Key", "Webhook-Id", "Webhook-Timestamp": // drawn for each part, and each time
				value = f.Value
			}
			if f.Value != value {
				t.Errorf("%s is shown as %q, want %q", f.Name, f.Value, value)
			}
		}
		if diff := cmp.Diff(slices.Sorted(maps.Keys(got[0].Header)), names); diff != "" {
			t.Errorf("headers (-sent +shown):\n%s", diff)
		}
	}
}

func TestPreview_SplitBatch(t *testing.T) {
	t.Parallel()
	s := open(t, httpsink.Config{URL: "http://127.0.0.1:1", Request: "[.events[].payload]", MaxBytes: 6, Gzip: true})
	b := batch("a", "a", "a", "a", "a")
	for i, payload := range []string{"1", "22", "3", `"too long"`, "5"} {
		b.Events[i].Payload = []byte(payload)
	}
	shown, err := s.Preview(testContext(t), b)
	expectRejected(t, err, 3)
	var bodies []string
	for _, one := range shown {
		bodies = append(bodies, fmt.Sprint(one.Events, " ", string(one.Body)))
	}
	if diff := cmp.Diff([]string{"[0 1] [1,22]", "[2] [3]", "[4] [5]"}, bodies); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPreview_FailingProgram(t *testing.T) {
	t.Parallel()
	s := open(t, httpsink.Config{URL: "http://127.0.0.1:1", Request: `error("no")`})
	if _, err := s.Preview(testContext(t), batch("a")); !errors.Is(err, sink.ErrUnavailable) || !strings.Contains(err.Error(), "request of event 1: error: no") {
		t.Errorf("got %v", err)
	}
}

func TestPreview_FetchesNoToken(t *testing.T) {
	t.Parallel()
	s := open(t, httpsink.Config{
		URL:    "http://127.0.0.1:1/",
		OAuth2: httpsink.OAuth2{TokenURL: "http://127.0.0.1:1/", ClientID: "c", ClientSecret: "s3cret"},
	})
	shown, err := s.Preview(testContext(t), batch("a"))
	testkit.NoError(t, err)
	at := slices.IndexFunc(shown[0].Header, func(f sink.Field) bool { return f.Name == "Authorization" })
	if at < 0 || shown[0].Header[at].Value != "Bearer ***" {
		t.Errorf("shown: %+v", shown[0].Header)
	}
}
