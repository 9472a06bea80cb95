package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/testserver"
)

// Events without an e-mail address are not merged into one. Preview shows each, and each becomes its own
// dead letter.
func TestInit_HubSpotWithoutEmail(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	db.exec("CREATE TABLE signups (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text, group_id uuid)")
	var (
		mu   sync.Mutex
		sent = map[string]bool{}
	)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var batch struct {
			Inputs []struct{ ObjectWriteTraceID string }
		}
		if err := json.Unmarshal(readAll(t, r.Body), &batch); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, in := range batch.Inputs {
			sent[in.ObjectWriteTraceID] = true
		}
		fmt.Fprint(w, `{"status":"COMPLETE","results":[]}`)
	}))
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "relay.yaml")
	do(t, nil, "init", "--source", db.url, "--sink", server.URL+"/crm/v3/objects/contacts/batch/upsert", "--table", "signups", "-o", path).
		want(t, 0, "export HUBSPOT_TOKEN=...", "")
	env := append(initEnv(db.url, server.URL+"/crm/v3/objects/contacts/batch/upsert"), "HUBSPOT_TOKEN=s3cret-token")
	do(t, env, "migrate", "-c", path).want(t, 0, "applied", "")
	db.exec("INSERT INTO signups (email) VALUES ('ann@example.com'), (NULL), ('bob@example.com'), (NULL)")
	r := do(t, env, "preview", "-c", path, "-n", "4")
	r.want(t, 0, "4 events read", "")
	for _, want := range []string{
		`"id": "ann@example.com"`, `"id": "bob@example.com"`,
		"\nnot sent: event 2\nrequest of event 2: error: event 2 has no email", "\nnot sent: event 4\nrequest of event 4: error: event 4 has no email",
	} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q is not in\n%s", want, r.stdout)
		}
	}

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	hasty := strings.NewReplacer("initial: 1s", "initial: 100ms", "rate: {", "#rate: {").Replace(string(text))
	if err := os.WriteFile(path, []byte("admin: {listen: \"\"}\n"+hasty), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, env, "run", "-c", path)
	var dead []struct {
		ID    json.Number `json:"event_id"`
		Error string
	}
	testserver.Eventually(t, func() error {
		if err := json.Unmarshal([]byte(do(t, env, "dead", "list", "-c", path, "--json").stdout), &dead); err != nil {
			return err
		}
		if len(dead) < 2 {
			return fmt.Errorf("%d dead letters, want 2", len(dead))
		}
		return nil
	})
	for _, d := range dead {
		if id := d.ID.String(); id != "2" && id != "4" || !strings.Contains(d.Error, "event "+id+" has no email") {
			t.Errorf("a dead letter is %v", d)
		}
	}
	testserver.Eventually(t, func() error {
		mu.Lock()
		defer mu.Unlock()
		if !sent["1"] || !sent["3"] || sent["2"] || sent["4"] || len(dead) != 2 {
			return fmt.Errorf("HubSpot received %v, and %d events are dead", sent, len(dead))
		}
		return nil
	})
}

// For a known API, init writes the programs of the recipe, except for the differences below.
func TestInit_MatchesRecipes(t *testing.T) {
	t.Parallel()
	parsed := func(t *testing.T, path string) *config.Pipeline {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Parse(path, text, func(name string) (string, bool) {
			switch name {
			case "DATABASE_URL", "RELAY_SOURCE_URL":
				return "postgres://db/app", true
			case "SLACK_WEBHOOK_URL", "RELAY_SINK_URL":
				return "https://hooks.slack.com/services/x", true
			}
			if strings.HasSuffix(name, "_URL") || strings.HasSuffix(name, "_TIMEOUT") { // has a default
				return "", false
			}
			return "x", true
		})
		if err != nil {
			t.Fatal(err)
		}
		return &cfg.Pipelines[0]
	}
	type programs struct{ Request, Results string }
	for name, but := range map[string]struct {
		why     string
		request string
	}{
		"hubspot": {}, "postmark": {}, "elasticsearch": {}, "salesforce": {},
		"stripe": {
			why:     "the recipe names the fields of an invoice",
			request: "if .events[1] then error(\"Stripe accepts one object a request; expected batch_size: 1\") else .events[0] end\n  | .payload\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			made := parsed(t, filepath.Join("testdata", "init", "sink-"+name+".yaml"))
			recipe := parsed(t, filepath.Join("..", "..", "examples", "recipes", name, "relay.yaml"))
			want := programs{recipe.Sink.HTTP.Request, recipe.Sink.HTTP.Results}
			if but.why != "" {
				want.Request = but.request
			}
			if diff := cmp.Diff(want, programs{made.Sink.HTTP.Request, made.Sink.HTTP.Results}); diff != "" {
				t.Errorf("the programs differ:\n%s", diff)
			}
			if made.BatchSize != recipe.BatchSize || made.Sink.HTTP.Format != recipe.Sink.HTTP.Format || made.Sink.HTTP.Rate != recipe.Sink.HTTP.Rate ||
				made.Sink.HTTP.Gzip != recipe.Sink.HTTP.Gzip || made.Sink.HTTP.Method != recipe.Sink.HTTP.Method {
				t.Error("batch_size, format, rate, gzip or method differ")
			}
			if diff := cmp.Diff(recipe.Sink.HTTP.Unavailable, made.Sink.HTTP.Unavailable); diff != "" {
				t.Errorf("unavailable differs:\n%s", diff)
			}
		})
	}
	// Slack's recipe is a dead-letter hook, so its request differs.
	made := parsed(t, filepath.Join("testdata", "init", "sink-slack.yaml")).Sink.HTTP
	hook := parsed(t, filepath.Join("..", "..", "examples", "recipes", "slack", "relay.yaml")).DeadLetter.Hook.HTTP
	if made.Rate != hook.Rate || cmp.Diff(hook.Unavailable, made.Unavailable) != "" {
		t.Error("Slack's rate or unavailable differ")
	}
}
