package main

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testserver"
)

var update = flag.Bool("update", false, "write what init writes to testdata")

// What init writes passes check, and after what it says is to be done first, the
// commands that it names see and deliver an event.
func TestInitToDelivery(t *testing.T) {
	t.Parallel()
	for _, try := range drafts {
		t.Run(try.name, func(t *testing.T) {
			t.Parallel()
			db := newYours(t, strings.HasPrefix(try.name, "sqlite"))
			db.exec(try.tables)
			path := filepath.Join(t.TempDir(), "relay.yaml")
			wrote := do(t, nil, append([]string{"init", "--source", db.url, "--sink", "stdout:", "-o", path}, try.args...)...)
			wrote.want(t, 0, path+" is written: from ", "")
			golden(t, try.name, db, path)
			if asked := strings.Contains(wrote.stdout, "CREATE INDEX"); asked != (try.name == "odd") {
				t.Error("a table that is named by its bare name needs no index, one of another schema does")
			}
			if adds := strings.Contains(wrote.stdout, " ADD COLUMN seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE;\n"); adds != (try.name == "uuids-alone" || try.name == "debezium") {
				t.Error("a uuid alone is what a column that grows is proposed for")
			}
			do(t, db.env, "check", "-c", path).want(t, 0, "ok  ", "")

			for _, step := range steps(wrote.stdout) {
				db.exec(step)
			}
			do(t, db.env, "migrate", "-c", path).want(t, 0, ": applied ", "")
			do(t, db.env, "preview", "-c", path).want(t, 0, "The buffer has no events", "")
			db.exec(try.insert)
			do(t, db.env, "preview", "-c", path).want(t, 0, "1 event read; nothing was claimed or sent.\n", "")

			quiet(t, path)
			r := start(t, db.env, "run", "-c", path)
			testserver.Eventually(t, func() error {
				if out := r.stdout.String(); !strings.Contains(out, try.arrives) {
					return fmt.Errorf("what arrived is %q, %q was expected", out, try.arrives)
				}
				return nil
			})
			r.signal(syscall.SIGTERM)
			if code := r.exit(); code != 0 {
				t.Errorf("exit status %d", code)
			}
		})
	}
}

// golden compares what was written with testdata, the server's place and the file's
// apart.
func golden(t *testing.T, name string, db *yours, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "secret-") || strings.Contains(string(text), "s3cret") {
		t.Error("a secret is in the file")
	}
	_, place, _ := strings.Cut(db.url, "@")
	if place == "" {
		place = strings.TrimPrefix(db.url, "sqlite:///")
	}
	got := strings.NewReplacer(place, "db/app", path, "relay.yaml").Replace(string(text))
	want := filepath.Join("testdata", "init", name+".yaml")
	if *update {
		if err := os.WriteFile(want, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	expected, err := os.ReadFile(want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(expected), got); diff != "" {
		t.Errorf("%s (go test ./cmd/relay -run Init -update writes it):\n%s", want, diff)
	}
}

var statement = regexp.MustCompile(`(?m)^  ((?:ALTER|CREATE|GRANT) .*;)$`)

// steps are what init says is to be done in the database.
func steps(said string) (all []string) {
	for _, m := range statement.FindAllStringSubmatch(said, -1) {
		all = append(all, m[1])
	}
	return all
}

// quiet takes the admin endpoint off, whose port may be taken.
func quiet(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append([]byte("admin: {listen: \"\"}\n"), text...), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The sinks that are known by their URL, and those of which no more is known: what is
// written passes check, and names no secret.
func TestInitSinks(t *testing.T) {
	t.Parallel()
	db := newYours(t, false)
	db.exec(activities)
	for name, sink := range map[string]string{
		"hubspot":       "https://api.hubapi.com/crm/v3/objects/contacts/batch/upsert",
		"companies":     "https://api.hubapi.com/crm/v3/objects/companies/batch/upsert",
		"postmark":      "https://api.postmarkapp.com/email/batch",
		"elasticsearch": "https://elastic:s3cret-9@search.example:9200/_bulk",
		"stripe":        "https://api.stripe.com/v1/{topic}",
		"salesforce":    "https://shop.my.salesforce.com/services/data/v62.0/composite/sobjects/Lead/Relay_Event__c",
		"slack":         "https://hooks.slack.com/services/T0/B0/s3cret-path",
		"http":          "https://api.example/bulk?tenant=7&api_key=s3cret-key",
		"redis":         "redis://:s3cret-1@cache:6379/0",
		"nats":          "nats://s3cret-token@broker:4222",
		"file":          "file:///var/lib/relay/events.ndjson",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "relay.yaml")
			wrote := do(t, nil, "init", "--source", db.url, "--table", "contact_activity_events", "--sink", sink, "-o", path)
			wrote.want(t, 0, "relay preview -c ", "")
			golden(t, "sink-"+name, db, path)
			env := slices.Clone(db.env)
			for _, m := range exported.FindAllStringSubmatch(wrote.stdout, -1) {
				if m[1] == "SLACK_WEBHOOK_URL" {
					env = append(env, m[1]+"="+sink)
				} else if m[1] != "PGPASSWORD" {
					env = append(env, m[1]+"=x")
				}
			}
			do(t, env, "check", "-c", path).want(t, 0, "ok  contact_activity_events: ", "")
		})
	}
}

