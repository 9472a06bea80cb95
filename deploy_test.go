package relay_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testserver"
)

// roleServer is a PostgreSQL server of the test's own, because roles belong to the server.
type roleServer struct{ database string } // as the superuser

func newRoleServer(t *testing.T) roleServer {
	t.Helper()
	database, err := testserver.OwnPostgres(t, testserver.PostgresOptions{}).NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return roleServer{database}
}

// at returns the URL of this database with the role and the password of another URL.
func (s roleServer) at(t *testing.T, other string) string {
	t.Helper()
	to, err := url.Parse(s.database)
	if err != nil {
		t.Fatal(err)
	}
	from, err := url.Parse(other)
	if err != nil {
		t.Fatal(err)
	}
	to.User = from.User
	return to.String()
}

// as returns the URL of this database for a role with its name as its password.
func (s roleServer) as(t *testing.T, role string) string {
	t.Helper()
	return s.at(t, "postgres://"+role+":"+role+"@db/shop")
}

// psql runs a file as a role, "" for the superuser.
func (s roleServer) psql(t *testing.T, role, file string) {
	t.Helper()
	target := s.database
	if role != "" {
		target = s.as(t, role)
	}
	newTerminal(t, "", "TARGET="+target).must(`psql "$TARGET" -q -v ON_ERROR_STOP=1 -f '` + absolute(t, file) + `'`)
}

// query runs a statement as the superuser and returns its rows, of one text.
func (s roleServer) query(t *testing.T, sql string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	rows, err := conn.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// createRoles runs roles.sql as the administrator would, and creates the application's role.
func (s roleServer) createRoles(t *testing.T) {
	t.Helper()
	s.psql(t, "", "deploy/postgres/roles.sql")
	for _, sql := range []string{
		"CREATE ROLE shop LOGIN PASSWORD 'shop'",
		"ALTER ROLE outbox_owner PASSWORD 'outbox_owner'",
		"ALTER ROLE outbox_relay PASSWORD 'outbox_relay'",
	} {
		s.query(t, sql)
	}
}

// tooMuchSQL returns what outbox_relay and shop may do beyond promise 10.
const tooMuchSQL = `
SELECT rolname || ' is an administrator' FROM pg_roles
WHERE rolname IN ('outbox_owner', 'outbox_relay', 'shop') AND (rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls)
UNION ALL
SELECT relowner::regrole || ' owns ' || relname FROM pg_class WHERE relowner IN ('outbox_relay'::regrole, 'shop'::regrole)
UNION ALL
SELECT r || ' may create objects in ' || nspname FROM pg_namespace, unnest(ARRAY['outbox_relay', 'shop']) AS r
WHERE nspname !~ '^pg_temp' AND has_schema_privilege(r, oid, 'CREATE')
UNION ALL
SELECT 'outbox_relay may ' || privilege_type || ' ' || relname FROM pg_class, aclexplode(relacl)
WHERE grantee = 'outbox_relay'::regrole
  AND NOT (relname ~ '^outbox_' AND privilege_type = ANY (CASE relkind WHEN 'S' THEN '{USAGE}' ELSE '{SELECT,INSERT,UPDATE,DELETE}' END::text[]))
UNION ALL
SELECT 'shop may ' || privilege_type || ' ' || relname FROM pg_class, aclexplode(relacl)
WHERE grantee = 'shop'::regrole AND relname ~ '^outbox_' AND privilege_type <> 'INSERT'
UNION ALL
SELECT member::regrole || ' is a member of ' || roleid::regrole FROM pg_auth_members
WHERE member IN ('outbox_owner'::regrole, 'outbox_relay'::regrole, 'shop'::regrole)
  AND (member, roleid) <> ('outbox_relay'::regrole, 'pg_read_all_stats'::regrole)`

// leastPrivilege checks that no role has more privileges than promise 10 says.
func (s roleServer) leastPrivilege(t *testing.T) {
	t.Helper()
	if found := s.query(t, tooMuchSQL); len(found) > 0 {
		t.Errorf("too many privileges: %s", strings.Join(found, ", "))
	}
	if sees := s.query(t, "SELECT pg_has_role('outbox_relay', 'pg_read_all_stats', 'USAGE')::text"); !slices.Equal(sees, []string{"true"}) {
		t.Error("outbox_relay does not see the transactions of other roles")
	}
}

// manifest is the part of a Kubernetes object that the tests follow.
type manifest struct {
	Spec struct {
		Template struct {
			Spec struct {
				Pod            podSecurity `yaml:"securityContext"`
				AutomountToken *bool       `yaml:"automountServiceAccountToken"`
				InitContainers []container `yaml:"initContainers"`
				Containers     []container
			}
		}
	}
}

type podSecurity struct {
	RunAsNonRoot   bool                  `yaml:"runAsNonRoot"`
	SeccompProfile struct{ Type string } `yaml:"seccompProfile"`
}

type container struct {
	Name, Image   string
	Args, Command []string
	Env           []struct{ Name, Value string }
	EnvFrom       []struct {
		SecretRef struct{ Name string } `yaml:"secretRef"`
	} `yaml:"envFrom"`
	Resources struct{ Limits map[string]string }
	Security  struct {
		AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
		Capabilities             struct{ Drop []string }
	} `yaml:"securityContext"`
}

// readManifest reads a file of deploy/kubernetes and checks that its pods are confined.
func readManifest(t *testing.T, path string) (containers map[string]container) {
	t.Helper()
	var m manifest
	if err := yaml.Unmarshal([]byte(read(t, path)), &m); err != nil {
		t.Fatal(err)
	}
	spec := m.Spec.Template.Spec
	if !spec.Pod.RunAsNonRoot || spec.Pod.SeccompProfile.Type != "RuntimeDefault" || spec.AutomountToken == nil || *spec.AutomountToken {
		t.Errorf("%s: the pod is not confined: %+v", path, spec.Pod)
	}
	containers = map[string]container{}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		containers[c.Name] = c
		s := c.Security
		if s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
			t.Errorf("%s: container %s is not confined: %+v", path, c.Name, s)
		}
		if c.Resources.Limits["memory"] == "" {
			t.Errorf("%s: container %s has no memory limit", path, c.Name)
		}
		if _, tag, _ := strings.Cut(c.Image, ":"); !exactTag.MatchString(tag) {
			t.Errorf("%s: container %s: image %s is not pinned to one version", path, c.Name, c.Image)
		}
	}
	return containers
}

