package cli

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testserver"
)

var update = flag.Bool("update", false, "write the files that init writes to testdata")

// The file passes check. After the steps that init prints, the commands that it names preview and
// deliver an event.
func TestInit_Delivers(t *testing.T) {
	t.Parallel()
	for _, try := range initCases {
		t.Run(try.name, func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, strings.HasPrefix(try.name, "sqlite"))
			db.exec(try.tables)
			path := filepath.Join(t.TempDir(), "relay.yaml")
			wrote := do(t, nil, append([]string{"init", "--source", db.url, "--sink", "stdout:", "-o", path}, try.args...)...)
			wrote.want(t, 0, "Wrote "+path+": from ", "")
			golden(t, try.name, path)
			if adds := strings.Contains(wrote.stdout, " ADD COLUMN seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE;\n"); adds != (try.name == "uuids-alone" || try.name == "debezium") {
				t.Error("init proposes a growing column for a uuid key alone")
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
					return fmt.Errorf("what arrived is %q, want %q", out, try.arrives)
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

// golden compares a written file with testdata, except for its path.
func golden(t *testing.T, name, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.ReplaceAll(string(text), path, "relay.yaml")
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
		t.Errorf("%s (go test ./internal/cli -run Init -update writes it):\n%s", want, diff)
	}
}

var statement = regexp.MustCompile(`(?m)^  ((?:ALTER|CREATE|GRANT) .*;)$`)

// steps returns the statements that init prints for the database.
func steps(said string) (all []string) {
	for _, m := range statement.FindAllStringSubmatch(said, -1) {
		all = append(all, m[1])
	}
	return all
}

// quiet disables the admin endpoint, whose port may be in use.
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

// The file for every kind of sink passes check. Neither the file nor the output shows a part of the URL
// that may be secret.
func TestInit_Sinks(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
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
			golden(t, "sink-"+name, path)
			if says := strings.Contains(wrote.stdout, "A 2xx answer counts as accepted"); says != (name == "http") {
				t.Errorf("it says what a 2xx counts as: %t", says)
			}
			env := initEnv(db.url, sink)
			for _, m := range exported.FindAllStringSubmatch(wrote.stdout, -1) {
				if !strings.HasPrefix(m[1], "RELAY_") {
					env = append(env, m[1]+"=x")
				}
			}
			do(t, env, "check", "-c", path).want(t, 0, "ok  contact_activity_events: ", "")
		})
	}
}

var exported = regexp.MustCompile(`(?m)^  export ([A-Z_]+)=\.\.\.   # `)

// The environment answers for the flags, and the output repeats none of its values.
func TestInit_Environment(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	path := filepath.Join(t.TempDir(), "relay.yaml")
	env := initEnv(db.url, "https://hooks.example/s3cret-path?key=s3cret-key")
	wrote := do(t, env, "init", "-o", path)
	wrote.want(t, 0, "to https://hooks.example/***?***\n", "")
	if strings.Contains(wrote.stdout, "export RELAY_") {
		t.Error("init asks for variables that are set")
	}
	do(t, env, "check", "-c", path).want(t, 0, "ok  events: postgres://***@127.0.0.1:", "")
	do(t, nil, "init", "--source", db.url, "--sink", "stdout:", "-o", path, "--force").
		want(t, 0, "  export RELAY_SOURCE_URL=...   # the URL of the database\n", "")
}

// A word of the API's path that is the name of the table is no secret, but a token is.
func TestInit_TableInPath(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, true)
	db.exec(`CREATE TABLE "OrderEvents" (id INTEGER PRIMARY KEY AUTOINCREMENT, "unitPrice" INTEGER, created_at TEXT, group_id TEXT)`)
	path := filepath.Join(t.TempDir(), "relay.yaml")
	wrote := do(t, nil, "init", "--source", db.url, "--table", "OrderEvents", "--sink", "https://api.example/v1/OrderEvents/tok3nAbCdEf", "-o", path)
	wrote.want(t, 0, "from OrderEvents to https://api.example/v1/OrderEvents/***\n", "")
	if strings.Contains(wrote.stdout, "tok3n") {
		t.Errorf("the token is shown:\n%s", wrote.stdout)
	}
}

