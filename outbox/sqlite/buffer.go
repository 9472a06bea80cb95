// Package sqlite is the embedded buffer: its statements beside its methods, its
// embedded schema, and Insert for Go applications.
//
// # One writer
//
// SQLite lets one transaction write at a time, in all processes. A deferred
// transaction that reads first and writes later may find that it can do neither
// (SQLITE_BUSY in its middle), so everything here that writes begins IMMEDIATE:
// it waits for its turn at the start, and from then on nothing stops it. With
// one writer, ids commit in the order in which they are drawn, no row is ever
// locked for itself, and a claim has the table to itself.
//
// # How events are claimed
//
// Three ways, one for all processes on a buffer: outbox_buffers says which, and it
// changes only while no batch lives. How a batch's events are found is said by its
// ledger row, so whoever has the lease can settle it.
//
// By range, which `auto` takes: a claim writes a ledger row whose members are the ids of
// the batch, and leaves the events alone. An event is written once and deleted once.
// By stamp: the claim also writes the group_id on each event. Optimistically: it reads a
// window of events without a lock, chooses a batch's worth at random, and then stamps
// what is still unclaimed of that. With one writer there is nothing to be won by it; it
// is there for what has to be the same everywhere.
//
// `order: key` stamps.
//
// # Where claims look
//
// Claims look beyond a cursor, the highest id this process has claimed, so that
// they do not walk over batches that wait. What lies beyond it and is held by a batch of
// another process's, they step over: by its stamp, or from one gap between the members
// of live batches to the next. An optimistic claim's cursor stays before the first event
// that was not chosen. Every few minutes, and at the start, a look goes back to the
// beginning, for the ids and stamps that somebody changed by hand.
//
// # Tables of the user's own
//
// A table of the user's own ([Config.Own]) has an INTEGER PRIMARY KEY and a column
// group_id, for the uuid's text or its 16 bytes, as its declared type says. Its events are
// claimed by stamp. What is sent is what the projection says when the claim has committed,
// on a connection that cannot write; a batch that is taken over is projected again. It
// finds the batch by its ids and needs no index on group_id: a common table expression of
// the table's name has those rows alone, wherever SQLite shows that the projection reads
// nothing of that name but what has the batch's group_id. What archive and dead letters
// hold is what was projected, and a letter has the row too, so that replay can put it back.
// Foreign keys are enforced for what the relay does there, although SQLite's own default
// is that they are not: rows that refer to an event go with it, or hold it back, and an
// event whose parent is gone is not put back.
//
// # Ids that are handed out again
//
// AUTOINCREMENT never does so, but a hand can set sqlite_sequence back, and there is no
// trigger that would notice. A batch by range would then hold events that came later. So
// its ledger row also says how young its youngest event was (newest_at), and one that is
// younger than that is not the batch's: it is neither deleted nor sent with it, and
// found by the next look from the beginning once the batch is gone.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	sqlite "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// The names that the statements are written with.
const (
	defaultTable   = "outbox_events"
	defaultArchive = "outbox_archive"
)

// Config says which buffer to open. URL and Pipeline are required.
type Config struct {
	// URL is sqlite:///absolute/path.db. The file is made by Migrate, not by
	// Open.
	URL string
	// Table is the buffer table, "outbox_events" when empty.
	Table string
	// Pipeline names the pipeline in batches and dead letters.
	Pipeline string
	// Owner says in the ledger who holds a lease, for people to read.
	Owner string
	// Archive is the table that delivered events are copied to as they are
	// deleted, by name as Table is; "" for none.
	Archive string
	// Claim is how events are claimed; buffer.ClaimAuto when empty.
	Claim buffer.ClaimMode
	// Ordered keeps order by key (`order: key`): no event is claimed while an earlier
	// one of its key is in a live batch.
	Ordered bool
	// Own is how events are found in a table of the user's own; zero: the table is the
	// relay's.
	Own buffer.CustomTable
	// SharedRate: TakeToken is to be called, and Check looks whether it can be.
	SharedRate bool
}

func (c Config) withDefaults() Config {
	if c.Table == "" {
		c.Table = defaultTable
	}
	if c.Claim == "" {
		c.Claim = buffer.ClaimAuto
	}
	return c
}

func (c Config) validate() error {
	if c.URL == "" || c.Pipeline == "" {
		return errors.New("sqlite buffer: URL and Pipeline are required")
	}
	if err := c.validateOwn(); err != nil {
		return err
	}
	switch c.Claim {
	case buffer.ClaimAuto, buffer.ClaimStamp:
	case buffer.ClaimOptimistic, buffer.ClaimRange:
		if c.Ordered {
			return fmt.Errorf("sqlite buffer: order by key stamps its events, and cannot claim by %q", c.Claim)
		}
	default:
		return fmt.Errorf("sqlite buffer: events cannot be claimed by %q", c.Claim)
	}
	return validTables(c.Table, c.Archive)
}

func validTables(table, archive string) error {
	if archive == "" {
		return validTable(table)
	}
	if strings.EqualFold(table, archive) {
		return fmt.Errorf("sqlite buffer: %q cannot be its own archive", table)
	}
	return errors.Join(validTable(table), validTable(archive))
}

func validTable(name string) error {
	if strings.ContainsRune(name, 0) || strings.HasPrefix(strings.ToLower(name), "sqlite_") || strings.HasSuffix(name, lettersSuffix) {
		return fmt.Errorf("sqlite buffer: %q cannot be the name of a table", name)
	}
	return nil
}

