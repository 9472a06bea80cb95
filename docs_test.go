package relay_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
)

// testSnippets checks every block, command and link of every document.
func testSnippets(t *testing.T, programs string) {
	for _, path := range documents(t) {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			term := newTerminal(t, programs)
			for _, b := range blocks(t, path) {
				switch b.lang {
				case "yaml":
					checkYAML(t, term, b)
				case "sh":
					checkCommands(t, term, b.where, b.text)
				case "ruby", "php", "python", "js", "java", "go":
					if b.file() == "" || read(t, b.file()) != b.text+"\n" {
						t.Errorf("%s: expected the text of the file named in a comment <!-- file: examples/... -->", b.where)
					}
				case "sql", "json", "text", "mermaid": // other tests run and compare these; nothing checks a chart
				default:
					t.Errorf("%s: no test covers blocks of %q", b.where, b.lang)
				}
			}
			for i, line := range strings.Split(read(t, path), "\n") {
				checkLinks(t, path, i, line)
				for _, code := range inline.FindAllStringSubmatch(line, -1) {
					checkCommands(t, term, fileLine(path, i), code[1])
				}
			}
		})
	}
}

var (
	inline   = regexp.MustCompile("`([^`]+)`")
	variable = regexp.MustCompile(`\$(?:\{([A-Z_]+)\}|secret\.([A-Z_]+))`)
	secret   = regexp.MustCompile(`\$\{file:([^}]+)\}`)
	link     = regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)
	command  = regexp.MustCompile(`^relay (dead [a-z]+|sinks [a-z]+|[a-z]+)(.*)$`)
	flag     = regexp.MustCompile(`--?[a-z]+(-[a-z]+)*`)
	target   = regexp.MustCompile(`^make ([a-z]+)$`)
	program  = regexp.MustCompile(`^go run (\./\S+)`)
)

// checkYAML runs `relay check` on a configuration, or on a sink or the section admin alone. Files of other programs name their test in a comment.
func checkYAML(t *testing.T, term *terminal, b block) {
	t.Helper()
	if b.file() == "bad.yaml" || strings.HasPrefix(b.hint, "tested by ") {
		return
	}
	text := b.text
	if strings.HasPrefix(text, "sink:") || strings.HasPrefix(text, "sinks:") {
		text = "pipelines:\n  - name: p\n    source: {url: \"postgres://localhost/p\"}\n" + indent(text, "    ")
	}
	if strings.HasPrefix(text, "admin:") && !strings.Contains(text, "\npipelines:") {
		text += "\npipelines: [{name: p, source: {url: \"postgres://localhost/p\"}, sink: {url: \"stdout:\"}}]"
	}
	env := map[string]string{}
	for _, name := range variable.FindAllStringSubmatch(text, -1) {
		env[name[1]+name[2]] = "x"
		if strings.HasSuffix(name[1], "_TOKEN") { // no two may be the same
			env[name[1]] = "x" + name[1]
		}
	}
	env["DATABASE_URL"], env["REDIS_URL"] = "postgres://localhost/p", "redis://localhost"
	env["NEW_SIGNING_SECRET"], env["OLD_SIGNING_SECRET"] = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	env["SLACK_WEBHOOK_URL"] = "https://hooks.slack.com/services/x"
	// These files do not exist on this machine.
	term.write("file", "-----BEGIN NATS USER JWT-----")
	file := filepath.Join(term.dir, "file")
	text = secret.ReplaceAllString(text, "${file:"+file+"}")
	text = strings.ReplaceAll(text, "/etc/relay/nats.creds", file)
	if strings.Contains(text, "/etc/relay/tls.") {
		cert, key := testkit.NewAuthority(t).Issue(t, "localhost")
		text = strings.NewReplacer("/etc/relay/tls.crt", cert, "/etc/relay/tls.key", key).Replace(text)
	}
	term.write("check.yaml", text+"\n")

	one := *term
	for name, value := range env {
		one.env = append(one.env, name+"="+value)
	}
	if out, err := one.sh("relay check -c check.yaml"); err != nil {
		t.Errorf("%s: relay check: %v\n%s\n%s", b.where, err, out, text)
	}
}

// checkCommands checks that the commands, flags, make targets and programs in shell
// lines exist.
func checkCommands(t *testing.T, term *terminal, where, lines string) {
	t.Helper()
	for line := range strings.SplitSeq(lines, "\n") {
		if m := command.FindStringSubmatch(line); m != nil {
			help, err := term.sh("relay " + m[1] + " --help")
			if err != nil {
				t.Errorf("%s: relay %s does not exist", where, m[1])
			}
			own, _, _ := strings.Cut(m[2], "|")
			for _, name := range flag.FindAllString(own, -1) {
				if !regexp.MustCompile(`(^|[ ,])` + name + `\b`).MatchString(help) {
					t.Errorf("%s: relay %s has no flag %s", where, m[1], name)
				}
			}
		}
		if m := target.FindStringSubmatch(line); m != nil && !strings.Contains(read(t, "Makefile"), "\n"+m[1]+":") {
			t.Errorf("%s: the Makefile has no target %s", where, m[1])
		}
		if m := program.FindStringSubmatch(line); m != nil && !exists(m[1]) {
			t.Errorf("%s: %s does not exist", where, m[1])
		}
	}
}

// checkLinks checks that the target of a relative link exists, with its heading.
func checkLinks(t *testing.T, path string, i int, line string) {
	t.Helper()
	for _, m := range link.FindAllStringSubmatch(line, -1) {
		if strings.HasPrefix(m[1], "https://") {
			continue
		}
		to := filepath.Join(filepath.Dir(path), m[1])
		if !exists(to) {
			t.Errorf("%s: %s does not exist", fileLine(path, i), to)
		} else if m[2] != "" && !hasHeading(read(t, to), m[2][1:]) {
			t.Errorf("%s: %s has no heading %s", fileLine(path, i), to, m[2])
		}
	}
}