// The file's name is shown, also if a part of it is a secret of the URL.
func TestInit_ShowsFile(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, true)
	db.exec("CREATE TABLE pairs (a INTEGER)") // makes the file
	path := filepath.Join(t.TempDir(), "tok3nAbCdEf.yaml")
	wrote := do(t, nil, "init", "--source", db.url, "--sink", "https://api.example/crm/v3/contacts/tok3nAbCdEf", "-o", path)
	wrote.want(t, 0, "Wrote "+path+": from outbox_events to https://api.example/crm/v3/contacts/***\n", "")
	wrote.want(t, 0, "  relay run -c "+path+" ", "")
	wrote.want(t, 0, "The end of "+path+" says", "")
}

// A table whose primary key has two columns works with a unique one of them, and init says how.
func TestInit_CompositeKey(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	db.exec(`CREATE TABLE item_events (tenant int, id bigint GENERATED ALWAYS AS IDENTITY, name text, created_at timestamptz DEFAULT now(), PRIMARY KEY (tenant, id));
		CREATE TABLE parts (id bigint GENERATED ALWAYS AS IDENTITY, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)`)
	path := filepath.Join(t.TempDir(), "relay.yaml")
	initialize := func(table string) result {
		t.Helper()
		return do(t, nil, "init", "--source", db.url, "--table", table, "--sink", "stdout:", "-o", path)
	}
	parts := initialize("parts")
	parts.want(t, 2, "", "its primary key has 2 columns; expected an integer or a uuid (the table is partitioned, so only its partition key can be unique); use the relay's own table (--table outbox_events)\n")
	refused := initialize("item_events")
	refused.want(t, 2, "", "; if id alone identifies a row, add a constraint and run init again, or use the relay's own table (--table outbox_events) > ALTER TABLE item_events ADD UNIQUE (id)\n")
	_, fix, _ := strings.Cut(refused.stderr, "> ")
	db.exec(fix)
	wrote := initialize("item_events")
	wrote.want(t, 0, "Wrote ", "")
	for _, step := range steps(wrote.stdout) {
		db.exec(step)
	}
	do(t, db.env, "migrate", "-c", path).want(t, 0, "applied", "")
	db.exec("INSERT INTO item_events (tenant, name) VALUES (7, 'ann')")
	quiet(t, path)
	do(t, db.env, "doctor", "-c", path).want(t, 0, "\n0 problems, ", "")
	r := start(t, db.env, "run", "-c", path)
	testserver.Eventually(t, func() error {
		if out := r.stdout.String(); !strings.Contains(out, `"name":"ann"`) && !strings.Contains(out, `"name": "ann"`) {
			return fmt.Errorf("what arrived is %q", out)
		}
		return nil
	})
	r.signal(syscall.SIGTERM)
	r.exit()
}

// The entry of a second file, moved to the end of the first, is a second pipeline.
func TestInit_SecondPipeline(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, true)
	db.exec("CREATE TABLE item_events (id INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER, created_at TEXT, group_id TEXT)")
	folder := t.TempDir()
	first, second := filepath.Join(folder, "relay.yaml"), filepath.Join(folder, "more.yaml")
	do(t, nil, "init", "--source", db.url, "--table", "outbox_events", "--sink", "stdout:", "-o", first).
		want(t, 0, "\nThe end of "+first+" says how to add another table.\n", "")
	do(t, nil, "init", "--source", db.url, "--table", "item_events", "--sink", "stdout:", "-o", first).
		want(t, 2, "", "; to add a pipeline to it, write another file and move the entry over\n")
	do(t, nil, "init", "--source", db.url, "--table", "item_events", "--sink", "stdout:", "-o", second).want(t, 0, "Wrote ", "")
	var parts [2][]byte
	for i, path := range []string{first, second} {
		var err error
		if parts[i], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	_, entry, _ := strings.Cut(string(parts[1]), "pipelines:\n")
	entry = strings.ReplaceAll(entry, "RELAY_SINK_URL", "RELAY_ITEMS_SINK_URL")
	if err := os.WriteFile(first, append(parts[0], entry...), 0o600); err != nil {
		t.Fatal(err)
	}
	env := append(initEnv(db.url, "stdout:"), "RELAY_ITEMS_SINK_URL=file://"+folder+"/items.ndjson")
	got := do(t, env, "check", "-c", first)
	got.want(t, 0, "ok  events: ", "")
	got.want(t, 0, "ok  item_events: ", "")
}

