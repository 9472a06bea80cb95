//go:build !slim

package cli

import "github.com/outboxrelay/relay/outbox/sqlite"

func sqliteSchema(table string, bytes bool) (string, error) {
	return sqlite.Schema(sqlite.SchemaConfig{Table: table, Bytes: bytes})
}
