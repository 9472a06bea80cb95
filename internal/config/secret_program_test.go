package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestProgram_Secrets(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("fr0m-a-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"API_KEY": `a"b\(.c)pl4nted`, "PLAIN": "pl4nted-text", "NUMBER": "42", "BROKEN": "pl4nted) |"}
	parse := func(program string) (*Config, error) {
		return Parse("relay.yaml", []byte("pipelines:\n- name: p\n  source: {url: 'postgres://db/app'}\n  sink:\n    url: https://api.example/in\n    request: '"+program+"'\n"),
			func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	}
	for _, program := range []string{
		`{key: $secret.API_KEY}`, `{key: $secret["file:` + file + `"]}`, `{key: "${PLAIN}", n: ${NUMBER}}`, `{key: "x-\($secret.API_KEY)"}`,
	} {
		c, err := parse(program)
		if err != nil {
			t.Errorf("%s: %v", program, err)
			continue
		}
		for _, secret := range []string{env["API_KEY"], "fr0m-a-file", env["PLAIN"]} {
			hides := c.Redactor()("it said "+secret) == "it said ***"
			if reads := strings.Contains(program, "API_KEY") && secret == env["API_KEY"] || strings.Contains(program, "file:") && secret == "fr0m-a-file" ||
				strings.Contains(program, "PLAIN") && secret == env["PLAIN"]; hides != reads {
				t.Errorf("%s: %s is hidden: %v", program, secret, hides)
			}
		}
	}
	for program, want := range map[string]string{
		`{key: "${API_KEY}"}`:               `sink.request has ${API_KEY}, and a quote, a backslash or a line break in its value would change the program; expected $secret.API_KEY`,
		`{key: "${BROKEN}}`:                 `sink.request is invalid as expanded from ${BROKEN}; expected a jq program that reads $secret.BROKEN`,
		`{key: $secret.UNSET}`:              `sink.request reads $secret.UNSET and needs the environment variable UNSET, which is not set; set it`,
		`{key: $secret["file:/nowhere/x"]}`: `sink.request reads $secret["file:/nowhere/x"] and cannot be expanded: open /nowhere/x`,
		`{key: $secret["not a name"]}`:      `sink.request reads $secret["not a name"]; expected the name of an environment variable, or "file:/path"`,
		`{key: $secret}`:                    `expected $secret.NAME`,
		`{key: $ENV.API_KEY}`:               `expected $secret.NAME`,
	} {
		_, err := parse(program)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "pl4nted") {
			t.Errorf("%s: got %v; want %s", program, err, want)
		}
	}
}
