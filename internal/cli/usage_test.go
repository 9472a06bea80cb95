package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"", 0, "Available Commands:", ""},
		{"help", 0, "Available Commands:", ""},
		{"help run", 0, "relay run -c relay.yaml", ""},
		{"help rum", 2, "", `unknown command "rum"`},
		{"run --help", 0, "relay run -c relay.yaml", ""},
		{"version", 0, "relay ", ""},
		{"--version", 0, "relay ", ""},
		{"completion bash", 0, "bash completion", ""},
		{"completion zsh", 0, "zsh completion", ""},
		{"completion fish", 0, "fish completion", ""},
		{"completion powershell", 0, "powershell completion", ""},
		{"completion tcsh", 2, "", "the shell is \"tcsh\"; expected one of bash, fish, powershell, zsh"},
		{"completion", 2, "", "the shell is \"\""},
		{"chekc", 2, "", "Did you mean this?\n\tcheck"},
		{"bench", 2, "", `unknown command "bench"`},
		{"doctor", 2, "", "there is no relay.yaml here"},
		{"dead", 0, "relay dead list -c relay.yaml", ""},
		{"dead lits -c relay.yaml", 2, "", `unknown command "lits" for "relay dead"; expected list, show, replay, discard; did you mean relay dead list?`},
		{"sinks x", 2, "", `expected list, drop, restore, fill`},
		{"dead list --limit many", 2, "", `--limit is "many"; expected a number`},
		{"dead list --older-than 3", 2, "", `--older-than is "3"; expected a duration like 24h, or a time like 2026-01-02T15:00:00Z`},
		{"dead list --json=perhaps", 2, "", `--json is "perhaps"; expected true or false`},
		{"run --colour", 2, "", "unknown flag: --colour"},
		{"run 17", 2, "", "unexpected argument 17; relay run takes none, only flags: relay run --help"},
		{"run usage_test.go", 2, "", "unexpected argument usage_test.go; expected relay run -c usage_test.go"},
		{"run -c", 2, "", "flag needs an argument"},
		{"run", 2, "", "there is no relay.yaml here; expected -c FILE or RELAY_CONFIG=FILE, or a new one: relay init"},
		{"status -c /nowhere/relay.yaml", 2, "", "file /nowhere/relay.yaml does not exist"},
		{"check /nowhere/relay.yaml", 2, "", "file /nowhere/relay.yaml does not exist"},
		{"check a.yaml b.yaml", 2, "", "accepts at most 1 arg"},
		{"check -c /", 2, "", "is a directory; expected a configuration"},
		{"schema oracle", 2, "", `the schema is "oracle"; expected "postgres", "sqlite" or "config"`},
		{"schema mysql", 2, "", `the database is "mysql", which is not supported yet; expected "postgres" or "sqlite"`},
		{"schema postgres sqlite", 2, "", "accepts at most 1 arg"},
		{"schema --payload xml", 2, "", `--payload is "xml"; expected "json", "jsonb" or "bytes"`},
		{"schema --table=", 2, "", `--table is ""`},
		{"demo --events -1", 2, "", "--events is -1 and --rate is 0; expected 0 or more"},
		{"demo --events many", 2, "", `--events is "many"; expected a number`},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			do(t, nil, strings.Fields(c.args)...).want(t, c.code, c.stdout, c.stderr)
		})
	}
}

func TestConfigFromEnvironment(t *testing.T) {
	t.Parallel()
	env := "RELAY_CONFIG=" + write(t, onePipeline("here", "postgres://app@db/app", "stdout:"))
	do(t, []string{env}, "check").want(t, 0, "ok  here: postgres://***@db/app", "")
	other := write(t, onePipeline("there", "postgres://app@db/app", "stdout:"))
	do(t, []string{env}, "check", "-c", other).want(t, 0, "ok  there: ", "")
	do(t, []string{env}, "check", other).want(t, 0, "ok  there: ", "")
	do(t, nil, "check", "-c", other, "/second.yaml").want(t, 2, "", "the configuration is "+other+" and /second.yaml; expected one file")
}

// Without a flag the configuration is relay.yaml in the working directory.
func TestConfigInTheWorkingDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "relay.yaml"), []byte(onePipeline("here", "postgres://app@db/app", "stdout:")), 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := startProgram(t, nil, "sh", "-c", "cd "+dir+" && exec "+self+" check")
	if code := r.exit(); code != 0 || !strings.Contains(r.stdout.String(), "ok  here: postgres://***@db/app") {
		t.Errorf("exit status %d: %s%s", code, r.stdout.String(), r.stderr.String())
	}
}

// Commands that talk to no sink need none of its secrets.
func TestWithoutSinks(t *testing.T) {
	t.Parallel()
	path := write(t, fmt.Sprintf(`
pipelines:
  - name: one
    source: {url: %q}
    sink:
      url: ${CRM_URL}
      headers: {Authorization: "Bearer ${CRM_TOKEN}"}
      stream: "{topic}"
    dead_letter:
      hook: {url: "https://hooks.example/${HOOK}", request: '{text: $secret.HOOK}'}
`, newDatabase(t).url))
	for _, args := range []string{"migrate", "status", "dead list", "dead replay --all", "retry", "sinks list", "verify"} {
		if r := do(t, nil, append(strings.Fields(args), "-c", path)...); r.code != 0 || r.stderr != "" {
			t.Errorf("relay %s exits with %d: %s", args, r.code, r.stderr)
		}
	}
	for _, args := range []string{"run", "check", "doctor", "preview", "verify --events 3"} {
		do(t, nil, append(strings.Fields(args), "-c", path)...).want(t, 2, "", "sink.url needs the environment variable CRM_URL, which is not set")
	}
	own := write(t, "pipelines:\n  - {name: one, source: {url: '${DB}'}, sink: {url: '${CRM_URL}'}}\n")
	if r := do(t, nil, "status", "-c", own); r.code != 2 || strings.Contains(r.stderr, "CRM_URL") || !strings.Contains(r.stderr, "source.url needs the environment variable DB") {
		t.Errorf("got %d: %s", r.code, r.stderr)
	}
}