// What a request program of the API leaves out is listed, in the file too, and check warns of the headers.
func TestInit_Unrequested(t *testing.T) {
	t.Parallel()
	const unsent = "id (id), event_type (topic), aggregate_id (key), aggregate_type (headers)"
	db := newAppDatabase(t, true)
	db.exec(`CREATE TABLE outbox_items (id INTEGER PRIMARY KEY AUTOINCREMENT, event_type text NOT NULL, aggregate_id text NOT NULL,
		aggregate_type text NOT NULL, payload json NOT NULL, group_id text)`)
	path, sink := filepath.Join(t.TempDir(), "relay.yaml"), "https://api.postmarkapp.com/email/batch"
	do(t, nil, "init", "--source", db.url, "--table", "outbox_items", "--sink", sink, "-o", path).
		want(t, 0, "\nsent: payload\nnot sent by sink.request: "+strings.Replace(unsent, ", aggregate_type", ",\naggregate_type", 1)+"\n", "")
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(strings.Join(strings.Fields(strings.ReplaceAll(string(text), "#", "")), " "), "Sent: payload. Remove what the sink must not see.") ||
		!strings.Contains(strings.Join(strings.Fields(strings.ReplaceAll(string(text), "#", "")), " "), "Not sent by sink.request: "+unsent+".") {
		t.Errorf("%v: the file is\n%s", err, text)
	}
	env := append(initEnv(db.url, sink), "POSTMARK_TOKEN=x")
	warning := "sink.request sends nothing of the headers, which source.project makes"
	do(t, env, "check", "-c", path).want(t, 0, "ok  ", warning)
	said := strings.Replace(string(text), "[.events[].payload]", "[.events[].payload] # not sent: headers", 1)
	if err := os.WriteFile(path, []byte(said), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := do(t, env, "check", "-c", path); r.stderr != "" {
		t.Errorf("check says %s", r.stderr)
	}
	own := filepath.Join(t.TempDir(), "relay.yaml")
	do(t, nil, "init", "--source", db.url, "--table", "outbox_events", "--sink", sink, "-o", own).want(t, 0, "\nnot sent by sink.request: topic, key, headers\n", "")
}

func TestInit_Errors(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	db.exec(activities + `; CREATE TABLE pairs (a int, b int, PRIMARY KEY (a, b)); CREATE TABLE plain (a int);
		CREATE TABLE named (id text PRIMARY KEY); CREATE TABLE grouped (id int PRIMARY KEY, group_id int)`)
	there := write(t, "pipelines: mine\n")
	folder := t.TempDir()
	for name, try := range map[string]struct {
		code int
		args []string
		want string
	}{
		"nothing":      {2, nil, "relay: init asks questions on a terminal only; expected --source and --sink"},
		"no sink":      {2, []string{"--source", db.url}, "relay: init asks questions on a terminal only; expected --sink"},
		"overwriting":  {2, []string{"--source", db.url, "--sink", "stdout:", "-o", there}, "file " + there + " exists; expected another file (-o), or --force to overwrite it"},
		"no database":  {2, []string{"--source", "mysql://a:s3cret@h/d", "--sink", "stdout:"}, "source.url has the scheme mysql://, which is not supported yet"},
		"unreachable":  {1, []string{"--source", unreachable, "--sink", "stdout:"}, "relay: reading the database's catalog: cannot reach PostgreSQL at 127.0.0.1:1; start the server, or correct the URL: failed to connect to `user=app database=app`"},
		"no file":      {1, []string{"--source", "sqlite:///no/such/file.db", "--sink", "stdout:"}, "relay: reading the database's catalog: /no/such/file.db: "},
		"no table":     {2, []string{"--source", db.url, "--sink", "stdout:", "--table", "Contact_activity_events"}, "table Contact_activity_events does not exist (did you mean contact_activity_events?); expected "},
		"two columns":  {2, []string{"--source", db.url, "--sink", "stdout:", "--table", "pairs"}, "table pairs cannot hold events: its primary key has 2 columns; expected an integer or a uuid"},
		"no key":       {2, []string{"--source", db.url, "--sink", "stdout:", "--table", "plain"}, "it has no primary key; expected an integer or a uuid"},
		"a text":       {2, []string{"--source", db.url, "--sink", "stdout:", "--table", "named"}, "its primary key id is text; expected an integer or a uuid"},
		"its own":      {2, []string{"--source", db.url, "--sink", "stdout:", "--table", "grouped"}, "its column group_id is integer; expected uuid"},
		"no such sink": {2, []string{"--source", db.url, "--table", "outbox_events", "--sink", "htp://bob:s3cret@host"}, "relay: sink.url has an unknown scheme; expected redis://"},
		"no name":      {2, []string{"--source", db.url, "--table", "outbox_events", "--sink", "stdout:", "--name", "A b"}, `--name is "A b"; expected a name of a-z, 0-9, _ and -`},
		"no preset":    {2, []string{"--source", db.url, "--sink", "stdout:", "--table", "named", "--preset", "nothing"}, `preset is "nothing"; `},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"init", "-o", filepath.Join(folder, name)}, try.args...)
			r := do(t, nil, args...)
			if r.want(t, try.code, "", try.want); strings.Count(r.stderr, "dial error") > 1 {
				t.Errorf("the reason is repeated: %s", r.stderr)
			}
			if _, err := os.Stat(filepath.Join(folder, name)); err == nil {
				t.Error("a file was written")
			}
		})
	}
	t.Cleanup(func() {
		if text, err := os.ReadFile(there); err != nil || string(text) != "pipelines: mine\n" {
			t.Errorf("the existing file is %q, %v", text, err)
		}
	})
}