var exported = regexp.MustCompile(`(?m)^  export ([A-Z_]+)=\.\.\.   # `)

// What is in the environment is named, and not written.
func TestInitNamesTheEnvironment(t *testing.T) {
	t.Parallel()
	db := newYours(t, false)
	for name, args := range map[string][]string{
		"by itself":      {"--source", "${APP_DATABASE}"},
		"through sh":     {"--source", db.url},
		"what is there":  {"-y"},
		"with something": {"--source", "postgres://${APP_USER}:${APP_PASSWORD}@" + db.url[strings.LastIndex(db.url, "@")+1:]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			variable := map[bool]string{true: "DATABASE_URL", false: "APP_DATABASE"}[name == "what is there"]
			env := []string{variable + "=" + db.url, "APP_USER=relay", "APP_" + db.env[0][2:]}
			path := filepath.Join(t.TempDir(), "relay.yaml")
			do(t, env, append([]string{"init", "--sink", "stdout:", "-o", path}, args...)...).want(t, 0, "is written", "")
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			want := "url: ${" + variable + "}\n"
			if name == "with something" {
				want = "url: postgres://${APP_USER}:${APP_PASSWORD}@127.0.0.1:"
			}
			if !strings.Contains(string(text), want) || strings.Contains(string(text), "secret-") {
				t.Errorf("%q is not in\n%s", want, text)
			}
			do(t, env, "check", "-c", path).want(t, 0, "ok  events: postgres://***@127.0.0.1:", "")
		})
	}
}

func TestInitRefuses(t *testing.T) {
	t.Parallel()
	db := newYours(t, false)
	db.exec(activities + `; CREATE TABLE pairs (a int, b int, PRIMARY KEY (a, b)); CREATE TABLE plain (a int);
		CREATE TABLE named (id text PRIMARY KEY); CREATE TABLE grouped (id int PRIMARY KEY, group_id int)`)
	there := write(t, "pipelines: mine\n")
	folder := t.TempDir()
	for name, try := range map[string]struct {
		code int
		args []string
		want string
	}{
		"nothing":      {2, nil, "relay: init asks on a terminal only: --source and --sink were expected"},
		"no sink":      {2, []string{"--source", db.url}, "relay: init asks on a terminal only: --sink was expected"},
		"overwriting":  {2, []string{"--source", db.url, "--sink", "stdout:", "-o", there}, there + " is there already, --force writes over it, -o writes another file"},
		"no database":  {2, []string{"--source", "mysql://a:s3cret@h/d", "--sink", "stdout:"}, "source.url has the scheme mysql://, which is not supported yet"},
		"away":         {1, []string{"--source", unreachable, "--sink", "stdout:"}, "relay: looking at the database: failed to connect to `user=app database=app`"},
		"no variable":  {2, []string{"--source", "${NO_SUCH_VARIABLE}", "--sink", "stdout:"}, "source.url names ${NO_SUCH_VARIABLE}, which is not set in the environment"},
		"no file":      {1, []string{"--source", "sqlite:///no/such/file.db", "--sink", "stdout:"}, "relay: looking at the database: /no/such/file.db: "},
		"no table":     {2, []string{"--source", db.url, "--sink", "stdout:", "--table", "Contact_activity_events"}, "there is no table Contact_activity_events (did you mean contact_activity_events?), "},
		"two columns":  {2, []string{"--source", db.url, "--sink", "stdout:", "--table", "pairs"}, "the table pairs cannot hold events: its primary key has 2 columns, an integer or a uuid was expected"},
		"no key":       {2, []string{"--source", db.url, "--sink", "stdout:", "--table", "plain"}, "it has no primary key, an integer or a uuid was expected"},
		"a text":       {2, []string{"--source", db.url, "--sink", "stdout:", "--table", "named"}, "its primary key id is text, an integer or a uuid was expected"},
		"its own":      {2, []string{"--source", db.url, "--sink", "stdout:", "--table", "grouped"}, "its column group_id is integer and not the relay's, a column group_id of type uuid was expected"},
		"no such sink": {2, []string{"--source", db.url, "--sink", "htp://bob:s3cret@host"}, "relay: sink.url has an unknown scheme; expected redis://"},
		"no name":      {2, []string{"--source", db.url, "--sink", "stdout:", "--name", "A b"}, `--name is "A b", a name made of a-z, 0-9, _ and - was expected`},
		"no preset":    {2, []string{"--source", db.url, "--sink", "stdout:", "--table", "named", "--preset", "nothing"}, `preset is "nothing"; `},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"init", "-o", filepath.Join(folder, name)}, try.args...)
			r := do(t, nil, args...)
			if r.want(t, try.code, "", try.want); strings.Count(r.stderr, "dial error") > 1 {
				t.Errorf("it says twice why: %s", r.stderr)
			}
			if _, err := os.Stat(filepath.Join(folder, name)); err == nil {
				t.Error("a file was written")
			}
		})
	}
	t.Cleanup(func() {
		if text, err := os.ReadFile(there); err != nil || string(text) != "pipelines: mine\n" {
			t.Errorf("the file that was there is %q, %v", text, err)
		}
	})
}

