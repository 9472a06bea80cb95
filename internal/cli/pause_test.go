package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A relay that runs sends nothing while its pipeline is paused, and everything when it is resumed.
func TestPause(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	var accepted atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			accepted.Add(1)
		}
	}))
	t.Cleanup(api.Close)
	path := write(t, onePipeline("orders", db.url, api.URL))
	do(t, nil, "migrate", "-c", path).want(t, 0, "orders: ", "")
	r := start(t, nil, "run", "-c", path)
	sent := func(n int64) {
		t.Helper()
		wait(t, time.Minute, func() error {
			if got := accepted.Load(); got < n {
				return fmt.Errorf("%d requests", got)
			}
			return nil
		})
	}
	db.insert(1)
	sent(1)
	do(t, nil, "pause", "-c", path, "--reason", "it moves").want(t, 0, "orders: paused: running relays notice it within five seconds; relay resume ends the pause\n", "")
	do(t, nil, "pause", "-c", path).want(t, 0, "orders: was paused before\n", "")
	do(t, nil, "pause", "crm", "-c", path).want(t, 1, "", `orders: no sink of table public.outbox_events is "crm"; there is none`)
	r.waitForLog("paused: nothing is claimed or sent until relay resume")
	for _, command := range []string{"status", "doctor"} {
		text := do(t, nil, command, "-c", path).stdout
		for _, want := range []string{"paused for ", ": it moves", "relay resume --pipeline orders -c " + path} {
			if !strings.Contains(strings.Join(strings.Fields(text), " "), want) {
				t.Errorf("%s does not say %q: %s", command, want, text)
			}
		}
	}
	do(t, nil, "pause", "-c", path, "--reason", "two\nlines").want(t, 2, "", "--reason: the reason has a line break")
	db.insert(1)
	do(t, nil, "resume", "-c", path).want(t, 0, "orders: resumed\n", "")
	do(t, nil, "resume", "-y", "-c", path).want(t, 0, "orders: was not paused\n", "")
	sent(2)
	r.signal(os.Interrupt)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
}

// The sink that is named belongs to one pipeline.
func TestPause_NamesASink(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	sinks := func(name, table string, sinks ...string) string {
		text := fmt.Sprintf("  - name: %s\n    source: {url: %q, table: %s}\n    sinks:\n", name, db.url, table)
		for _, s := range sinks {
			text += fmt.Sprintf("      - {name: %s, url: \"http://127.0.0.1:1/%s/%s\"}\n", s, name, s)
		}
		return text
	}
	path := write(t, "admin: {listen: \"\"}\npipelines:\n"+sinks("orders", "outbox_events", "crm", "cache")+sinks("users", "user_events", "crm", "mail"))
	for args, want := range map[[2]string]string{
		{"pause", "crm"}:   `2 pipelines have a sink "crm"; expected --pipeline orders or --pipeline users`,
		{"resume", "post"}: `no sink is "post"; expected crm or cache or mail, or name the pipeline with --pipeline`,
	} {
		do(t, nil, args[0], args[1], "-c", path).want(t, 2, "", want)
	}
	do(t, nil, "pause", "a", "b", "-c", path).want(t, 2, "", "2 names are given; expected at most that of one sink")
}

var pausedBy = regexp.MustCompile(`paused for .*? by [^ ]*?([:.] )`)

// Resume says what else keeps events from being sent, with the command that resumes it.
func TestResume_StillPaused(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, func(t *testing.T, db *database) {
		url, away := api(t)
		away.Store(false)
		path := write(t, fmt.Sprintf(`
admin: {listen: ""}
pipelines:
  - name: shop
    source: {url: %q}
    sinks:
      - {name: crm, url: %q}
      - {name: mail, url: %q}
`, db.url, url, url+"/mail"))
		r := start(t, nil, "run", "-c", path)
		db.exec("INSERT INTO outbox_events (topic, payload) VALUES ('t', '{}')")
		drained(t, db)
		r.signal(os.Interrupt)
		r.exit()
		act := func(command string, args ...string) result {
			t.Helper()
			r := do(t, nil, append([]string{command, "-c", path}, args...)...)
			r.stdout = pausedBy.ReplaceAllString(r.stdout, "paused$1")
			return r
		}
		act("pause", "crm", "--reason", "it moves").want(t, 0, "shop, sink crm: paused", "")
		const crm = "\nshop: sink crm is paused: it moves. > relay resume crm --pipeline shop -c "
		act("resume").want(t, 0, "shop: was not paused"+crm+path+"\n", "")
		act("pause").want(t, 0, "shop: paused", "")
		act("resume", "mail").want(t, 0, "shop, sink mail: was not paused\nshop: the pipeline is paused. > relay resume --pipeline shop -c "+path+"\n", "")
		act("resume").want(t, 0, "shop: resumed"+crm+path+"\n", "")
		act("resume", "crm").want(t, 0, "shop, sink crm: resumed\n", "")
		act("resume").want(t, 0, "shop: was not paused\n", "")
	})
}