// Buffer is a buffer table in a SQLite file. Its methods are described by
// buffertest.Buffer; all are safe for concurrent use, and by several processes.
type Buffer struct {
	config Config
	file   string
	db     *sql.DB
	cursor cursor
	reach  reach
	names  *strings.Replacer
	// choose is which of n batches of a window an optimistic claim tries.
	choose func(n int) int
	// claims is the mode that this relay claims in, nil before it has seen the file.
	claims atomic.Pointer[string]
	// own is nil where the table is the relay's.
	own *own
}

// ledger is the rows of outbox_batches that say buffer, b's table or its dead
// letters.
type ledger struct {
	b      *Buffer
	buffer string
}

func (b *Buffer) ledger() ledger { return ledger{b, b.config.Table} }

// Open prepares a buffer; it does not touch the file. The error is about the
// configuration.
func Open(c Config) (*Buffer, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	file, err := fileOf(c.URL)
	if err != nil {
		return nil, err
	}
	db, err := open(file, "rw", c.pragmas()...)
	if err != nil {
		return nil, err
	}
	b := &Buffer{config: c, file: file, db: db, names: names(c.Table, c.Archive), choose: rand.IntN}
	if c.Own.Is() {
		reads, err := openWith(file, "rw", "query_only(1)")
		if err != nil {
			return nil, errors.Join(err, db.Close())
		}
		reads.SetMaxIdleConns(4)
		b.own = &own{reads: reads}
	}
	return b, nil
}

// Close closes the connections; calls under way finish first.
func (b *Buffer) Close() error {
	if b.own == nil {
		return b.db.Close()
	}
	return errors.Join(b.own.reads.Close(), b.db.Close())
}

// fileOf reads the path out of a URL.
func fileOf(rawURL string) (string, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "sqlite" || u.Host != "" || u.Opaque != "" || !path.IsAbs(u.Path) || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("sqlite buffer: %q is not a URL of the form sqlite:///absolute/path.db", rawURL)
	}
	return u.Path, nil
}

// open opens the file in mode rw, rwc (create it) or ro. One connection is all
// a file with one writer needs; in this process callers queue for it in order,
// and against other processes it waits for the lock for five seconds.
func open(file, mode string, pragmas ...string) (*sql.DB, error) {
	db, err := openWith(file, mode, pragmas...)
	if err == nil {
		db.SetMaxOpenConns(1)
	}
	return db, err
}

// openWith opens the file with more pragmas, for any number of connections.
func openWith(file, mode string, pragmas ...string) (*sql.DB, error) {
	name := url.URL{Scheme: "file", Path: file, RawQuery: url.Values{
		"mode":      {mode},
		"_txlock":   {"immediate"},
		"_dqs":      {"false"},
		"_error_rc": {"true"},
		// FULL: a claim that a power cut makes unhappen would come back under
		// another group_id after it was sent.
		"_pragma": append([]string{fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()), "synchronous(FULL)"}, pragmas...),
	}.Encode()}
	db, err := sql.Open("sqlite", name.String())
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", file, err)
	}
	return db, nil
}

// quote makes a name an identifier.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// names fills the tables' names into a statement written with the default ones.
func names(table, archive string) *strings.Replacer {
	return strings.NewReplacer(defaultTable, quote(table), defaultArchive, quote(archive))
}

// write runs act in a transaction that may write from its first statement on.
// When it fails nothing has happened or, if the context ended in mid-commit, all
// of it.
func (b *Buffer) write(ctx context.Context, doing string, act func(tx transaction) error) error {
	return b.explain(ctx, doing, b.transact(ctx, act))
}

// read runs act in a transaction of one snapshot, which locks nothing.
func (b *Buffer) read(ctx context.Context, doing string, act func(tx transaction) error) error {
	return b.explain(ctx, doing, b.begin(ctx, &sql.TxOptions{ReadOnly: true}, act))
}

func (b *Buffer) transact(ctx context.Context, act func(tx transaction) error) error {
	return b.begin(ctx, nil, act)
}

func (b *Buffer) begin(ctx context.Context, options *sql.TxOptions, act func(tx transaction) error) error {
	return b.beginOn(ctx, b.db, options, act)
}

func (b *Buffer) beginOn(ctx context.Context, db *sql.DB, options *sql.TxOptions, act func(tx transaction) error) error {
	tx, err := db.BeginTx(ctx, options)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit it does nothing, before it the error is known
	t := transaction{tx: tx, names: b.names}
	if b.own != nil {
		if t.shape, err = b.shapeOf(ctx, tx); err != nil {
			return err
		}
		t.names = t.shape.names
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
	shape *shape // of a table of the user's own, else nil
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

// explain says what was being done. When something may be missing, Check says
// what, and with which command it comes.
func (b *Buffer) explain(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	switch code(err) {
	case sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_READONLY:
		if checkErr := b.Check(ctx); errors.Is(checkErr, buffer.ErrNotReady) {
			err = checkErr
		}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// code is the primary result code of an error of SQLite's, else 0.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// timeFormat is how strftime('%Y-%m-%dT%H:%M:%fZ') writes a time.
const timeFormat = "2006-01-02T15:04:05.000Z"

// seconds is a modifier of SQLite's date functions. It rounds up: the clock
// there counts milliseconds, and a lease must not end early.
func seconds(d time.Duration) string {
	ms := (d + time.Millisecond - 1) / time.Millisecond
	return strconv.FormatFloat(float64(ms)/1000, 'f', 3, 64) + " seconds"
}

// leaseEnd is when a lease that was asked for at start is over: SQLite's clock
// drops what is less than a millisecond, so the database's end may lie that
// much earlier than the local one.
func leaseEnd(start time.Time, lease time.Duration) time.Time {
	return start.Add(lease - time.Millisecond)
}
