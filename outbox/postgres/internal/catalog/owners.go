package catalog

import (
	"context"
	_ "embed"
	"slices"
	"strings"

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

// foreign is an object that an owner who is not trusted made.
type foreign struct{ rank, object, verb, owner, role string }

const ownerSQL = `
SELECT quote_ident(pg_get_userbyid(c.relowner)), (SELECT count(*) FROM unnest($2::text[]) name WHERE to_regclass(name) IS NOT NULL)
FROM pg_class c WHERE c.oid = to_regclass($1)`

// AddForeign adds the objects that an owner who is not trusted made. Of events, the buffer, the owner is trusted; if all other relations belong to one
// other owner, it adds that once, of the buffer: it may be a table of the application.
func (f *Findings) AddForeign(ctx context.Context, db *pg.DB, o Objects, events string) error {
	var (
		found      []foreign
		relations  int64
		eventOwner string
	)
	err := db.RoundTrip(ctx, []pg.Step{
		pg.ReadTx(db.StatementTimeout),
		{SQL: ownersSQL, Args: []string{array(o.Relations), array(o.Functions), array(o.Guarded), array(o.Trusted)}, Row: func(v [][]byte) error {
			found = append(found, foreign{string(v[0]), string(v[1]), string(v[2]), string(v[3]), string(v[4])})
			return nil
		}},
		{SQL: ownerSQL, Args: []string{events, array(o.Relations)}, Row: func(v [][]byte) error {
			eventOwner, relations = string(v[0]), pg.ReadInt8(v[1])
			return nil
		}},
	})
	if err != nil || len(found) == 0 {
		return err
	}
	first, same := found[0], int64(0)
	for _, x := range found {
		if x.rank == "1" && x.owner == first.owner {
			same++
		}
	}
	if same > 1 && same == relations {
		f.Add("table "+events+" belongs to "+eventOwner+", and the relay's tables next to it to "+first.owner+", whose code would run with the rights of "+first.role+" and of applications",
			"correct source.table, if your application owns "+events+"; otherwise, if "+first.owner+" runs relay migrate, ALTER TABLE "+events+" OWNER TO "+first.owner)
		found = slices.DeleteFunc(found, func(x foreign) bool { return x.verb == "belongs" && x.owner == first.owner })
	}
	for _, x := range found {
		f.addForeign(x.object, x.verb, x.owner, x.role)
	}
	return nil
}

// AddForeignTx adds the objects that an owner who is not trusted made, in a transaction whose search path is pg.SearchPath. If one role owns all of them,
// the relay's own tables among them, it adds that once: Migrate runs as the wrong role.
func (f *Findings) AddForeignTx(ctx context.Context, tx pgx.Tx, o Objects) error {
	rows, err := tx.Query(ctx, ownersSQL, list(o.Relations), list(o.Functions), list(o.Guarded), list(o.Trusted))
	if err != nil {
		return err
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (x foreign, err error) {
		err = row.Scan(&x.rank, &x.object, &x.verb, &x.owner, &x.role)
		return x, err
	})
	if err != nil {
		return err
	}
	if ownLedger(found) {
		x := found[0]
		f.Add("the relay's tables belong to "+x.owner+", and relay migrate runs as "+x.role, "run it as "+x.owner+", which owns the relay's tables")
		return nil
	}
	for _, x := range found {
		f.addForeign(x.object, x.verb, x.owner, x.role)
	}
	return nil
}

// ownLedger reports whether all objects belong to one role, and the tables that each version of the relay has are among them.
func ownLedger(found []foreign) bool {
	core := 0
	for _, x := range found {
		if x.owner != found[0].owner {
			return false
		}
		for _, name := range []string{"outbox_batches", "outbox_dead_letters", "outbox_buffers"} {
			if x.rank == "1" && strings.HasSuffix(strings.TrimSuffix(x.object, `"`), name) && ownName(x.object) {
				core++
			}
		}
	}
	return core == 3
}

func (f *Findings) addForeign(object, verb, owner, role string) {
	fix := "look at it, and drop it unless " + owner + " made it for the relay"
	switch {
	case verb == "belongs" && !ownName(object):
		fix = "correct source.table, or archive.table, if an application uses it; if " + owner + " made it for the relay, ALTER " + object + " OWNER TO the role that runs relay migrate"
	case verb == "belongs":
		fix += "; otherwise ALTER " + object + " OWNER TO the role that runs relay migrate"
	}
	f.Add(object+" "+verb+" to "+owner+", whose code would run with the rights of "+role+
		" and of applications; expected the role that runs relay migrate, a superuser, or the owner of the schema or database", fix)
}

// ownName reports whether the name of an object, such as `table public."orders"`, is one that only the relay gives.
func ownName(object string) bool {
	return strings.HasPrefix(strings.TrimPrefix(object[strings.LastIndexAny(object, ". ")+1:], `"`), "outbox_")
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
