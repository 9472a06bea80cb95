package cli

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/outbox/postgres"
)

func (a *app) schemaCommand() *cobra.Command {
	var table, payload string
	c := &cobra.Command{
		Use:   "schema [postgres|sqlite]",
		Short: "Print the DDL of the relay's tables",
		Long: `Schema prints the DDL of the relay's tables, for PostgreSQL by default. The DDL is
idempotent and never drops anything.`,
		Example: `  relay schema postgres | psql "$DATABASE_URL"
  relay schema postgres --payload bytes --table app.outbox_events`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: []string{"postgres", "sqlite"},
		RunE: func(_ *cobra.Command, args []string) error {
			database := "postgres"
			if len(args) > 0 {
				database = args[0]
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
	return c
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
	return "", usage(`the database is %q; expected "postgres" or "sqlite"`, database)
}
