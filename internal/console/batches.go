package console

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/audit"
	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	// maxBatches is how many live batches a page lists.
	maxBatches = 200
	// batchTimeout bounds what a page about batches asks of the databases.
	batchTimeout = 15 * time.Second
)

// batchRow is a live batch on a page.
type batchRow struct {
	buffer.LiveBatch
	Pipeline, Link string
	// Goal is the sink if there are several, or the dead-letter hook.
	Goal string
	// Status says what the batch does, Class how it is coloured.
	Status, Class string
	// At is when the lease ends, or the next retry or delete is due; zero: now, or nobody knows.
	At time.Time
	// Early: it is due at At at the latest, because it waits for the sink, which is tried every few seconds.
	Early   bool
	Claimed time.Time
	By      string // who has it
	First   string
	// Why is the whole reason why it waits, Short its beginning.
	Why, Short string
	// Try is the link to the requests of its events, from the root; "" if they are not shown.
	Try string
	// Refused is why it cannot be divided; "": it can be.
	Refused string
}

// keptAfter is how old a delivered batch is before the page says why its events are still there: a delete takes moments.
const keptAfter = 10 * time.Second

// keptText says why events that the sink has are not deleted.
func (s *Console) keptText(p *admin.Pipeline) string {
	const text = "the sink has accepted it; its events are deleted "
	h, holds, ok := p.Locker()
	if !ok {
		return text + "when no other transaction locks their rows. Doctor lists the open transactions."
	}
	who := "a transaction"
	if h.PID != 0 {
		who = fmt.Sprintf("pid %d", h.PID)
	}
	if h.Application != "" {
		who += fmt.Sprintf(" (application %q)", h.Application)
	}
	which := "which holds locks in their table"
	if !holds {
		which = "for which one waits that holds locks in their table"
	}
	return text + "when " + s.config.Redact(who) + " ends its transaction, " + which + ": " + s.config.Redact(h.Fix)
}

func (s *Console) batchRow(of *admin.Pipeline, b *buffer.LiveBatch, now time.Time) batchRow {
	pipeline := of.Name
	r := batchRow{
		LiveBatch: *b, Pipeline: pipeline, Link: "batches/" + url.PathEscape(pipeline) + "/" + b.GroupID.String(), Claimed: now.Add(-b.Age),
		First: fmt.Sprint(b.FirstID), Why: visible([]byte(s.config.Redact(b.Error))),
	}
	if r.Why == "" && b.State == "waiting" && !b.Hook {
		r.Why = "not tried yet: a relay has claimed it, and sends it once it can. While the sink does not accept events, one batch at a time is tried."
	}
	if r.Why == "" && b.State == "delivered" && !b.Hook && b.Age >= keptAfter {
		r.Why = visible([]byte(s.keptText(of)))
	}
	r.Short = shorten(r.Why, maxShownError)
	if b.FirstUUID != uuid.Nil {
		r.First = b.FirstUUID.String()
	}
	switch {
	case b.Hook:
		r.Goal = "dead-letter hook"
	case b.Sink == buffer.Unrouted:
		r.Goal = "not given to its sinks yet"
	case b.Sink != "default":
		r.Goal = b.Sink
	}
	if b.Due > 0 && b.Due < math.MaxInt64 {
		r.At = now.Add(b.Due)
	}
	owner := process(b.Owner)
	switch {
	case b.State == "leased" && b.Due <= 0:
		r.Status, r.Class, r.By = "lease is over, will be taken over", "warn", owner
	case b.State == "leased":
		r.Status, r.Class, r.By = "with a relay", "good", owner
	case b.State == "delivered":
		r.Status, r.By = "delivered, to be deleted", owner
	case b.Due <= 0:
		r.Status, r.Class = "due now", "warn"
	case b.Address != nil && !b.Hook:
		r.Status, r.Class, r.Early = "waits for the sink", "warn", true
	default:
		r.Status, r.Class = "waits", "warn"
	}
	if b.State == "waiting" && strings.HasPrefix(b.Owner, buffer.RetryRequestPrefix) {
		r.By = "nobody: a user asked for a retry"
	}
	if !b.Hook && b.Sink != buffer.Unrouted && !s.config.HidePayloads {
		sink := map[bool]string{false: b.Sink}[b.Sink == "default"]
		r.Try = "try?" + url.Values{"pipeline": {pipeline}, "sink": {sink}, "batch": {b.GroupID.String()}, "show": {"1"}}.Encode()
	}
	if err := b.Indivisible(); err != nil {
		r.Refused = err.Error()
	}
	return r
}

// batchesData is what the page of batches shows.
type batchesData struct {
	Pipeline string // the only one that is shown
	Names    []string
	Rows     []batchRow
	Total    int64
	Errors   []string
	// Locked say of pipelines, or the only one, which transaction keeps events that are in no batch.
	Locked []lockedEvents
	Done   flash
}

// lockedEvents are those that a transaction keeps.
type lockedEvents struct{ Text, Fix string }

// lockedEvents says which transaction keeps events of a pipeline that are in no batch; ok is false if none does, as far as is known.
func (s *Console) lockedEvents(report *admin.Report, pipeline string) (l lockedEvents, ok bool) {
	table := func(b *admin.BlockerReport) lockedEvents {
		return lockedEvents{s.config.Redact(pipeline + ": " + b.Text), s.config.Redact(b.Fix)}
	}
	for _, e := range report.Errors {
		if e.Name == pipeline && e.TableLockedBy != nil {
			return table(e.TableLockedBy), true
		}
	}
	for i := range report.Pipelines {
		p := &report.Pipelines[i]
		switch {
		case p.Name != pipeline:
		case p.TableLockedBy != nil:
			return table(p.TableLockedBy), true
		case p.LockKeepsEvents():
			by := map[bool]string{true: " by a transaction that waits for another one"}[p.RowsLockedBy.WritersWait]
			return lockedEvents{s.config.Redact(fmt.Sprintf("%s: %s. Those that are in no batch are locked%s: %s", p.Name, pendingText(p.Pending), by, p.RowsLockedBy.Text)), p.RowsLockedBy.Fix}, true
		}
	}
	return l, false
}

