package custom

import (
	"regexp"
	"strings"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// pathSQL reads the schemas of the search path that the role has in this database. They are read when the relay looks at the table, checked, and set in each
// transaction of the projection from then on: a schema that is created later ("$user"), or another search path of the role, changes nothing. The statement
// runs with that path; see pg.SearchPath.
const pathSQL = `
SELECT pg_catalog.current_schemas(true)`

func (f *Facts) readPath(v [][]byte) error {
	f.Schemas, f.Columns = nil, nil
	pg.ReadArray(v[0], func(schema []byte) {
		if name := string(schema); !strings.HasPrefix(name, "pg_temp_") {
			f.Schemas = append(f.Schemas, name)
		}
	})
	return nil
}

// plainName is a name that needs no quotes in a search path, which has no reserved words.
var plainName = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

// path is the search path. Where it is not named, the schema of temporary tables would be the first.
func (f *Facts) path() string {
	names := make([]string, 0, len(f.Schemas)+1)
	for _, name := range f.Schemas {
		if !plainName.MatchString(name) {
			name = pg.Quote(name)
		}
		names = append(names, name)
	}
	return strings.Join(append(names, "pg_temp"), ", ")
}
