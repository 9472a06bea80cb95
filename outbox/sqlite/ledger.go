package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// ledger is the rows of outbox_batches of one sink of a buffer: b's table, or its dead-letter queue. Both embed
// it for the methods that change nothing else.
type ledger struct {
	b      *Buffer
	buffer string
	// sink is singleSink, buffer.Unrouted, or the name that one of several sinks has in the configuration.
	sink string
}

// sinkName is the name that the sink has now.
func (l ledger) sinkName() string {
	if known := l.b.routes.read.Load(); known != nil {
		return nameIn(known.current, l.sink)
	}
	return l.sink
}

// newLease returns the lease of a batch that is being claimed.
func (l ledger) newLease(lease time.Duration) *buffer.Lease {
	return &buffer.Lease{
		Batch:   buffer.Batch{GroupID: buffer.NewGroupID(), Pipeline: l.b.config.Pipeline},
		LeaseNo: 1, UnfinishedLeases: 1, Ends: db.LeaseEnd(time.Now(), lease),
	}
}

// leased returns the batch of a transaction that leased it; nil if it found nothing.
func leased(batch *buffer.Lease, err error) (*buffer.Lease, error) {
	if errors.Is(err, errNothing) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return batch, nil
}

const openLedgerSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, members, newest_at, claimed_at, sink)
VALUES (?1, ?2, ?3, 'leased', 1, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?4), ?5, 1,
        0, 0, ?6, ?7, ?8, ?9, ?10, ?11, coalesce(?12, strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), ?13)
RETURNING claimed_at`

// open writes the ledger row of the batch's events, by range with members, or by stamp if members is nil. times
// returns since when the event at an index waits, and when it was inserted.
func (l ledger) open(ctx context.Context, tx transaction, batch *buffer.Lease, lease time.Duration, members idset.Set, times func(i int) (waiting, created time.Time)) error {
	batch.FirstID, batch.LastID = batch.Events[0].ID, batch.Events[len(batch.Events)-1].ID
	oldest, newest := times(0)
	for i := range batch.Events {
		waiting, created := times(i)
		if waiting.Before(oldest) {
			oldest = waiting
		}
		if created.After(newest) {
			newest = created
		}
	}
	args := []any{
		batch.GroupID.String(), l.buffer, claimmode.Stamp, db.Seconds(lease), l.b.config.Owner,
		len(batch.Events), batch.FirstID, batch.LastID, oldest.Format(db.TimeFormat), nil, nil, nil, l.sinkName(),
	}
	if !batch.ClaimedAt.IsZero() {
		args[11] = batch.ClaimedAt.Format(db.TimeFormat)
	}
	if members != nil {
		args[2], args[9], args[10] = claimmode.Range, members.JSON(), newest.Format(db.TimeFormat)
	}
	var claimedAt string
	if err := tx.row(ctx, openLedgerSQL, args...).Scan(&claimedAt); err != nil {
		return err
	}
	var err error
	batch.ClaimedAt, err = time.Parse(db.TimeFormat, claimedAt)
	batch.ClaimedLocal = time.Now()
	return err
}

// suspectSQL reports whether a due batch is a suspect: see [buffer.DueSuspect].
const suspectSQL = `(unfinished_leases > 1 AND state <> 'delivered')`

// anySuspectSQL reports whether a batch is a suspect, due or not. The lease that an owner has now does not count.
const anySuspectSQL = `(unfinished_leases > CASE WHEN state = 'leased' AND due_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') THEN 2 ELSE 1 END
    AND state <> 'delivered')`

// unsentSQL reports whether no worker has leased a batch, nor one that it was a part of, since it was put into the queue of its sink.
const unsentSQL = `(state = 'waiting' AND lease_no = 0 AND origins = '[]')`

const takeOverSQL = `
UPDATE outbox_batches
SET state = CASE state WHEN 'waiting' THEN 'leased' ELSE state END,
    lease_no = lease_no + 1, unfinished_leases = unfinished_leases + 1, owner = ?1,
    due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?2)
