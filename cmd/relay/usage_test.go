package main

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
		{"completion tcsh", 2, "", "completion wants one shell, bash, fish, powershell, zsh was expected"},
		{"completion", 2, "", "completion wants one shell"},
		{"chekc", 2, "", "Did you mean this?\n\tcheck"},
		{"bench", 2, "", `unknown command "bench"`},
		{"doctor", 2, "", "no configuration was named"},
		{"dead", 0, "relay dead list -c relay.yaml", ""},
		{"dead lits", 2, "", `unknown command "lits"`},
		{"run --colour", 2, "", "unknown flag: --colour"},
		{"run relay.yaml", 2, "", `unknown command "relay.yaml" for "relay run"`},
		{"run -c", 2, "", "flag needs an argument"},
		{"run", 2, "", "no configuration was named, -c relay.yaml or RELAY_CONFIG=relay.yaml was expected"},
		{"status -c /nowhere/relay.yaml", 2, "", "there is no file /nowhere/relay.yaml"},
		{"check -c /", 2, "", "is a directory, a configuration was expected"},
		{"schema oracle", 2, "", `there is no schema for "oracle", postgres or sqlite was expected`},
		{"schema mysql", 2, "", "mysql is not there yet, postgres or sqlite was expected"},
		{"schema postgres sqlite", 2, "", "accepts at most 1 arg"},
		{"schema --payload xml", 2, "", `--payload is "xml", json or bytes was expected`},
		{"schema --table=", 2, "", "--table is empty"},
		{"demo --events -1", 2, "", "numbers from 0 were expected"},
		{"demo --events many", 2, "", "invalid argument"},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			do(t, nil, strings.Fields(c.args)...).want(t, c.code, c.stdout, c.stderr)
		})
	}
}

func TestConfigurationFromTheEnvironment(t *testing.T) {
	t.Parallel()
	env := "RELAY_CONFIG=" + write(t, onePipeline("here", "postgres://app@db/app", "stdout:"))
	do(t, []string{env}, "check").want(t, 0, "ok  here: postgres://***@db/app", "")
	other := write(t, onePipeline("there", "postgres://app@db/app", "stdout:"))
	do(t, []string{env}, "check", "-c", other).want(t, 0, "ok  there: ", "")
}
