package migrate

import (
	"context"
	"fmt"
	"hash/fnv"
	"regexp"
	"strings"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// versions is goose's version table. It is in the ledger's schema, because a role that owns its
// schema may not be allowed to create tables in the search path's first.
type versions struct{ database.Store }

func newVersions(c Config) (versions, error) {
	store, err := database.NewStore(goose.DialectPostgres, c.versionTable())
	return versions{store}, err
}

// TableExists replaces goose's own, which takes quotes for a part of the name and looks only in
// the search path's first schema.
func (v versions) TableExists(ctx context.Context, db database.DBTxConn) (exists bool, err error) {
	err = db.QueryRowContext(ctx, "SELECT to_regclass($1) IS NOT NULL", v.Tablename()).Scan(&exists)
	return exists, err
}

var notPlain = regexp.MustCompile(`[^a-z0-9_]+`)

// versionTable is the quoted name of the version table, made of the buffer's. Two buffers may
// share a ledger, so a name that has a schema or needs quotes gets a hash.
func (c Config) versionTable() string {
	table := c.Table
	schema, name := pg.SplitTable(table)
	if strings.HasPrefix(table, `"`) || strings.Contains(table, `."`) { // the same table with or without quotes
		table = strings.TrimPrefix(schema+"."+name, ".")
	}
	plain := notPlain.ReplaceAllString(strings.ToLower(name), "_")
	if table != "" && plain != table {
		sum := fnv.New32a()
		sum.Write([]byte(table)) // a hash never fails
		plain = fmt.Sprintf("%.40s_%08x", plain, sum.Sum32())
	}
	return pg.Ident(c.ledgerSchema(), plain+"_migrations")
}