WHERE group_id = coalesce(?4, (
  SELECT group_id FROM outbox_batches
  WHERE buffer = ?3 AND sink = ?6 AND claim IN ('stamp', 'range') AND due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
    AND ` + suspectSQL + ` = ?5
  ORDER BY due_at LIMIT 1))` + takenSQL

var (
	takeOverNewestSQL = strings.Replace(takeOverSQL, "ORDER BY due_at", "ORDER BY attempts, last_id DESC", 1)
	takeOverSingleSQL = strings.Replace(takeOverSQL, "ORDER BY due_at", "ORDER BY attempts, events > 1, last_id DESC", 1)
	takeOverUnsentSQL = strings.Replace(takeOverSQL, "ORDER BY due_at", "AND "+unsentSQL+" ORDER BY due_at", 1)
)

// takeOverSmallestSQL takes over the batch of [buffer.DueSmallest], among the thousand that became due last: the parts of a batch are due when it is halved.
var takeOverSmallestSQL = strings.Replace(takeOverSQL, "ORDER BY due_at", `AND due_at >= coalesce((
      SELECT due_at FROM outbox_batches
      WHERE buffer = ?3 AND sink = ?6 AND due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
      ORDER BY due_at DESC LIMIT 1 OFFSET 999), '')
  ORDER BY events, first_id`, 1)

// takenSQL are the columns that leased reads.
const takenSQL = `
RETURNING ` + takenColumnsSQL

const takenColumnsSQL = `group_id, lease_no, unfinished_leases, attempts, outages, first_id, last_id, origins, delivered, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), claim_id, coalesce(history, ''), events`

// loader fills in the events of a leased batch, of which the ledger counts so many.
type loader func(tx transaction, batch *buffer.Lease, in holding, count int) error

// takeOver leases the batch that has been due longest, and reads it when that is committed: an owner that dies while
// it reads must count.
func (l ledger) takeOver(ctx context.Context, lease time.Duration, due buffer.Due, load loader) (*buffer.Lease, error) {
	batch, err := l.take(ctx, lease, func(tx transaction) (*sql.Row, error) {
		if err := l.b.own(ctx, tx); err != nil {
			return nil, err
		}
		var next any // NULL: the batch that has been due longest
		if l.b.config.Ordered && l.buffer == l.b.config.Table {
			var (
				group string
				err   error
			)
			switch {
			case l.b.config.Sinks == nil:
				group, err = l.b.dueInOrder(ctx, tx, due)
				next = group
			case l.b.keepsOrder(l.sink):
				group, err = l.nextTurn(ctx, tx, due)
				next = group
			}
			if err != nil {
				return nil, err
			}
		}
		sql := takeOverSQL
		switch due {
		case buffer.DueNewest:
			sql = takeOverNewestSQL
		case buffer.DueSingle:
			sql = takeOverSingleSQL
		case buffer.DueSmallest:
			sql = takeOverSmallestSQL
		case buffer.DueUnsent:
			sql = takeOverUnsentSQL
		}
		return tx.row(ctx, sql, l.b.config.Owner, db.Seconds(lease), l.buffer, next, due == buffer.DueSuspect, l.sinkName()), nil
	})
	if batch == nil {
		return nil, err
	}
	if err := l.load(ctx, batch, load); err != nil {
		return notRead(ctx, batch, err)
	}
	return batch, nil
}

// take runs a statement that leases a batch and returns takenSQL. nil, nil: it found none.
func (l ledger) take(ctx context.Context, lease time.Duration, statement func(tx transaction) (*sql.Row, error)) (*buffer.Lease, error) {
	batch := &buffer.Lease{Batch: buffer.Batch{Pipeline: l.b.config.Pipeline}, Ends: db.LeaseEnd(time.Now(), lease)}
	err := l.b.write(ctx, "taking over a batch", func(tx transaction) error {
		row, err := statement(tx)
		if err != nil {
			return err
		}
		return scanTaken(row, batch)
	})
	return leased(batch, err)
}

// scanTaken scans takenColumnsSQL. errNothing: there is no batch.
func scanTaken(row *sql.Row, batch *buffer.Lease) error {
	var (
		origins, delivered, claimedAt, history string
		claimID                                uuid.NullUUID
	)
	err := row.Scan(&batch.GroupID, &batch.LeaseNo, &batch.UnfinishedLeases, &batch.Attempts, &batch.Outages,
		&batch.FirstID, &batch.LastID, &origins, &delivered, &claimedAt, &claimID, &history, &batch.Counted)
	if errors.Is(err, sql.ErrNoRows) {
		return errNothing
	}
	if err != nil {
		return err
	}
	batch.ClaimID, batch.History = claimID.UUID, buffer.ParseHistory(history)
	if batch.ClaimedAt, err = time.Parse(db.TimeFormat, claimedAt); err != nil {
		return err
	}
	batch.ClaimedLocal = time.Now()
	return errors.Join(json.Unmarshal([]byte(origins), &batch.Origins), json.Unmarshal([]byte(delivered), &batch.Delivered))
}

// notRead returns a batch that was taken over but could not be read, without events: it is put back with the count that
// it had, because a lease that only ends would count as a death of its owner. A delivered one is never blamed.
func notRead(ctx context.Context, batch *buffer.Lease, err error) (*buffer.Lease, error) {
	if batch.DeliveryRecorded() || ctx.Err() != nil || errors.Is(err, buffer.ErrLeaseLost) {
		return nil, err
	}
	batch.Events, batch.DeadLetters, batch.Cut = nil, nil, false
	batch.NotRead = err
	return batch, nil
}

const holdingSQL = `
SELECT events, ` + holdingColumns + ` FROM outbox_batches
WHERE buffer = ?1 AND group_id = ?2 AND lease_no = ?3`

// load reads a leased batch.
func (l ledger) load(ctx context.Context, batch *buffer.Lease, load loader) error {
	return l.b.read(ctx, "reading a batch", func(tx transaction) error {
		if err := l.b.fence(batch); err != nil {
			return err
		}
		var (
			count int
			in    holding
		)
		err := tx.row(ctx, holdingSQL, l.buffer, batch.GroupID.String(), batch.LeaseNo).Scan(append([]any{&count}, in.columns()...)...)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return buffer.ErrLeaseLost
		case err != nil:
			return err
		}
		return load(tx, batch, in, count)
	})
}

// A waiting batch has no owner. Its lease_no does not matter.
const renewSQL = `
UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?1)
WHERE buffer = ?2 AND group_id = ?3 AND lease_no = ?4 AND state <> 'waiting'`

// Renew implements buffer.Claimer.
func (l ledger) Renew(ctx context.Context, batch *buffer.Lease, lease time.Duration) error {
	end := db.LeaseEnd(time.Now(), lease)
	err := l.b.write(ctx, "renewing a lease", func(tx transaction) error {
		if err := l.b.fence(batch); err != nil {
			return err
		}
		return fenced(tx.exec(ctx, renewSQL, db.Seconds(lease), l.buffer, batch.GroupID.String(), batch.LeaseNo))
	})
	if err == nil {
		batch.Ends = end
	}
	return err
}

// fenced checks what a statement that names group_id and lease_no changed.
func fenced(rows int64, err error) error {
	if err == nil && rows == 0 {
		return buffer.ErrLeaseLost
	}
	return err
}

// The fences. Each is the first statement of its transaction and names group_id and lease_no: an owner
// that lost its lease changes nothing.
const (
	closeLedgerSQL = `
