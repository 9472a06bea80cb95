package console

import (
	"cmp"
	"errors"
	"strings"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// databaseError is why a database does not work.
type databaseError struct {
	text string
	// command makes what is missing; "" if something else is wrong. tables: whole tables are missing.
	command string
	tables  bool
}

func (s *Console) databaseError(err error) databaseError {
	e := databaseError{text: s.config.Redact(err.Error())}
	var missing interface {
		error
		Migrates() (command string, tables bool)
	}
	if errors.As(err, &missing) {
		e.command, e.tables = missing.Migrates()
	}
	return e
}

// databaseProblem is that of a database that does not work for a pipeline.
func (s *Console) databaseProblem(pipeline, text string, why databaseError) problem {
	of := kindProblem["database"]
	one := problem{Pipeline: pipeline, Server: s.servers[pipeline], Title: of.title, Detail: text, Alone: of.alone, Do: of.do}
	if why.command == "" {
		return one
	}
	one.Title, one.JoinedBy = "tables are out of date", why.command
	if why.tables {
		one.Title = titleNoTables
	}
	one.Alone = "Nothing is sent. The relay looks every second, and begins when the tables are there. The database answers."
	one.Do, one.Fix = "Make them, with the configuration of this relay (after a restore: check first that this is the right database):", why.command
	if !strings.HasPrefix(why.command, "relay ") {
		one.Title, one.JoinedBy = titleNoSchema, titleNoSchema
		one.Do = "Make the schema, as a role that may create one (after a restore: check first that this is the right database), then its tables with relay migrate -c relay.yaml:"
	}
	return one
}

// addDatabase remembers why the database of a pipeline does not work.
func (f *finder) addDatabase(pipeline string, err error) {
	f.databases[pipeline] = f.databaseError(err)
	if lock, ok := errors.AsType[*buffer.LockedError](err); ok && f.tableLocks[pipeline] == nil {
		f.tableLocks[pipeline] = admin.NewLockReport(lock)
	}
}

// addUnreadable says of which pipelines the status cannot be read, unless a transaction has locked a table.
func (f *finder) addUnreadable() {
	for _, e := range f.report.Errors {
		f.notReady[e.Name] = true
		why := f.databases[e.Name]
		if f.tableLocks[e.Name] != nil || f.starting[e.Name] && why.text == "" {
			continue
		}
		f.all = append(f.all, f.databaseProblem(e.Name, cmp.Or(why.text, e.Error), why)) // the former says more: which file has changed since the start
	}
}
