package custom

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/projection"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// projecting is one run of the projection. It runs after the claim has committed, so that no lock is
// held meanwhile, in a transaction that can write nothing. The statement has one snapshot, from after its locks: to an older
// one, a table that a migration has rewritten is empty (https://www.postgresql.org/docs/current/mvcc-caveats.html). Its session prints
// times the same way wherever the relay runs, and has the search path that was checked; see checkPlanters.
//
// A leased batch is returned even if its projection fails: Lease.ProjectErr and Lease.Rejected say
// why. An error would leave it to its lease, and a batch that was left so several times
// counts as one that kills its workers.
type projecting struct {
	// The events, in id order once they are sorted, and their bytes.
	pg.EventDecoder
	table *Table
	// groupID is what the events carry. A batch of one of several sinks has some of those.
	groupID, batchID uuid.UUID
	shared           bool // other batches may have events of this one
	onlyTopics       bool // payload and headers are checked, and only what is matched is kept
	// The ids of events that the projection names by another key.
	uuids map[uuid.UUID]int64
	names map[string]int64

	// leased: the lease of the batch is committed.
	leased bool
	// limit is how long it may take; 0: as long as a short statement. byLease: it is half of the lease.
	limit   time.Duration
	byLease bool
	columns projection.Columns
	payload projection.PayloadKind
	rows    *projection.Rows
	topic   *string // the last one
	ran     bool
	err     error // the first reason why the whole projection fails
	notRead error // why the rows could not be read
}

func (t *Table) newProjecting(groupID uuid.UUID) *projecting {
	return &projecting{table: t, groupID: groupID, batchID: groupID, names: map[string]int64{}}
}

// of says which batch it is.
func (p *projecting) of(batch *buffer.Lease) {
	p.groupID, p.batchID, p.shared = batch.GroupID, batch.GroupID, batch.ClaimID != uuid.Nil
	if p.shared {
		p.groupID = batch.ClaimID
	}
}

// within limits the projection to half of the lease, because the batch is sent in the rest, and to the
// caller's deadline.
func (p *projecting) within(ctx context.Context, lease time.Duration) *projecting {
	p.limit, p.byLease = lease/2, true
	if end, bounded := ctx.Deadline(); bounded {
		if left := time.Until(end) * 9 / 10; left < p.limit {
			p.limit, p.byLease = left, false
		}
	}
	p.limit = max(p.limit.Truncate(time.Millisecond), time.Millisecond)
	return p
}

// projectSteps are the steps of the projection, in a transaction of its own.
func (t *Table) projectSteps(p *projecting) []pg.Step {
	if p.limit == 0 {
		p.limit = t.Base.DB.StatementTimeout
	}
	settings := []string{
		"lock_timeout", pg.Milliseconds(max(min(p.limit, t.Base.DB.StatementTimeout)*2/3, time.Millisecond)),
		"TimeZone", "UTC", "DateStyle", "ISO, YMD", "bytea_output", "hex", "extra_float_digits", "1", "IntervalStyle", "postgres",
	}
	project := t.project
	if p.shared {
		project, settings = t.projectShared, append(settings, "relay.batch", p.batchID.String())
	}
	begin := t.Base.DB.UserTx(p.limit, t.path, settings...)
	begin.Row = func([][]byte) error {
		p.begin()
		return nil
	}
	return []pg.Step{
		{SQL: "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY"},
		begin,
		{SQL: project, Args: []string{p.groupID.String()}, UserSQL: true, Columns: p.readColumns, Row: p.readRow},
		// Not COMMIT: a function that the projection calls may set session parameters, or the role, for the statements that follow on
		// this connection. A rollback takes that back.
		{SQL: "ROLLBACK"},
	}
}

// begin is called when the steps before the projection have committed.
func (p *projecting) begin() {
	p.leased = true
	p.sort()
	p.rows = projection.NewRows(p.Events, p.table.topic)
}