func TestInit_Force(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	path := write(t, strings.Repeat("left: over\n", 2000))
	do(t, nil, "init", "--source", db.url, "--sink", "stdout:", "-o", path, "--force").want(t, 0, "Wrote ", "")
	do(t, db.env, "check", "-c", path).want(t, 0, "ok  events", "")
}

// Init prints the GRANT statements that the role needs.
func TestInit_MissingPrivileges(t *testing.T) {
	t.Parallel()
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{}) // roles are the server's
	database, err := server.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	owner := appDatabaseAt(t, database)
	owner.exec(activities + `; CREATE ROLE "the relay" LOGIN PASSWORD 's3cret-role'; GRANT SELECT ON contact_activity_events TO "the relay"`)
	_, rest, _ := strings.Cut(database, "@")
	source := "postgres://the%20relay:s3cret-role@" + rest
	path := filepath.Join(t.TempDir(), "relay.yaml")
	wrote := do(t, nil, "init", "--source", source, "--sink", "stdout:", "--table", "contact_activity_events", "-o", path)
	wrote.want(t, 0, `GRANT SELECT, INSERT, UPDATE, DELETE ON contact_activity_events TO "the relay";`, "")
	wrote.want(t, 0, `GRANT SELECT ON SEQUENCE public.contact_activity_events_id_seq TO "the relay";`, "")
	for _, step := range steps(wrote.stdout) {
		owner.exec(step)
	}
	env := initEnv(source, "stdout:")
	do(t, env, "migrate", "-c", path).want(t, 0, "applied", "")
	owner.exec(addActivity)
	do(t, env, "preview", "-c", path).want(t, 0, "1 event read", "")
}

// The payload has the e-mail address that HubSpot requires, from a row two joins away.
func TestInit_HubSpot(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
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
	env := append(initEnv(db.url, server.URL+"/crm/v3/objects/contacts/batch/upsert"), "HUBSPOT_TOKEN=s3cret-token")
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
	want := regexp.MustCompile(`^{"inputs":\[{"id":"ann@example.com","idProperty":"email","objectWriteTraceId":"1","properties":{"contact_activity":` +
		`{"id":1,"kind":"opened","lead_id":1},"contact_activity_id":1,"created_at":"[^"]+","email":"ann@example.com","id":1}}\]}$`)
	if got := <-bodies; !want.MatchString(got) {
		t.Errorf("HubSpot received\n%s\nwant\n%s", got, want)
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