// hasHeading reports whether a heading of a document has this anchor.
func hasHeading(text, anchor string) bool {
	for line := range strings.SplitSeq(text, "\n") {
		if hashes, title, ok := strings.Cut(line, " "); ok && strings.Trim(hashes, "#") == "" && hashes != "" {
			if strings.ReplaceAll(strings.ToLower(title), " ", "-") == anchor {
				return true
			}
		}
	}
	return false
}

// testPrivileges grants two roles exactly the privileges of docs/installing.md. With
// them the application inserts, and the relay delivers at a shared rate, archives, buries and replays.
func testPrivileges(t *testing.T, programs string) {
	server := newRoleServer(t)
	server.createRoles(t)
	term := newTerminal(t, programs, "OWNER="+server.as(t, "outbox_owner"), "RELAY="+server.as(t, "outbox_relay"), "SHOP="+server.as(t, "shop"))
	receiver := term.start("receiver", "-listen", "127.0.0.1:0")
	config := func(source, sink string) string {
		return fmt.Sprintf("admin: {listen: \"\"}\npipelines:\n  - name: orders\n    source: {url: \"${%s}\"}\n    archive: {table: outbox_archive}\n    sink: {url: %s}\n", source, sink)
	}
	term.write("owner.yaml", config("OWNER", "'stdout:'"))
	term.write("relay.yaml", config("RELAY", "'stdout:'"))
	term.write("keyed.yaml", config("RELAY", "'http://"+listenAddress(receiver)+"/{key}', rate: {requests: 10, per: 1s, shared: true}"))

	var sql []string
	for _, b := range blocks(t, "docs/installing.md") {
		if b.lang == "sql" {
			sql = append(sql, b.text)
		}
	}
	if len(sql) != 1 {
		t.Fatalf("docs/installing.md has %d blocks of SQL; expected one, the grants", len(sql))
	}
	grants := sql[0]
	if grants+"\n" != read(t, "deploy/postgres/grants.sql") {
		t.Error("the grants of docs/installing.md are not those of deploy/postgres/grants.sql")
	}
	psql := func(role, statement string) string {
		t.Helper()
		return term.must(`psql "$` + role + `" -qAt -v ON_ERROR_STOP=1 <<'SQL'` + "\n" + statement + "\nSQL")
	}
	term.must("relay migrate -c owner.yaml")
	psql("OWNER", grants)

	// The file as it is serves roles of other names.
	server.query(t, `CREATE ROLE "my-relay"`)
	server.query(t, `CREATE ROLE "Web App"`)
	term.must(`psql "$OWNER" -q -v ON_ERROR_STOP=1 -v relay=my-relay -v app='Web App' -f '` + absolute(t, "deploy/postgres/grants.sql") + "'")
	for role, may := range map[string]string{"my-relay": "true true true true true", "Web App": "true false true false false"} {
		got := psql("OWNER", fmt.Sprintf(`SELECT concat_ws(' ', has_table_privilege(r, 'outbox_events', 'INSERT'), has_table_privilege(r, 'outbox_events', 'DELETE'),
			has_column_privilege(r, 'outbox_events', 'id', 'SELECT'), has_table_privilege(r, 'outbox_archive', 'INSERT'), has_table_privilege(r, 'outbox_batches', 'UPDATE'))
			FROM (SELECT '%s'::name AS r) x`, role))
		if got = strings.NewReplacer("t", "true", "f", "false").Replace(got); got != may {
			t.Errorf("role %s has the privileges %s, want %s", role, got, may)
		}
	}

	// An event without a key has no address in keyed.yaml and is buried, because the other one is accepted.
	psql("SHOP", "INSERT INTO outbox_events (topic, key, payload) VALUES ('orders.created', NULL, '{}'), ('orders.created', 'k', '{}') RETURNING id")
	keyed := term.start("relay", "run", "-c", "keyed.yaml")
	keyed.waitFor(&keyed.stderr, verbatim, "events became dead letters")
	keyed.stop(os.Interrupt)
	if got := term.must("relay dead show -c relay.yaml --id 1"); !strings.Contains(got, "topic     orders.created\n") || !strings.Contains(got, "error     the key is NULL; expected a key for {key}") {
		t.Errorf("the dead letter is %q", got)
	}
	if got := term.must("relay dead replay -c relay.yaml --id 1"); got != "orders: replayed 1 dead letter" {
		t.Errorf("replay prints %q", got)
	}
	if got := term.must("relay dead discard -c relay.yaml --all"); got != "orders: discarded 0 dead letters" {
		t.Errorf("discard prints %q", got)
	}
	if got := term.must("relay doctor -c relay.yaml"); strings.Contains(got, "> GRANT ") || !strings.HasSuffix(got, "\n0 problems, 0 warnings") {
		t.Errorf("doctor prints %s", got)
	}
	term.must("relay verify -c relay.yaml --repair")

	run := term.start("relay", "run", "-c", "relay.yaml")
	run.waitFor(&run.stdout, verbatim, `{"id":"1","topic":"orders.created","payload":{}`)
	run.stop(os.Interrupt)
	if got := psql("OWNER", "SELECT string_agg(id::text, ' ' ORDER BY id) FROM outbox_archive"); got != "1 2" {
		t.Errorf("the archive has the events %q, want 1 2", got)
	}
	if got := term.must("relay status -c relay.yaml --json"); !strings.Contains(got, `"pending": 0`) {
		t.Errorf("status prints %s", got)
	}
}
