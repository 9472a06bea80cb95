package jq

import (
	"fmt"
	"strings"
	"testing"
)

func TestSecrets(t *testing.T) {
	t.Parallel()
	secrets := map[string]string{"KEY": `a"b\c`, "file:/run/secrets/x": "from a file"}
	for program, want := range map[string]string{
		`{k: $secret.KEY}`: `{"k":"a\"b\\c"}`,
		`[$secret["file:/run/secrets/x"], $secret."KEY"]`: `["from a file","a\"b\\c"]`,
		`"key=\($secret.KEY)"`:                            `key=a"b\c`,
		`def f: $secret.KEY; [1] | map(f)`:                `["a\"b\\c"]`,
		`$secret.KEY | length`:                            `5`,
	} {
		p, err := Compile(program, secrets)
		if err != nil {
			t.Errorf("%s: %v", program, err)
			continue
		}
		t.Cleanup(p.Close)
		got, err := p.Request(t.Context(), []byte("null"), JSON)
		if err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v; want %s", program, got, err, want)
		}
	}
	for program, want := range map[string]string{
		`$secret`:                           "without the name of a secret",
		`$secret[.name]`:                    "without the name of a secret",
		`$secret["\(.name)"]`:               "without the name of a secret",
		`$secret | keys`:                    "without the name of a secret",
		`{$secret}`:                         "is all secrets",
		`. as $secret | $secret.KEY`:        "another value",
		`. as {a: $secret} | 1`:             "another value",
		`def f($secret): $secret.KEY; f(1)`: "another value",
		`$ENV.KEY`:                          "expected $secret.NAME",
		`[.[] | env.KEY]`:                   "expected $secret.NAME",
		`$secret.OTHER`:                     "$secret has no OTHER",
	} {
		if _, err := Compile(program, secrets); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "a\"b") {
			t.Errorf("%s: got %v; want %q", program, err, want)
		}
	}
}

func ExampleSecrets() {
	fmt.Println(Secrets(`{key: $secret.API_KEY, events: .events}`))
	// Output: [API_KEY] <nil>
}
