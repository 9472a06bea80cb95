package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// A projection is a statement of the user's. It is run when the claim is committed, so
// that nothing waits for it, with one snapshot for all of the batch, and it can write
// nothing. Its session says the same of a time wherever the relay runs.
//
// Once the batch is known to be ours it is handed out, whatever becomes of its projection:
// it stays leased, and the worker knows from Batch.ProjectErr and Event.ProjectErr whose
// doing it is. An error would leave it to its lease, and a batch that was left so some
// times is taken for one that kills its workers.
type projection struct {
	// The events, by their ids once they are sorted, and their bytes.
	pg.EventDecoder
	table   *table
	own     *own
	groupID uuid.UUID
	// The ids of events that the projection names by another key.
	uuids map[uuid.UUID]int64
	names map[string]int64

	// held: that the batch is ours is committed.
	held bool
	// limit is how long it may take; 0: as a short statement. byLease: the lease says so.
	limit   time.Duration
	byLease bool
	columns [len(projectable)]int // where they are among the columns; -1: not there
	payload payloadKind
	err     error
}

// projectable are the columns that mean something, by what they are below.
var projectable = [...]string{"id", "payload", "topic", "key", "headers", "created_at"}

const (
	columnID = iota
	columnPayload
	columnTopic
	columnKey
	columnHeaders
	columnCreatedAt
)

// payloadKind is how the projection returns a payload.
type payloadKind uint8

const (
	payloadJSON payloadKind = iota // the type vouches for it
	payloadText                    // JSON, and that is to be seen
	payloadBytes
)

func newProjection(t *table, groupID uuid.UUID) *projection {
	return &projection{table: t, own: t.own, groupID: groupID, names: map[string]int64{}}
}

// within is how long the projection may take: half of the lease, for in the rest the batch
// is to be sent, and never longer than whoever asks waits for an answer.
func (p *projection) within(ctx context.Context, lease time.Duration) *projection {
	p.limit, p.byLease = lease/2, true
	if end, bounded := ctx.Deadline(); bounded {
		if left := time.Until(end) * 9 / 10; left < p.limit {
			p.limit, p.byLease = left, false
		}
	}
	p.limit = max(p.limit.Truncate(time.Millisecond), time.Millisecond)
	return p
}

// projecting are the steps of the projection, in a transaction of its own.
func (b *Buffer) projecting(p *projection) []pg.Step {
	if p.limit == 0 {
		p.limit = b.db.StatementTimeout
	}
	begin := b.db.WriteTx(p.limit, "lock_timeout", pg.Milliseconds(max(min(p.limit, b.db.StatementTimeout)*2/3, time.Millisecond)),
		"TimeZone", "UTC", "DateStyle", "ISO, YMD", "bytea_output", "hex")
	begin.Row = func([][]byte) error {
		p.begin()
		return nil
	}
	return []pg.Step{
		{SQL: "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"},
		begin,
		{SQL: p.own.project, Args: []string{p.groupID.String()}, UserSQL: p.fields, Row: p.projected},
		{SQL: "COMMIT"},
	}
}

// begin is when what stood before is done.
func (p *projection) begin() {
	p.held = true
	p.sort()
}

// project runs steps that end with the projection's.
func (b *Buffer) project(ctx context.Context, p *projection, steps []pg.Step) error {
	for n := 0; ; n++ {
		began := time.Now()
		err := b.db.RoundTrip(ctx, steps)
		switch {
		case err == nil:
		case p.held:
			p.failed(b.db.ConnectError(err), time.Since(began))
		case n == pg.MaxRetries || !slices.Contains([]string{pg.CodeDeadlock, pg.CodeSerialization}, pg.Code(err)):
			return err
		default: // all of it was rolled back
			continue
		}
		break
	}
	p.end()
	return nil
}

// end is when all rows were read: some events may have none, or none that will do.
func (p *projection) end() {
	for i := range p.Events {
		e := &p.Events[i]
		switch {
		case p.err != nil:
			p.empty(e, nil)
		case e.ProjectErr != nil:
			p.empty(e, e.ProjectErr)
		default:
			e.NoProjection = e.Payload == nil
		}
	}
}

// empty leaves of an event what is known without the projection.
func (p *projection) empty(e *outbox.Event, why error) {
	*e = outbox.Event{ID: e.ID, UUID: e.UUID, Topic: p.own.topic, CreatedAt: e.CreatedAt, ProjectErr: why}
}

// fail keeps the first thing that is wrong with all of it, in one line.
func (p *projection) fail(format string, a ...any) {
	if p.err == nil {
		p.err = oneLine(fmt.Errorf(format, a...))
	}
}

// refuse keeps the first thing that is wrong with what is projected of one event.
func refuse(e *outbox.Event, format string, a ...any) {
	if e.ProjectErr == nil {
		e.ProjectErr = oneLine(fmt.Errorf(format, a...))
	}
}

// lineError is an error whose text is in one line.
type lineError struct{ error }

func oneLine(err error) error { return lineError{err} }

func (e lineError) Error() string { return strings.Join(strings.Fields(e.error.Error()), " ") }

func (e lineError) Unwrap() error { return e.error }

// failed is when the projection came to no end.
func (p *projection) failed(err error, took time.Duration) {
	const see = "run source.project with a group_id of table %s to see it"
	switch c := pg.Code(err); {
	case c == pg.CodeCancelled && took >= p.limit && p.byLease:
		p.fail("the projection did not end within %s, half of the lease: have an index for what it looks up, a smaller batch_size, or a longer lease", p.limit)
	case c == pg.CodeCancelled && took >= p.limit:
		p.fail("the projection did not end within %s: have an index for what it looks up, or a smaller batch_size", p.limit)
	case c == pg.CodeCancelled || !pg.IsStatementError(err):
		p.fail("%w: %w", buffer.ErrDatabaseUnavailable, err)
	case strings.HasPrefix(c, "22"), strings.HasPrefix(c, "21"): // a value, or a row too many
		p.fail("%w: %w: "+see, buffer.ErrEventData, err, p.table.events)
	default:
		p.fail("%w: "+see, err, p.table.events)
	}
}
