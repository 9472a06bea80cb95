package config

import (
	"os"
	"strings"
	"testing"
)

func TestRedactor(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		"PG": `p@ss"w/rd`, "HOOK": "https://hooks.example/services/T0/B0/s3cretpath", "API": "b3arer-t0ken", "NKEY": "SUAsecretseed",
	}
	c, err := Parse("relay.yaml", []byte(`
admin: {token: adm1n-token}
pipelines:
  - name: redis
    source: {url: "postgres://app:${PG}@db/app?sslmode=disable&sslpassword=keypass"}
    sink: {url: "redis://:c%2Fche@cache/0"}
  - name: nats
    source: {url: "postgres://app@db/other"}
    sink: {url: "nats://n4tstoken@bus", nkey: "${NKEY}"}
  - name: http
    source: {url: "sqlite:///var/lib/app.db"}
    sink: {url: "https://u:basic-pass@api.example/v1?key=qu3rykey&x=ab", headers: {Authorization: "Bearer ${API}", accept: application/json, Content-Type: application/vnd.api+json, X-Kind: cust0m-header}}
  - name: hook
    source: {url: "postgres://app@db/third"}
    sink: {url: "${HOOK}"}
  - name: oauth2
    source: {url: "postgres://app@db/fourth"}
    sink:
      url: "https://api.example/in"
      oauth2: {token_url: "https://u:t0ken-pass@auth.example/token?tenant=qu3ry-tenant", client_id: relay, client_secret: cl1ent-secret}
      proxy: "http://u:pr0xy-pass@proxy.example:3128"
      sign: {secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw}
  - name: bearer
    source: {url: "postgres://app@db/fifth"}
    sink: {url: "https://api.example/in", bearer: be4rer-token}
  - name: basic
    source: {url: "postgres://app@db/sixth"}
    sink: {url: "https://api.example/in", basic: {user: u, password: b4sic-password}}
    dead_letter: {hook: {url: "https://u:hook-pass@ops.example/?sig=hook-query", headers: {X-Key: "hook-header"}}}
`), func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err != nil {
		t.Fatal(err)
	}
	redact := c.Redactor()
	for _, secret := range []string{
		"adm1n-token", `p@ss"w/rd`, `p@ss\"w/rd`, "p%40ss%22w%2Frd", "keypass", "c/che", "c%2Fche", "n4tstoken", "SUAsecretseed",
		"basic-pass", "hook-pass", "hook-query", "hook-header", "qu3rykey", "b3arer-t0ken", "Bearer b3arer-t0ken", "cust0m-header",
		"t0ken-pass", "qu3ry-tenant", "cl1ent-secret", "pr0xy-pass", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "be4rer-token", "b4sic-password", "services/T0/B0/s3cretpath",
	} {
		if got := redact("it said " + secret + "."); got != "it said ***." {
			t.Errorf("%s becomes %q", secret, got)
		}
	}
	for text, want := range map[string]string{
		"POST " + env["HOOK"]:              "POST https://hooks.example/***",
		"POST " + env["HOOK"] + "/more":    "POST https://hooks.example/***/more",
		c.Pipelines[0].Source.URL.Reveal(): "postgres://***@db/app?***",
	} {
		if got := redact(text); got != want {
			t.Errorf("a URL becomes %q, want %q", got, want)
		}
	}
	const harmless = `application/json or application/vnd.api+json: cannot reach app at db:5432 (sslmode=disable): cache, bus, api.example/v1?x=ab, hooks.example, /var/lib/app.db`
	if got := redact(harmless); got != harmless {
		t.Errorf("the harmless text becomes %q", got)
	}
	if got := redact(c.Pipelines[0].Source.URL.Reveal()); strings.Contains(got, "p%40ss") {
		t.Errorf("the URL becomes %q", got)
	}
}

func TestRedactor_NoSecrets(t *testing.T) {
	t.Parallel()
	c := Config{Pipelines: []Pipeline{{}}}
	if got := c.Redactor()("text"); got != "text" {
		t.Errorf("the text becomes %q", got)
	}
}

// A part of a URL's path that equals a name is shown, but no password, and nothing else of the path.
func TestRedactor_Shown(t *testing.T) {
	t.Parallel()
	c, err := Parse("relay.yaml", []byte(`pipelines: [{name: p, source: {url: "sqlite:///p"}, sink: {url: "https://u:UnitPrice@api.example/v1/Ord3rEvents/tok3nAbCdEf"}}]`), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	const text = "from Ord3rEvents (UnitPrice) to v1/Ord3rEvents/tok3nAbCdEf or tok3nAbCdEf"
	if got := c.Redactor("Ord3rEvents", "UnitPrice")(text); got != "from Ord3rEvents (***) to *** or ***" {
		t.Errorf("it becomes %q", got)
	}
	if got := c.Redactor()(text); strings.Contains(got, "Ord3rEvents") {
		t.Errorf("without names it becomes %q", got)
	}
}
