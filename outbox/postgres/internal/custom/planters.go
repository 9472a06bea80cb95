package custom

import (
	"context"
	_ "embed"
	"strings"

	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// A projection runs with the relay's rights, and the server finds by name what it calls: a role that may create objects in a schema that is searched can plant
// its own code there. Parsing a statement runs code already: a constant that is cast to a domain goes through the check of that domain. So who may plant, and
// what is planted, is read from the catalog before the server sees any text of the projection. Nothing is concluded from that text, except which
// schemas it may name, and whether it may run a literal.
//
//go:embed planters.sql
var plantersSQL string

// checkPlanters adds the roles that could have a setting's SQL run their code: that of the projection, or another one's that is resolved in t.Schemas.
func checkPlanters(ctx context.Context, db *pg.DB, t Facts, setting, project string, missing *catalog.Findings) error {
	var schemas pg.Array
	for _, s := range t.Schemas {
		schemas.Append([]byte(pg.Text(s)))
	}
	code, withLiterals := qualifiers(project)
	return db.RoundTrip(ctx, []pg.Step{pg.ReadTx(pg.BulkTimeout), { // it reads most of the catalog
		SQL: plantersSQL, Args: []string{t.Table.Quoted, schemas.String(), project, code, withLiterals},
		Row: func(v [][]byte) error {
			planter{by: string(v[0]), kind: string(v[1]), object: string(v[2]), holder: string(v[3]), who: string(v[4]), heir: string(v[5]), setting: setting}.addTo(missing)
			return nil
		},
	}})
}

// planter is a role that could have the projection run its code.
type planter struct {
	by           string // how: it owns a schema (OWNER), may create objects in one (CREATE), or owns an object (OBJECT)
	kind, object string // the schema or object, such as function and public.lower(text)
	holder       string // the owner, or the role that has the privilege; PUBLIC
	who          string // the planter: the holder, or a role that may become it
	heir         string // the owner of the event table
	setting      string // whose SQL runs it
}

func (p planter) addTo(missing *catalog.Findings) {
	const rights = "; it would run with the relay's rights"
	alter := "ALTER " + strings.ToUpper(p.kind) + " " + p.object + " OWNER TO " + p.heir
	switch p.by {
	case "OWNER":
		missing.Add(p.setting+" looks names up in schema "+p.object+", which belongs to "+p.holder+": "+p.who+" can create there what it calls"+rights, alter)
	case "CREATE":
		privilege := "CREATE ON SCHEMA " + p.object
		missing.Add(p.setting+" looks names up in schema "+p.object+", and "+p.who+" can create there what it calls"+rights+": "+p.holder+" has "+privilege,
			"REVOKE "+privilege+" FROM "+p.holder)
	default:
		fix := "DROP " + strings.ToUpper(p.kind) + " " + p.object + "; or look at it and, if it is meant, " + alter
		if strings.HasSuffix(p.kind, "table") || strings.HasSuffix(p.kind, "view") { // it may be another application's, with its data
			fix = "look at it; if it is meant, " + alter + "; if it is another application's, leave its schema out of the search_path of the relay's role (docs/tables.md#whose-code-a-projection-runs)"
		}
		missing.Add(p.setting+" can reach "+p.kind+" "+p.object+", which belongs to "+p.holder+": code of "+p.who+" would run with the relay's rights",
			fix)
	}
}
