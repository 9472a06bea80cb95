package cli

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/sink/pgsink"
)

func (a *app) schemaCommand() *cobra.Command {
	var table, payload, inbox string
	c := &cobra.Command{
		Use:   "schema [postgres|sqlite|config]",
		Short: "Print the DDL of the relay's tables, or the JSON Schema of the configuration",
		Long: `Schema prints the DDL of the relay's tables, for PostgreSQL by default. The DDL is
idempotent and never drops anything. With --inbox it prints the table of a PostgreSQL sink
(postgres://.../database?table=NAME), which migrate does not create.

With config, it prints a JSON Schema of relay.yaml, by which editors complete and
check the file.`,
		Example: `  relay schema postgres | psql "$DATABASE_URL"
  relay schema postgres --payload bytes --table app.outbox_events
  relay schema --inbox inbox | psql "$INBOX_URL"
  relay schema config > relay.schema.json`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: []string{"postgres", "sqlite", "config"},
		RunE: func(c *cobra.Command, args []string) error {
			if inbox != "" {
				if _, name, ok := buffer.SplitTable(inbox); !ok || name == "" {
					return usage("--inbox is %q; expected a name like inbox or app.inbox", inbox)
				}
				_, err := io.WriteString(a.stdout, pgsink.Schema(inbox))
				return err
			}
			database := "postgres"
			if len(args) > 0 {
				database = args[0]
			}
			if database == "config" {
				return a.configSchema(c)
			}
			text, err := schema(database, table, payload)
			if err != nil {
				return err
			}
			_, err = io.WriteString(a.stdout, text)
			return err
		},
	}
	c.Flags().StringVar(&table, "table", "outbox_events", "the buffer table; may be schema.table on PostgreSQL")
	c.Flags().StringVar(&payload, "payload", "json", "the payload's type: json, jsonb (PostgreSQL) or bytes")
	c.Flags().StringVar(&inbox, "inbox", "", "print the table of a PostgreSQL sink, of this name")
	return c
}

// configSchema prints the JSON Schema of the configuration.
func (a *app) configSchema(c *cobra.Command) error {
	for _, flag := range []string{"table", "payload"} {
		if c.Flags().Changed(flag) {
			return usage("--%s is used with config; expected it with postgres or sqlite", flag)
		}
	}
	text, err := config.JSONSchema()
	if err != nil {
		return err
	}
	_, err = a.stdout.Write(text)
	return err
}

// schema returns the DDL for a database.
func schema(database, table, payload string) (string, error) {
	if table == "" {
		return "", usage(`--table is ""; expected a name like outbox_events`)
	}
	switch database {
	case "postgres":
		if payload != "json" && payload != "jsonb" && payload != "bytes" {
			return "", usage(`--payload is %q; expected "json", "jsonb" or "bytes"`, payload)
		}
		return postgres.Schema(postgres.SchemaConfig{Table: table, Payload: postgres.Payload(payload), Notify: true})
	case "sqlite":
		if payload != "json" && payload != "bytes" {
			return "", usage(`--payload is %q; expected "json" or "bytes"`, payload)
		}
		return sqliteSchema(table, payload == "bytes")
	case "mysql":
		return "", usage(`the database is "mysql", which is not supported yet; expected "postgres" or "sqlite"`)
	}
	return "", usage(`the schema is %q; expected "postgres", "sqlite" or "config"`, database)
}
