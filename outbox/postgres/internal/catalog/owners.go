package catalog

import (
	"context"
	_ "embed"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// ownersSQL runs with pg.SearchPath.
//
//go:embed owners.sql
var ownersSQL string

// Objects are what the relay uses, by quoted names. Their code (triggers, defaults and the like) runs with the relay's
// rights, so their owners must be trusted: the role itself, one that it is a member of, a superuser, and the owners of
// the schema and of the database.
type Objects struct {
	Relations, Functions []string
	// Guarded are the relations that only the relay uses: they may call no function of an owner who is not trusted.
	Guarded []string
	// Trusted are relations whose owners are trusted too.
	Trusted []string
}

// AddForeign adds the objects that an owner who is not trusted made.
func (f *Findings) AddForeign(ctx context.Context, db *pg.DB, o Objects) error {
	return db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {
		SQL: ownersSQL, Args: []string{array(o.Relations), array(o.Functions), array(o.Guarded), array(o.Trusted)},
		Row: func(v [][]byte) error {
			f.addForeign(string(v[1]), string(v[2]), string(v[3]), string(v[4]))
			return nil
		},
	}})
}

// AddForeignTx is AddForeign in a transaction whose search path is pg.SearchPath.
func (f *Findings) AddForeignTx(ctx context.Context, tx pgx.Tx, o Objects) error {
	rows, err := tx.Query(ctx, ownersSQL, list(o.Relations), list(o.Functions), list(o.Guarded), list(o.Trusted))
	if err != nil {
		return err
	}
	var rank, object, verb, owner, role string
	_, err = pgx.ForEachRow(rows, []any{&rank, &object, &verb, &owner, &role}, func() error {
		f.addForeign(object, verb, owner, role)
		return nil
	})
	return err
}

func (f *Findings) addForeign(object, verb, owner, role string) {
	fix := "look at it, and drop it unless " + owner + " made it for the relay"
	if verb == "belongs" {
		fix += "; otherwise ALTER " + object + " OWNER TO the role that runs relay migrate"
	}
	f.Add(object+" "+verb+" to "+owner+", whose code would run with the rights of "+role+
		" and of applications; expected the role that runs relay migrate, a superuser, or the owner of the schema or database", fix)
}

// list is never NULL.
func list(names []string) []string { return append([]string{}, names...) }

func array(names []string) string {
	var a pg.Array
	for _, n := range names {
		a.Append([]byte(pg.Text(n)))
	}
	return a.String()
}