// batches lists the live batches, those that were claimed last first.
func (s *Console) batches(w http.ResponseWriter, r *http.Request) {
	d := batchesData{Pipeline: r.URL.Query().Get("pipeline"), Done: s.flashes.take(r)}
	selected, err := s.selected(d.Pipeline)
	if err != nil {
		s.fail(w, r, http.StatusNotFound, err)
		return
	}
	for _, p := range s.config.Source.Pipelines() {
		d.Names = append(d.Names, p.Name)
	}
	ctx, cancel := context.WithTimeout(r.Context(), batchTimeout)
	defer cancel()
	report, _ := s.report(ctx)
	for _, p := range selected {
		if locked, ok := s.lockedEvents(report, p.Name); ok {
			d.Locked = append(d.Locked, locked)
		}
		all, total, err := p.Batches.ListBatches(ctx, maxBatches)
		if err != nil {
			d.Errors = append(d.Errors, s.config.Redact(p.Name+": "+err.Error()))
			continue
		}
		d.Total += total
		now := time.Now()
		for i := range all {
			d.Rows = append(d.Rows, s.batchRow(&p, &all[i], now))
		}
	}
	slices.SortStableFunc(d.Rows, func(a, b batchRow) int { return b.Claimed.Compare(a.Claimed) })
	d.Rows = d.Rows[:min(len(d.Rows), maxBatches)]
	s.render(w, r, http.StatusOK, "batches", "batches", "Batches", &d)
}

// batch finds the batch of a request; ok is false if it was answered with an error.
func (s *Console) batch(ctx context.Context, w http.ResponseWriter, r *http.Request) (p admin.Pipeline, row batchRow, ok bool) {
	selected, err := s.selected(r.PathValue("pipeline"))
	if err != nil {
		s.fail(w, r, http.StatusNotFound, err)
		return p, row, false
	}
	p = selected[0]
	id, err := uuid.Parse(r.PathValue("group"))
	if err != nil {
		s.fail(w, r, http.StatusBadRequest, fmt.Errorf("%q is no group_id", r.PathValue("group")))
		return p, row, false
	}
	b, found, err := p.Batches.LiveBatch(ctx, id)
	switch {
	case err != nil:
		s.fail(w, r, http.StatusServiceUnavailable, err)
	case !found:
		s.fail(w, r, http.StatusNotFound, errors.New("this batch is finished: it was delivered, its events became dead letters, or they are in other batches now"))
	default:
		return p, s.batchRow(&p, &b, time.Now()), true
	}
	return p, row, false
}

// batchShow serves one batch.
func (s *Console) batchShow(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), batchTimeout)
	defer cancel()
	if _, row, ok := s.batch(ctx, w, r); ok {
		s.render(w, r, http.StatusOK, "batch", "batches", "Batch", &row)
	}
}

// batchConfirm is what is about to be done with a batch.
type batchConfirm struct {
	batchRow
	Divide bool
}

// batchChange retries or divides a batch: first it asks, then it does it.
func (s *Console) batchChange(divide bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
		ctx, cancel := context.WithTimeout(r.Context(), batchTimeout)
		defer cancel()
		p, row, ok := s.batch(ctx, w, r)
		if !ok {
			return
		}
		if r.PostFormValue("confirmed") == "" {
			s.render(w, r, http.StatusOK, "batch_confirm", "batches", "Are you sure?", &batchConfirm{row, divide})
			return
		}
		var (
			err  error
			did  = audit.Entry{Who: admin.ClosedBy(r, "console"), Action: "retry batch", Pipeline: p.Name, Count: row.Events, Detail: "batch " + row.GroupID.String()}
			done = "The batch is due now."
		)
		if divide {
			did.Action, done = "divide batch", "The batch is divided; its halves are due now."
			if row.MaybeSent() {
				did.Detail += ", may have been sent"
			}
			err = p.Batches.DivideBatch(ctx, row.GroupID, r.PostFormValue("doubled") != "")
		} else {
			err = p.Batches.RetryBatch(ctx, row.GroupID, buffer.NewRetryRequest())
		}
		s.changed(p.Name)
		switch {
		case errors.Is(err, buffer.ErrNotWaiting) && !divide: // what was asked for happens already
			done = "Nothing was changed: a relay has taken the batch meanwhile and sends it, or it is finished."
			redirect(w, root(r)+"batches?"+url.Values{"pipeline": {p.Name}}.Encode()+"&"+s.flashes.put(done, true))
			return
		case errors.Is(err, buffer.ErrNotWaiting), errors.Is(err, buffer.ErrMaybeSent), err != nil && divide && row.Refused != "":
			s.fail(w, r, http.StatusConflict, fmt.Errorf("nothing was changed: %w", err))
			return
		case err != nil:
			s.fail(w, r, http.StatusServiceUnavailable, err)
			return
		}
		s.config.Audit.Add(ctx, did)
		redirect(w, root(r)+"batches?"+url.Values{"pipeline": {p.Name}}.Encode()+"&"+s.flashes.put(done, false))
	}
}
