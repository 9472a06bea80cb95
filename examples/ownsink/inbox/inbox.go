// Package inbox is a sink of one's own: it copies events into a table of another PostgreSQL database, each exactly once,
// for services that read their events with SQL. Importing it registers the scheme inbox://.
package inbox

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

func init() { sink.Register("inbox", func() sink.Driver { return &driver{} }) }

// Schema makes the table inbox.
//
//go:embed inbox.sql
var Schema string

// driver has the keys of a sink in relay.yaml.
type driver struct {
	table   string
	timeout time.Duration
}

func (d *driver) Settings() []sink.Setting {
	return []sink.Setting{
		{Name: "table", Into: &d.table, Default: "inbox", Expects: "the name of a table", Check: func() error {
			if d.table == "" {
				return errors.New("it is empty")
			}
			return nil
		}, Help: "The table that events are inserted into; made from inbox.sql."},
		{Name: "timeout", Into: &d.timeout, Default: "5s", Help: "How long an INSERT may take, with the connection that it may need."},
	}
}

// Open connects to nothing: the pool connects when it is used.
func (d *driver) Open(o sink.Options) (sink.Sink, error) {
	c, err := pgxpool.ParseConfig("postgres" + strings.TrimPrefix(o.URL, "inbox"))
	if err != nil {
		return nil, fmt.Errorf("sink.url: %w; expected inbox://user:password@host/database", err)
	}
	c.MaxConns = int32(min(o.Workers, 100)) + 1 // and Check
	pool, err := pgxpool.NewWithConfig(context.Background(), c)
	if err != nil {
		return nil, err
	}
	insert := strings.Replace(insertSQL, "inbox", pgx.Identifier{d.table}.Sanitize(), 1)
	return &Sink{pool: pool, insert: insert, timeout: d.timeout, place: "INSERT INTO " + d.table}, nil
}

// Sink inserts each batch by one statement. All events are in, or none.
type Sink struct {
	pool    *pgxpool.Pool
	insert  string
	timeout time.Duration
	place   string
}

// The rows get their seq in the order of the batch. An event that was sent before has its dedupe_id in the table already.
const insertSQL = `
INSERT INTO inbox (dedupe_id, event_id, topic, key, payload, headers, created_at, group_id, dead_letter)
SELECT e.dedupe_id, e.event_id, e.topic, e.key, e.payload, e.headers, e.created_at, $8::uuid, e.dead_letter
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::timestamptz[], $9::text[])
     WITH ORDINALITY AS e (dedupe_id, event_id, topic, key, payload, headers, created_at, dead_letter, n)
ORDER BY e.n
ON CONFLICT (dedupe_id) DO NOTHING`

// Send inserts the events of the batch that the table does not have.
func (s *Sink) Send(ctx context.Context, b *buffer.Batch) error {
	n := len(b.Events)
	var (
		dedupeIDs, ids, topics = make([]string, n), make([]string, n), make([]string, n)
		keys, headers, dead    = make([]*string, n), make([]*string, n), make([]*string, n)
		payloads, createdAt    = make([][]byte, n), make([]time.Time, n)
	)
	for i := range b.Events {
		e := &b.Events[i]
		dedupeIDs[i], ids[i] = string(sink.AppendDedupeID(nil, b, i)), e.Identity()
		topics[i], keys[i], payloads[i], createdAt[i] = e.Topic, e.Key, e.Payload, e.CreatedAt
		if e.Headers != nil {
			text := string(e.Headers)
			headers[i] = &text
		}
		if d := b.DeadLetter(i); d != nil { // this batch is a dead-letter hook's
			text := string(sink.AppendDeadLetter(nil, d))
			dead[i] = &text
		}
	}
	return s.exec(ctx, dedupeIDs, ids, topics, keys, payloads, headers, createdAt, b.GroupID.String(), dead)
}

// Check runs the statement for no event: it finds a missing table, column or privilege, and adds nothing.
func (s *Sink) Check(ctx context.Context) error {
	return s.exec(ctx, []string{}, []string{}, []string{}, []*string{}, [][]byte{}, []*string{}, []time.Time{}, buffer.NewGroupID().String(), []*string{})
}

// Close waits for the connections that are in use.
func (s *Sink) Close() error { s.pool.Close(); return nil }

// Preview implements sink.Previewer, for relay preview.
func (s *Sink) Preview(_ context.Context, b *buffer.Batch) ([]sink.PreparedMessage, error) {
	m := sink.PreparedMessage{Summary: s.place}
	for i := range b.Events {
		m.Body = sink.AppendLine(m.Body, b, i)
		m.Events = append(m.Events, i)
	}
	return []sink.PreparedMessage{m}, nil
}

func (s *Sink) exec(ctx context.Context, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	_, err := s.pool.Exec(ctx, s.insert, args...)
	return classify(err)
}

// classify says what an error means for the events of the batch.
func classify(err error) error {
	if err == nil {
		return nil
	}
	var server *pgconn.PgError
	switch {
	case !errors.As(err, &server): // the connection broke, or the time was over: the commit may have happened
		return sink.MaybeAccepted(err)
	case strings.HasPrefix(server.Code, "22"), strings.HasPrefix(server.Code, "23"): // this data will never be accepted
		return sink.Permanent(err)
	}
	return sink.Unavailable(err) // no table, no privilege, full, read-only, a deadlock: waiting may help, or an operator
}
