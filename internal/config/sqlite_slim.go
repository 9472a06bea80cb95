//go:build slim

package config

import (
	"context"
	"errors"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// sqliteMissing is why this build cannot open a SQLite database.
var sqliteMissing = errors.New("is a SQLite database, and this relay was built without SQLite (-tags slim); expected postgres://user:password@host/database")

func (*Pipeline) openSQLite(string) (buffer.Buffer, error) { return nil, sqliteMissing }

func (*Pipeline) migrateSQLite(context.Context) ([]string, error) { return nil, sqliteMissing }
