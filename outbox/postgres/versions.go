package postgres

import (
	"context"
	"fmt"
	"hash/fnv"
	"regexp"
	"strings"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
)

// versions is where goose notes what was applied to a buffer: a table beside the
// ledger, because a role that owns its own schema may not create anything in the
// search path's first.
type versions struct{ database.Store }

func newVersions(c SchemaConfig) (versions, error) {
	store, err := database.NewStore(goose.DialectPostgres, pg.Ident(c.own(), versionTable(c.Table)))
	return versions{store}, err
}

// TableExists is asked instead of goose's own, which takes the quotes of a name
// for a part of it, and looks in the search path's first schema only.
func (v versions) TableExists(ctx context.Context, db database.DBTxConn) (exists bool, err error) {
	err = db.QueryRowContext(ctx, "SELECT to_regclass($1) IS NOT NULL", v.Tablename()).Scan(&exists)
	return exists, err
}

var notPlain = regexp.MustCompile(`[^a-z0-9_]+`)

// versionTable names the version table after the buffer's. What has a schema, or
// needs quotes, is told apart by a hash: two buffers may share a ledger.
func versionTable(table string) string {
	schema, name := pg.SplitTable(table)
	if strings.HasPrefix(table, `"`) || strings.Contains(table, `."`) { // one table, however it is written
		table = strings.TrimPrefix(schema+"."+name, ".")
	}
	plain := notPlain.ReplaceAllString(strings.ToLower(name), "_")
	if table != "" && plain != table {
		sum := fnv.New32a()
		sum.Write([]byte(table)) // a hash never fails
		plain = fmt.Sprintf("%.40s_%08x", plain, sum.Sum32())
	}
	return plain + "_migrations"
}