DELETE FROM outbox_batches
WHERE buffer = ?1 AND group_id = ?2 AND lease_no = ?3 AND state <> 'waiting'
RETURNING ` + holdingColumns

	retryWholeSQL = `
UPDATE outbox_batches
SET state = 'waiting', unfinished_leases = ?9, due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?4),
    attempts = ?5, outages = ?6, error = ?7, address = ?8, history = coalesce(?10, history)
WHERE buffer = ?1 AND group_id = ?2 AND lease_no = ?3 AND state <> 'waiting'`

	// Events that the sink has hold no key.
	markDeliveredSQL = `
UPDATE outbox_batches
SET state = 'delivered', delivered = ?4, due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?5), error = NULL,
    lanes = CASE WHEN json_array_length(?4) < events THEN lanes ELSE '[]' END
WHERE buffer = ?1 AND group_id = ?2 AND lease_no = ?3 AND state <> 'waiting'`

	putOffSQL = `
UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?4), error = ?5
WHERE buffer = ?1 AND group_id = ?2 AND lease_no = ?3 AND state = 'delivered'`

	// Only what was delivered stays. Those events may be gone.
	freeRestSQL = `
UPDATE outbox_batches
SET events = json_array_length(?4), delivered = ?4, due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?6),
    members = CASE WHEN members IS NOT NULL THEN ?5 END, lanes = CASE WHEN lanes IS NOT NULL THEN '[]' END
