package httpsink_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/sink/httpsink"
)

// TestPath_Traversal has keys that lead to another path where a proxy or a server decodes the path before it
// resolves the dots. They are refused, and the others arrive.
func TestPath_Traversal(t *testing.T) {
	t.Parallel()
	var paths []string
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) { paths = append(paths, r.URL.EscapedPath()) })
	s := open(t, httpsink.Config{URL: url + "/v1/contacts/{key}/notes/"})
	for _, key := range []string{
		"..", ".", "../../admin", `..\..`, `..\admin`, "x/..", "x/../y", "%2e%2e/admin", "%2E%2E%2Fadmin", "..%2fadmin", "..%5cadmin", "%252e%252e%252fadmin",
		"..;/admin", "", "./x", "a/./b", "%2e%2e",
	} {
		b := batch("t")
		b.Events[0].Key = &key
		err := s.Send(testContext(t), b)
		expectRejected(t, err, 0)
		if !strings.Contains(err.Error(), "another path") {
			t.Errorf("%q: got %v", key, err)
		}
		if _, ok := s.AddressOf(&b.Events[0]); ok {
			t.Errorf("%q has an address", key)
		}
	}
	if len(paths) > 0 {
		t.Errorf("requests were sent to %q", paths)
	}
	for key, want := range map[string]string{
		"a/b": "a%2Fb", "a..b": "a..b", "...": "...", "..a/b..": "..a%2Fb..", "a b": "a%20b", "100%": "100%25", "%zz": "%25zz", "v1.2": "v1.2", "é;x": "%C3%A9%3Bx",
	} {
		paths = nil
		b := batch("t")
		b.Events[0].Key = &key
		if err := s.Send(testContext(t), b); err != nil || len(paths) != 1 || paths[0] != "/v1/contacts/"+want+"/notes/" {
			t.Errorf("%q: got %v at %q", key, err, paths)
		}
	}
	// The template's own empty segments stay.
	double := open(t, httpsink.Config{URL: url + "//in/{topic}//"})
	if err := double.Send(testContext(t), batch("t")); err != nil {
		t.Error(err)
	}
	empty := open(t, httpsink.Config{URL: url + "/in/{key}"})
	key, b := "", batch("t")
	b.Events[0].Key = &key
	expectRejected(t, empty.Send(testContext(t), b), 0)
	// In a query nothing leads anywhere.
	query := open(t, httpsink.Config{URL: url + "/in?k={key}"})
	key = "../.."
	if err := query.Send(testContext(t), b); err != nil {
		t.Error(err)
	}
}
