package cli

import (
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
		{"doctor", 2, "", "the configuration file is not set"},
		{"dead", 0, "relay dead list -c relay.yaml", ""},
		{"dead lits", 2, "", `unknown command "lits"`},
		{"run --colour", 2, "", "unknown flag: --colour"},
		{"run relay.yaml", 2, "", `unknown command "relay.yaml" for "relay run"`},
		{"run -c", 2, "", "flag needs an argument"},
		{"run", 2, "", "the configuration file is not set; expected -c relay.yaml or RELAY_CONFIG=relay.yaml"},
		{"status -c /nowhere/relay.yaml", 2, "", "file /nowhere/relay.yaml does not exist"},
		{"check /nowhere/relay.yaml", 2, "", "file /nowhere/relay.yaml does not exist"},
		{"check a.yaml b.yaml", 2, "", "accepts at most 1 arg"},
		{"check -c /", 2, "", "is a directory; expected a configuration"},
		{"schema oracle", 2, "", `the database is "oracle"; expected "postgres" or "sqlite"`},
		{"schema mysql", 2, "", `the database is "mysql", which is not supported yet; expected "postgres" or "sqlite"`},
		{"schema postgres sqlite", 2, "", "accepts at most 1 arg"},
		{"schema --payload xml", 2, "", `--payload is "xml"; expected "json", "jsonb" or "bytes"`},
		{"schema --table=", 2, "", `--table is ""`},
		{"demo --events -1", 2, "", "--events is -1 and --rate is 0; expected 0 or more"},
		{"demo --events many", 2, "", "invalid argument"},
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