func TestInitForce(t *testing.T) {
	t.Parallel()
	db := newYours(t, false)
	path := write(t, strings.Repeat("left: over\n", 2000))
	do(t, nil, "init", "--source", db.url, "--sink", "stdout:", "-o", path, "--force").want(t, 0, "is written", "")
	do(t, db.env, "check", "-c", path).want(t, 0, "ok  events", "")
}

// What the role may not do is said, as a statement for somebody who may.
func TestInitSaysWhatToGrant(t *testing.T) {
	t.Parallel()
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{}) // roles are the server's
	database, err := server.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	owner := yoursAt(t, database)
	owner.exec(activities + `; CREATE ROLE "the relay" LOGIN PASSWORD 's3cret-role'; GRANT SELECT ON contact_activity_events TO "the relay"`)
	_, rest, _ := strings.Cut(database, "@")
	source := "postgres://the%20relay:s3cret-role@" + rest
	path := filepath.Join(t.TempDir(), "relay.yaml")
	wrote := do(t, nil, "init", "--source", source, "--sink", "stdout:", "--table", "contact_activity_events", "-o", path)
	wrote.want(t, 0, `GRANT SELECT, INSERT, UPDATE, DELETE ON contact_activity_events TO "the relay";`, "")
	wrote.want(t, 0, `GRANT SELECT ON SEQUENCE contact_activity_events_id_seq TO "the relay";`, "")
	for _, step := range steps(wrote.stdout) {
		owner.exec(step)
	}
	env := []string{"PGPASSWORD=s3cret-role"}
	do(t, env, "migrate", "-c", path).want(t, 0, "applied", "")
	owner.exec(addActivity)
	do(t, env, "preview", "-c", path).want(t, 0, "1 event read", "")
}

// A HubSpot-like API: the payload has the e-mail address it wants, from a row two joins
// away, and an API's own request is sent.
func TestInitToHubSpot(t *testing.T) {
	t.Parallel()
	db := newYours(t, false)
	db.exec(activities)
	bodies := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bodies <- string(readAll(t, r.Body))
		if got := r.Header.Get("Authorization"); got != "Bearer s3cret-token" {
			t.Errorf("Authorization is %q", got)
		}
		fmt.Fprint(w, `{"status":"COMPLETE","results":[]}`)
	}))
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "relay.yaml")
	do(t, nil, "init", "--source", db.url, "--sink", server.URL+"/crm/v3/objects/contacts/batch/upsert", "--table", "contact_activity_events", "-o", path).
		want(t, 0, "export HUBSPOT_TOKEN=...", "")
	env := append(db.env, "HUBSPOT_TOKEN=s3cret-token")
	do(t, env, "migrate", "-c", path).want(t, 0, "applied", "")
	db.exec(addActivity)
	do(t, env, "preview", "-c", path).want(t, 0, `"idProperty": "email",`, "")
	select {
	case body := <-bodies:
		t.Errorf("preview sent %s", body)
	default:
	}
	quiet(t, path)
	start(t, env, "run", "-c", path)
	want := `{"inputs":[{"id":"ann@example.com","idProperty":"email","objectWriteTraceId":"1","properties":{"email":"ann@example.com","id":1,"kind":"opened","lead_id":1}}]}`
	if got := <-bodies; got != want {
		t.Errorf("HubSpot was sent\n%s\n%s was expected", got, want)
	}
}

func readAll(t *testing.T, r io.Reader) []byte {
	t.Helper()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Error(err)
	}
	return text
}