// testKubernetes runs the commands of deploy/kubernetes with the secrets that its comments
// describe: only the Job has the owner's password.
func testKubernetes(t *testing.T, programs string) {
	server := newRoleServer(t)
	server.createRoles(t)
	secrets := map[string]string{
		"relay-secrets": "DATABASE_URL=" + server.as(t, "outbox_relay"),
		"relay-owner":   "DATABASE_URL=" + server.as(t, "outbox_owner"),
	}
	job, pod := readManifest(t, "deploy/kubernetes/components/migrate/migrate.yaml"), readManifest(t, "deploy/kubernetes/sidecar.yaml")
	in := func(c container) *terminal {
		term := newTerminal(t, programs, "RELAY_CONFIG=relay.yaml")
		term.write("relay.yaml", oneRelay("${DATABASE_URL}"))
		for _, from := range c.EnvFrom {
			term.env = append(term.env, secrets[from.SecretRef.Name])
		}
		for _, v := range c.Env {
			term.env = append(term.env, v.Name+"="+v.Value)
		}
		return term
	}
	own := readManifest(t, "deploy/kubernetes/base/deployment.yaml")
	if diff := cmp.Diff(pod["relay"], own["relay"]); diff != "" {
		t.Errorf("the relay of deployment.yaml differs from the sidecar (-sidecar +deployment):\n%s", diff)
	}
	if text := read(t, "deploy/kubernetes/base/relay.yaml"); !strings.Contains(read(t, "docs/running.md"), "```yaml\n"+text+"```\n") {
		t.Errorf("docs/running.md does not show the relay.yaml of the base:\n%s", text)
	}
	term := in(pod["relay"])
	term.env = append(term.env, "RELAY_ADMIN_TOKEN=token")
	for _, path := range []string{"base/relay.yaml", "overlays/example/relay.yaml"} {
		term.must("relay check " + absolute(t, "deploy/kubernetes/"+path))
	}
	in(job["migrate"]).must("relay " + strings.Join(job["migrate"].Args, " "))
	in(job["grants"]).must(strings.ReplaceAll(job["grants"].Command[2], "/sql/", absolute(t, "deploy/postgres")+"/"))
	for _, from := range pod["relay"].EnvFrom {
		if from.SecretRef.Name == "relay-owner" {
			t.Error("the sidecar has the secret of the owner")
		}
	}
	server.deliversAsRelay(t, in(pod["relay"]).start("relay", pod["relay"].Args...))
}

