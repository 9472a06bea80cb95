package catalog

import (
	"context"
	_ "embed"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

//go:embed onpath.sql
var onPathSQL string

// place is where the search path finds a name; its schema is "" if nowhere.
type place struct {
	schema, quoted, owner string
	// other is the next place that has another owner, if the first one's is not trusted.
	otherSchema, otherQuoted, otherOwner string
}

// ambiguous returns what is wrong if the name could mean a table of another owner.
func (p place) ambiguous(name string) Findings {
	if p.otherSchema == "" {
		return nil
	}
	var f Findings
	f.Add("table "+pg.Quote(name)+" exists in schemas "+p.quoted+" (owner "+p.owner+") and "+p.otherQuoted+" (owner "+p.otherOwner+") of the search path, with different owners",
		"name the schema: source.table: "+p.otherSchema+"."+name)
	return f
}

// onPath looks a name up along the search path.
func onPath(ctx context.Context, db *pg.DB, name string) (p place, err error) {
	err = db.RoundTrip(ctx, []pg.Step{db.OwnPathTx(db.StatementTimeout), {SQL: onPathSQL, Args: []string{name}, Row: func(v [][]byte) error {
		p = place{string(v[0]), string(v[1]), string(v[2]), string(v[3]), string(v[4]), string(v[5])}
		return nil
	}}})
	return p, err
}

// SchemaOnPathTx returns the schema of the search path that has the table, "" if none has. It is an error if the name could mean a table of another owner.
func SchemaOnPathTx(ctx context.Context, tx pgx.Tx, name string) (string, error) {
	var p place
	err := tx.QueryRow(ctx, onPathSQL, name).Scan(&p.schema, &p.quoted, &p.owner, &p.otherSchema, &p.otherQuoted, &p.otherOwner)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return p.schema, p.ambiguous(name).Err()
}