WHERE buffer = ?1 AND group_id = ?2 AND lease_no = ?3 AND state = 'delivered'`

	deliveredHoldingSQL = `
SELECT ` + holdingColumns + ` FROM outbox_batches
WHERE buffer = ?1 AND group_id = ?2 AND lease_no = ?3 AND state = 'delivered'`
)

// settle lets the batch wait, or closes its ledger row and calls act, in one transaction. If all outcomes are retries of
// events that were not delivered, of a batch whose delivery is recorded, the row stays.
func (l ledger) settle(ctx context.Context, batch *buffer.Lease, all []buffer.Outcome,
	act func(tx transaction, in holding, set *outcomes.Set) error,
) error {
	set, err := outcomes.Group(batch, all)
	if err != nil {
		return err
	}
	frees := batch.DeliveryRecorded() && set.All == nil && len(set.Delivered)+len(set.Dead) == 0
	err = l.b.write(ctx, "settling a batch", func(tx transaction) error {
		if err := l.b.fence(batch); err != nil {
			return err
		}
		if set.RetriesWhole() {
			o := set.All
			var history any // NULL leaves it as it is: nothing was tried
			if o.Tried {
				history = l.b.historyArg(batch, o)
			}
			return fenced(tx.exec(ctx, retryWholeSQL, l.buffer, batch.GroupID.String(), batch.LeaseNo,
				db.Seconds(o.After), o.Attempts, o.Outages, o.Error, o.Address, o.UnfinishedLeases, history))
		}
		var in holding
		opening := closeLedgerSQL
		if frees {
			opening = deliveredHoldingSQL
		}
		err := tx.row(ctx, opening, l.buffer, batch.GroupID.String(), batch.LeaseNo).Scan(in.columns()...)
		if errors.Is(err, sql.ErrNoRows) {
			return buffer.ErrLeaseLost
		}
		if err != nil {
			return err
		}
		if err := act(tx, in, &set); err != nil || !frees {
			return err
		}
		return fenced(tx.exec(ctx, freeRestSQL, l.buffer, batch.GroupID.String(), batch.LeaseNo, idsArg(batch.Delivered),
			idset.Of(batch.Delivered).JSON(), db.Seconds(deleteAgain)))
	})
	return l.refused(ctx, batch, err)
}

// refusals are the codes of errors that a statement gets again if it is repeated: constraints, what a trigger does.
var refusals = []int{sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG}

// refused makes an error of a settle a *buffer.SettleError if that settle would fail again.
func (l ledger) refused(ctx context.Context, batch *buffer.Lease, err error) error {
	_, unstamped := errors.AsType[*buffer.UnstampedError](err)
	_, unburied := errors.AsType[*buffer.UnburiedError](err)
	_, marked := errors.AsType[*buffer.MarkedError](err)
	switch code := db.Code(err); {
	case unstamped, unburied, marked:
	case slices.Contains(refusals, code) && !errors.Is(err, buffer.ErrNotReady):
	default:
		return err
	}
	refused := &buffer.SettleError{Table: l.b.config.Table, RetryIn: buffer.KeptRetry(batch.LeaseNo), Err: err}
	if batch.DeliveryRecorded() {
		if err := l.b.write(ctx, "putting off a delete", func(tx transaction) error {
			return fenced(tx.exec(ctx, putOffSQL, l.buffer, batch.GroupID.String(), batch.LeaseNo, db.Seconds(refused.RetryIn), refused.Error()))
		}); err != nil {
			return err
		}
	}
	return refused
}

// deleteAgain is how long a batch marked delivered waits before its delete is tried again.
const deleteAgain = time.Second

// MarkDelivered implements buffer.Settler.
func (l ledger) MarkDelivered(ctx context.Context, batch *buffer.Lease, delivered []int64) error {
	return l.b.write(ctx, "marking a batch delivered", func(tx transaction) error {
		if err := l.b.fence(batch); err != nil {
			return err
		}
		return fenced(tx.exec(ctx, markDeliveredSQL, l.buffer, batch.GroupID.String(), batch.LeaseNo, idsArg(delivered), db.Seconds(deleteAgain)))
	})
}

// historyArg is the history of the events of an outcome; nil if it is empty.
func (b *Buffer) historyArg(batch *buffer.Lease, o *buffer.Outcome) any {
	if text := batch.HistoryAfter(o, b.config.Owner).String(); text != "" {
		return text
	}
	return nil
}

// originsOf returns the origins of a part of the batch as a JSON array.
func originsOf(batch *buffer.Lease) (string, error) {
	text, err := json.Marshal(batch.PartOrigins())
	return string(text), err
}

const (
	// Only an outage has an address.
	deferredAddressesSQL = `