// project runs steps that end with those of the projection.
func (t *Table) run(ctx context.Context, p *projecting, steps []pg.Step) error {
	for n := 0; ; n++ {
		began := time.Now()
		late, err := t.roundTrip(ctx, p, steps)
		switch {
		case err == nil:
		case p.leased && errors.Is(err, buffer.ErrTooLarge):
			p.notRead = buffer.ErrTooLarge
		case p.leased && ctx.Err() == nil && (late || p.Fitted() > 0 && time.Since(began) >= p.limit):
			p.notRead = fmt.Errorf("%w: %d of them in %v", buffer.ErrSlowRead, p.Fitted(), p.limit)
		case p.leased && ctx.Err() == nil && breaks(err): // perhaps one of the rows does that: see delivery
			p.notRead = projection.OneLine(projection.Unavailable(t.Base.DB.ConnectError(err)))
		case p.leased:
			p.fail(p.classify(t.Base.DB.ConnectError(err), time.Since(began)))
		case n == pg.MaxRetries || !slices.Contains([]string{pg.CodeDeadlock, pg.CodeSerialization}, pg.Code(err)):
			return err
		default: // all of it was rolled back
			continue
		}
		break
	}
	p.ran = true
	if p.err != nil || p.notRead != nil {
		for i := range p.Events {
			e := &p.Events[i]
			*e = outbox.Event{ID: e.ID, UUID: e.UUID, Topic: t.topic, CreatedAt: e.CreatedAt}
		}
	}
	return nil
}

// breaks reports whether the server, or the connection to it, failed at the projection: a row that is damaged, or one that needs more memory than there
// is, does that each time.
func breaks(err error) bool {
	c := pg.Code(err)
	return c == "" && !errors.Is(err, pg.ErrPrepared) ||
		slices.ContainsFunc([]string{codeNoMemory, codeCrash, "58", "XX"}, func(class string) bool { return strings.HasPrefix(c, class) })
}

// A server that is shut down, whose disk is full, or that cannot reach another one, says nothing of the rows.
const (
	codeNoMemory = "53200"
	codeCrash    = "57P02"
)

// readGrace is how much later than the server the client stops a projection: its rows are on the way.
const readGrace = time.Second

// roundTrip runs the steps. late reports that the server did not stop the projection in time: it waits for a
// slow line, for example.
func (t *Table) roundTrip(ctx context.Context, p *projecting, steps []pg.Step) (late bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.Base.DB.StatementTimeout+p.limit+readGrace)
	defer cancel()
	err = t.Base.DB.RoundTrip(ctx, steps)
	return ctx.Err() != nil, err
}

func (p *projecting) fail(err error) {
	if p.err == nil {
		p.err = projection.OneLine(err)
	}
}

// classify returns the error of a projection that did not end.
func (p *projecting) classify(err error, took time.Duration) error {
	switch c := pg.Code(err); {
	case c == pg.CodeCancelled && took >= p.limit && p.byLease:
		return p.withIndexFix(projection.TookTooLong(p.limit))
	case c == pg.CodeCancelled && took >= p.limit:
		return p.withIndexFix(fmt.Errorf("source.project did not end within %v; add an index for what it looks up, or use a smaller batch_size", p.limit))
	case c == pg.CodeCancelled || !pg.IsStatementError(err):
		return projection.Unavailable(err)
	case strings.HasPrefix(c, "22"), strings.HasPrefix(c, "21"): // a value, or a subquery with several rows
		return projection.EventData(projection.Failed(err))
	}
	return projection.Failed(err)
}

// withIndexFix adds to err how a projection by group_id alone finds its rows without reading the whole table.
func (p *projecting) withIndexFix(err error) error {
	if p.table.expands {
		return err
	}
	return fmt.Errorf("%w; write FROM %s e in source.project, or CREATE INDEX CONCURRENTLY ON %s (group_id) WHERE group_id IS NOT NULL", err, projection.Events, p.table.tables.Events)
}

func (p *projecting) readColumns(fields []pgconn.FieldDescription) {
	var err error
	if p.columns, err = projection.Find(columnNames(fields), projection.SameName); err != nil {
		p.fail(err)
		return
	}
	switch fields[p.columns[projection.Payload]].DataTypeOID {
	case pg.OIDJSONB, pg.OIDJSON:
		p.payload = projection.JSON
	case pg.OIDText, pg.OIDVarchar, pg.OIDBpchar, pg.OIDName, pg.OIDUnknown:
		p.payload = projection.Text
	case pg.OIDBytea:
		p.payload = projection.Bytes
	default:
		p.fail(fmt.Errorf("source.project returns column payload of another type; expected %s (write to_jsonb(...) AS payload)", expectedTypes[projection.Payload]))
	}
}