var (
	unitLine    = regexp.MustCompile(`(?m)^(ExecStart|Environment|LoadCredential)=(.*)$`)
	credentials = regexp.MustCompile(`%d/(\S+)`)
)

// unit returns the lines of a systemd unit by key.
func unit(t *testing.T, path string) map[string][]string {
	t.Helper()
	lines := map[string][]string{}
	for _, m := range unitLine.FindAllStringSubmatch(read(t, path), -1) {
		lines[m[1]] = append(lines[m[1]], m[2])
	}
	return lines
}

// testSystemd runs the commands of the units in deploy/systemd. Their roles come from the
// units, the passwords from the credentials.
func testSystemd(t *testing.T, programs string) {
	server := newRoleServer(t)
	server.createRoles(t)
	bare, err := url.Parse(server.database)
	if err != nil {
		t.Fatal(err)
	}
	bare.User = nil
	in := func(u map[string][]string) *terminal {
		term := newTerminal(t, programs)
		term.write("relay.yaml", oneRelay(bare.String()))
		term.write("pgpass", "*:*:*:outbox_owner:outbox_owner\n*:*:*:outbox_relay:outbox_relay\n")
		term.must("chmod 600 pgpass")
		if got := u["LoadCredential"]; len(got) != 1 || !strings.HasPrefix(got[0], "pgpass:/etc/relay/") {
			t.Errorf("the credentials are %q", got)
		}
		for _, line := range u["Environment"] {
			term.env = append(term.env, strings.Fields(credentials.ReplaceAllString(line, term.dir+"/$1"))...)
		}
		return term
	}
	here := strings.NewReplacer("/usr/local/bin/", "", "/usr/bin/", "", "/etc/relay/relay.yaml", "relay.yaml",
		"/etc/relay/grants.sql", absolute(t, "deploy/postgres/grants.sql"), "postgres://localhost/shop", bare.String())
	migrate, run := unit(t, "deploy/systemd/relay-migrate.service"), unit(t, "deploy/systemd/relay.service")
	for _, line := range migrate["ExecStart"] {
		in(migrate).must(here.Replace(line))
	}
	server.deliversAsRelay(t, in(run).start("relay", strings.Fields(here.Replace(run["ExecStart"][0]))[1:]...))
}

// oneRelay returns a configuration with one pipeline to the standard output.
func oneRelay(source string) string {
	return fmt.Sprintf("admin: {listen: \"\"}\npipelines:\n  - name: orders\n    source: {url: %q}\n    sink: {url: \"stdout:\"}\n", source)
}

const rolesSQL = `
SELECT DISTINCT usename::text FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename <> 'shop'`

// deliversAsRelay checks that a relay delivers what the application inserts, as outbox_relay
// and without more privileges than it needs.
func (s roleServer) deliversAsRelay(t *testing.T, run *process) {
	t.Helper()
	run.waitFor(&run.stderr, verbatim, "pipeline started")
	term := newTerminal(t, "", "SHOP="+s.as(t, "shop"))
	term.must(`psql "$SHOP" -q -v ON_ERROR_STOP=1 -c "INSERT INTO outbox_events (topic, payload) VALUES ('orders.created', '{}')"`)
	run.waitFor(&run.stdout, verbatim, `{"id":"1","topic":"orders.created","payload":{}`)
	if got := s.query(t, rolesSQL); !slices.Equal(got, []string{"outbox_relay"}) {
		t.Errorf("the relay's sessions have the roles %q", got)
	}
	run.stop(os.Interrupt)
	s.leastPrivilege(t)
}
