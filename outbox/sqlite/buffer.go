package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/routing"
	"github.com/outboxrelay/relay/outbox/internal/scanwindow"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/watermark"
)

// Buffer is a buffer table in a SQLite file. It implements buffer.Buffer; its methods are safe for
// concurrent use, and by several processes.
type Buffer struct {
	ledger
	config Config
	file   string
	follow *db.Follower
	db     *sql.DB
	cursor *watermark.Cursor
	window scanwindow.Window
	// mode is the stored form of the mode in which this relay claims; nil before it has seen the file.
	mode   atomic.Pointer[string]
	routes routes
	// delayed is for status alone.
	delayed delayedCount
	events  eventTable
	upkeep  tableUpkeep
	// replaced is when another file was opened in place of the first one; nil: never. It changes only between the
	// transactions of db, which has one connection.
	replaced atomic.Pointer[time.Time]
	log      atomic.Pointer[slog.Logger] // may be nil
}

// SetLog sets where the buffer warns that its file was replaced. Without it the buffer logs nothing.
func (b *Buffer) SetLog(log *slog.Logger) { b.log.Store(log) }

// Open prepares a buffer; it does not touch the file. The error is about the configuration.
func Open(c Config) (*Buffer, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	file, err := db.File(c.URL)
	if err != nil {
		return nil, err
	}
	b := newBuffer(c, file)
	b.db = b.follow.Open("rw", 1, b.opened(), c.pragmas()...)
	b.db.SetMaxOpenConns(1)
	if c.Custom.Is() {
		custom := newCustomTable(b)
		b.events, b.upkeep = custom, custom
	}
	return b, nil
}

// opened returns a function that is called with the generation of the file whenever a connection is opened. Another file
// has other events: what is remembered is forgotten.
func (b *Buffer) opened() func(generation int64) {
	var last int64
	return func(generation int64) {
		if last != 0 && generation != last {
			now := time.Now()
			b.replaced.Store(&now)
			b.cursor.Restart()
			if log := b.log.Load(); log != nil {
				log.Warn("SQLite file was replaced, the relay reads the new one; batches in flight are not settled, and their events are sent again "+
					"if the new file has them; stop the relay before a restore, and run relay verify now", "file", b.file)
			}
		}
		last = generation
	}
}

// fence returns ErrLeaseLost for a batch that was leased in the file that was here before. In a backup of it there may be
// the same batch; it belongs to the process that takes it over.
func (b *Buffer) fence(batch *buffer.Lease) error {
	if at := b.replaced.Load(); at != nil && batch.ClaimedLocal.Before(*at) {
		return buffer.ErrLeaseLost
	}
	return nil
}

// newBuffer returns a buffer on the relay's own table, without a connection.
func newBuffer(c Config, file string) *Buffer {
	b := &Buffer{config: c, file: file, follow: db.NewFollower(file), cursor: watermark.NewCursor(), routes: routes{open: routing.NewOpenRows()}}
	b.ledger = ledger{b, c.Table, singleSink}
	if c.Sinks != nil {
		b.sink = buffer.Unrouted
	}
	own := &relayTable{b: b, names: names(c.Table, c.Archive)}
	b.events, b.upkeep = own, own
	return b
}

// Close closes the connections after the calls under way have finished.
func (b *Buffer) Close() error { return errors.Join(b.upkeep.close(), b.db.Close()) }

// names fills the tables' names into a statement written with the default ones.
func names(table, archive string) *strings.Replacer {
	return strings.NewReplacer(defaultTable, db.Quote(table), defaultArchive, db.Quote(archive), "archived_at_index", db.Quote(archive+"_archived_at"), "delayed_index", db.Quote(delayedIndex(table)))
}

// write runs act in a transaction that may write from its first statement on. If it fails nothing has
// happened or, if the context ended during the commit, all of it.
func (b *Buffer) write(ctx context.Context, doing string, act func(tx transaction) error) error {
	return b.explain(ctx, doing, b.begin(ctx, b.db, nil, act))
}

var readOnly = &sql.TxOptions{ReadOnly: true}

// read runs act in a transaction with one snapshot, which locks nothing.
func (b *Buffer) read(ctx context.Context, doing string, act func(tx transaction) error) error {
	return b.explain(ctx, doing, b.begin(ctx, b.db, readOnly, act))
}

func (b *Buffer) begin(ctx context.Context, on *sql.DB, options *sql.TxOptions, act func(tx transaction) error) error {
	if err := b.follow.Check(); err != nil && b.follow.Generation() > 0 { // before that SQLite says what is wrong
		return err
	}
	generation := b.follow.Generation()
	endTurn, err := db.Turn(ctx)
	if err != nil {
		return err
	}
	defer endTurn()
	tx, err := on.BeginTx(ctx, options)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit it does nothing, before it the error is known
	t := transaction{tx: tx, generation: generation}
	if err := b.upkeep.begin(ctx, &t); err != nil {
		return err
	}
	if err := act(t); err != nil {
		return err
	}
	return tx.Commit()
}

// transaction fills in the names.
type transaction struct {
	tx    *sql.Tx
	names *strings.Replacer
	shape *shape // of a custom table; otherwise nil
	// generation is that of the file, or one before.
	generation int64
}

func (t transaction) exec(ctx context.Context, statement string, args ...any) (rows int64, err error) {
	result, err := t.tx.ExecContext(ctx, t.names.Replace(statement), args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (t transaction) row(ctx context.Context, statement string, args ...any) *sql.Row {
	return t.tx.QueryRowContext(ctx, t.names.Replace(statement), args...)
}

func (t transaction) rows(ctx context.Context, statement string, args ...any) (*sql.Rows, error) {
	return t.tx.QueryContext(ctx, t.names.Replace(statement), args...)
}

// errNothing ends a transaction that found nothing to do.
var errNothing = errors.New("nothing to do")

// explain adds what was being done. If something may be missing, the error is that of Check, which
// says what, and how to get it.
func (b *Buffer) explain(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	switch db.Code(err) {
	case sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_READONLY:
		if checkErr := b.Check(ctx); errors.Is(checkErr, buffer.ErrNotReady) {
			err = checkErr
		}
	case sqlite3.SQLITE_FULL:
		err = b.unusable(err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}