// readRow reads a row of the projection. Its values are texts, of any type.
func (p *projecting) readRow(v [][]byte) error {
	if p.err != nil {
		return nil
	}
	column := func(at int) []byte {
		if p.columns[at] < 0 {
			return nil
		}
		return v[p.columns[at]]
	}
	name := column(projection.ID)
	if name == nil {
		p.fail(projection.ErrNullID)
		return nil
	}
	i, found := p.find(name)
	switch {
	case found:
	case p.shared: // another sink's
		return nil
	default:
		p.fail(projection.ForeignID(fmt.Sprintf("%q", name), "$1"))
		return nil
	}
	size := 0
	for _, value := range v {
		size += len(value)
	}
	keep := p.Copy
	if p.onlyTopics {
		size, keep = 0, func(value []byte) []byte { return value }
	}
	if err := p.fit(size); err != nil {
		return err
	}
	row := projection.Row{Kind: p.payload}
	switch payload := column(projection.Payload); {
	case payload == nil:
	case p.payload == projection.Bytes && !p.onlyTopics:
		row.Payload = make([]byte, hex.DecodedLen(len(payload)-len(`\x`)))
		_, row.Err = hex.Decode(row.Payload, payload[len(`\x`):])
	default:
		row.Payload = keep(payload)
	}
	if topic := column(projection.Topic); topic != nil {
		if p.topic == nil || *p.topic != string(topic) {
			text := string(topic)
			if p.onlyTopics {
				text = strings.Clone(buffer.TopicStart(text))
			}
			p.topic = &text
		}
		row.Topic = p.topic
	}
	if key := column(projection.Key); key != nil {
		text := string(key)
		row.Key = &text
	}
	if headers := column(projection.Headers); headers != nil {
		row.Headers = keep(headers)
	}
	if created := column(projection.CreatedAt); created != nil {
		var ok bool
		if row.CreatedAt, ok = parseTime(created); !ok {
			row.Err = projection.WrongType(projection.CreatedAt, fmt.Sprintf("%q", created), "timestamptz")
		}
	}
	p.rows.Add(i, &row)
	if p.onlyTopics {
		p.Events[i].Key, p.Events[i].Payload, p.Events[i].Headers = nil, nil, nil
	}
	return nil
}

// fit counts the bytes of a row. A single event always fits.
func (p *projecting) fit(n int) error {
	if len(p.Events) < 2 {
		return nil
	}
	return p.Fit(n)
}

// find returns the index of the event that the projection names.
func (p *projecting) find(name []byte) (i int, found bool) {
	var id int64
	switch {
	case p.uuids != nil:
		key, err := uuid.ParseBytes(name)
		if id, found = p.uuids[key]; err != nil || !found {
			return 0, false
		}
	case len(p.names) > 0:
		if id, found = p.names[string(name)]; !found {
			return 0, false
		}
	default:
		var err error
		if id, err = strconv.ParseInt(string(name), 10, 64); err != nil {
			return 0, false
		}
	}
	return p.rows.Find(id)
}

// findID returns the index of the event with this custom_id.
func (p *projecting) findID(text []byte) (i int, found bool) {
	if !p.table.Numbered() {
		return p.find(text)
	}
	id, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return 0, false
	}
	return p.rows.Find(id)
}

// parseTime parses a timestamp or timestamptz; the zero time stands for an infinite one. Years that Go does not have are those of pg.ReadTime.
func parseTime(text []byte) (at time.Time, ok bool) {
	switch {
	case bytes.HasSuffix(text, []byte("infinity")):
		return time.Time{}, true
	case bytes.HasSuffix(text, []byte(" BC")):
		return pg.Earliest, true
	case bytes.IndexByte(text, '-') > len("9999"):
		return pg.Latest, true
	}
	for _, layout := range []string{"2006-01-02 15:04:05.999999Z07:00", "2006-01-02 15:04:05.999999Z07", "2006-01-02 15:04:05.999999"} {
		if at, err := time.Parse(layout, string(text)); err == nil {
			return at.UTC(), true
		}
	}
	return time.Time{}, false
}

// readUnprojected fills in the rows of the events that the projection did not return. If that fails, the
// batch is returned all the same: a dead letter has the row anyway.
func (t *Table) readUnprojected(ctx context.Context, p *projecting) {
	if p.err != nil || p.notRead != nil {
		return
	}
	missing := p.rows.MissingIDs()
	if len(missing) == 0 {
		return
	}
	for _, id := range missing {
		if i, found := p.rows.Find(id); found {
			p.Events[i].Payload = []byte("null") // if its row is gone too
		}
	}
	//nolint:errcheck // see above
	t.Base.DB.Transact(ctx, pg.ReadTx(min(t.Base.DB.StatementTimeout, p.limit), pg.PlanGeneric...), pg.Step{
		SQL: t.tables.SQL(rowsSQL), Args: []string{p.groupID.String(), t.finds(p.Events, missing)}, Row: func(v [][]byte) error {
			if i, found := p.findID(v[0]); found && p.rows.Missing(i) {
				p.Events[i].Payload = slices.Clone(v[1])
			}
			return p.fit(len(v[1]))
		},
	})
}