SELECT DISTINCT address FROM outbox_batches
WHERE buffer = ?1 AND sink = ?2 AND state = 'waiting' AND address IS NOT NULL AND outages > 0`

	// Batches that are due already count against the limit and keep their place.
	retryNowSQL = `
UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE due_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AND group_id IN (
  SELECT group_id FROM outbox_batches
  WHERE buffer = ?1 AND sink = ?4 AND state = 'waiting' AND address = ?2 AND outages > 0
  ORDER BY due_at LIMIT ?3)`
)

// A refusal with an address is one of a sink that refused everything.
const retryRefusedSQL = `
UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE buffer = ?1 AND sink = ?2 AND due_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
  AND state = 'waiting' AND address IS NOT NULL AND outages = 0`

// RetryRefused implements buffer.Deferrer.
func (l ledger) RetryRefused(ctx context.Context) (due int, err error) {
	err = l.b.write(ctx, "making refused batches due", func(tx transaction) error {
		rows, err := tx.exec(ctx, retryRefusedSQL, l.buffer, l.sinkName())
		due = int(rows)
		return err
	})
	return due, err
}

const (
	retryAllSQL = `
UPDATE outbox_batches SET due_at = min(due_at, strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), owner = ?2
WHERE buffer = ?1 AND sink = ?3 AND state = 'waiting'`

	saveRequestSQL = `
UPDATE outbox_buffers SET retry_request = ?2, retry_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') WHERE buffer = ?1`

	// The first relay that reads a request may settle all its batches before another one reads it, so for a minute the buffer has it too.
	retryRequestSQL = `
SELECT max(
  coalesce((SELECT max(owner) FROM outbox_batches WHERE buffer = ?1 AND sink = ?3 AND state = 'waiting' AND owner LIKE ?2 || '%'), ''),
  coalesce((SELECT retry_request FROM outbox_buffers WHERE buffer = ?4 AND retry_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 minute')), ''))`
)

// RetryAll implements buffer.Deferrer.
func (l ledger) RetryAll(ctx context.Context, request string) (waiting int, err error) {
	err = l.b.write(ctx, "making all batches due", func(tx transaction) error {
		rows, err := tx.exec(ctx, retryAllSQL, l.buffer, request, l.sinkName())
		if err != nil {
			return err
		}
		waiting = int(rows)
		_, err = tx.exec(ctx, saveRequestSQL, l.b.config.Table, request)
		return err
	})
	return waiting, err
}

// RetryRequest implements buffer.Deferrer.
func (l ledger) RetryRequest(ctx context.Context) (request string, err error) {
	err = l.b.read(ctx, "looking for a request to retry", func(tx transaction) error {
		return tx.row(ctx, retryRequestSQL, l.buffer, buffer.RetryRequestPrefix, l.sinkName(), l.b.config.Table).Scan(&request)
	})
	return request, err
}

// DeferredAddresses implements buffer.Deferrer.
func (l ledger) DeferredAddresses(ctx context.Context) ([]string, error) {
	rows, err := l.b.db.QueryContext(ctx, deferredAddressesSQL, l.buffer, l.sinkName())
	addresses, err := db.Column[string](rows, err)
	return addresses, l.b.explain(ctx, "listing deferred addresses", err)
}

// RetryNow implements buffer.Deferrer.
func (l ledger) RetryNow(ctx context.Context, address string, limit int) (due int, err error) {
	err = l.b.write(ctx, "making batches due", func(tx transaction) error {
		rows, err := tx.exec(ctx, retryNowSQL, l.buffer, address, cmp.Or(limit, -1), l.sinkName()) // -1: all
		due = int(rows)
		return err
	})
	return due, err
}
