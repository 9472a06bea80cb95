package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

func (a *app) schemaCommand() *cobra.Command {
	var table, payload string
	c := &cobra.Command{
		Use:   "schema [postgres|sqlite]",
		Short: "Print the DDL of the relay's tables",
		Long: `Schema prints the DDL of the relay's tables, for PostgreSQL when no database is
named. It can be run again without harm, and never drops anything.`,
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
	c.Flags().StringVar(&payload, "payload", "json", "what a payload is: json or bytes")
	return c
}

// schema is the DDL for a database.
func schema(database, table, payload string) (string, error) {
	if payload != "json" && payload != "bytes" {
		return "", usage("--payload is %q, json or bytes was expected", payload)
	}
	if table == "" {
		return "", usage("--table is empty, a name like outbox_events was expected")
	}
	switch database {
	case "postgres":
		return postgres.Schema(postgres.SchemaConfig{Table: table, Bytes: payload == "bytes"})
	case "sqlite":
		return sqlite.Schema(sqlite.SchemaConfig{Table: table, Bytes: payload == "bytes"})
	case "mysql":
		return "", usage("mysql is not there yet, postgres or sqlite was expected")
	}
	return "", usage("there is no schema for %q, postgres or sqlite was expected", database)
}
