package cli

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"
)

// schema.sql in the root is the PostgreSQL schema.
func TestSchemaFile(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile("../../schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	if r := do(t, nil, "schema", "postgres"); r.stdout != string(file) || r.code != 0 {
		t.Error("schema.sql is out of date: go run ./cmd/relay schema postgres > schema.sql")
	}
}

func TestSchema(t *testing.T) {
	t.Parallel()
	do(t, nil, "schema").want(t, 0, "payload    json NOT NULL", "")
	do(t, nil, "schema", "postgres", "--payload", "jsonb").want(t, 0, "payload    jsonb NOT NULL,\n    headers    jsonb CHECK (jsonb_typeof(headers) = 'object')", "")
	do(t, nil, "schema", "postgres", "--payload", "bytes").want(t, 0, "payload    bytea NOT NULL", "")
	do(t, nil, "schema", "postgres", "--table", "app.events").want(t, 0, `CREATE TABLE IF NOT EXISTS "app"."events" (`, "")
	do(t, nil, "schema", "sqlite").want(t, 0, "AUTOINCREMENT", "")
	do(t, nil, "schema", "sqlite", "--payload", "bytes").want(t, 0, "BLOB NOT NULL", "")
	do(t, nil, "schema", "sqlite", "--payload", "jsonb").want(t, 2, "", `--payload is "jsonb"; expected "json" or "bytes"`)
	do(t, nil, "schema", "config", "--payload", "json").want(t, 2, "", `--payload is used with config; expected it with postgres or sqlite`)
	do(t, nil, "schema", "oracle").want(t, 2, "", `the schema is "oracle"; expected "postgres", "sqlite" or "config"`)
	var schema struct{ Title string }
	if err := json.Unmarshal([]byte(do(t, nil, "schema", "config").stdout), &schema); err != nil || schema.Title != "relay.yaml" {
		t.Errorf("the schema of the configuration has the title %q (%v)", schema.Title, err)
	}
	for _, database := range []string{"postgres", "sqlite"} {
		if ddl := do(t, nil, "schema", database).stdout; regexp.MustCompile(`(?i)\bdrop\b`).MatchString(ddl) {
			t.Errorf("the schema of %s has a DROP", database)
		}
	}
}
