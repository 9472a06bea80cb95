package console

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/audit"
	"github.com/outboxrelay/relay/internal/preview"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// editData is the form for the payload of a dead letter, or the row that a replay inserts, and the question before it is replayed.
type editData struct {
	Pipeline, ID, Sink string
	// Row: the text is the row, not the payload.
	Row bool
	// Text is what is edited, indented, and Headers, unless it is a row; Was is the hash of what the database had when the form was made: another tab must not
	// overwrite it.
	Text, Headers, Was string
	Problem            string
	// Before, HeadersBefore and Tried are shown before it is replayed.
	Before, HeadersBefore string
	Tried                 tryData
}

func hashOf(text, headers []byte) string {
	sum := sha256.Sum256(slices.Concat(text, []byte{0}, headers))
	return hex.EncodeToString(sum[:])
}

// pretty indents JSON; another text stays as it is.
func pretty(text []byte) []byte {
	var b bytes.Buffer
	if json.Indent(&b, text, "", "  ") != nil {
		return text
	}
	return b.Bytes()
}

// edited finds the dead letter of a request and the text that can be edited; ok is false if it was answered with an error.
func (s *Console) edited(ctx context.Context, w http.ResponseWriter, r *http.Request) (d editData, e *buffer.DeadEvent, text []byte, ok bool) {
	if s.config.HidePayloads {
		s.fail(w, r, http.StatusForbidden, errors.New("admin.payloads is false, so payloads are neither shown nor edited"))
		return d, nil, nil, false
	}
	e, err := s.openLetter(ctx, r.PathValue("pipeline"), r.PathValue("id"), "")
	switch {
	case errors.Is(err, errNoLetter) && s.lostEdit(ctx, w, r):
		return d, nil, nil, false
	case errors.Is(err, errNoLetter):
		s.fail(w, r, http.StatusNotFound, err)
		return d, nil, nil, false
	case err != nil:
		s.fail(w, r, http.StatusServiceUnavailable, err)
		return d, nil, nil, false
	}
	d = editData{Pipeline: r.PathValue("pipeline"), ID: e.Identity(), Row: e.Row != nil}
	if row := s.deadRow(e); row.Sink != buffer.Unrouted {
		d.Sink = row.Sink
	}
	text = e.Payload
	if d.Row {
		text = e.Row
	}
	if !utf8.Valid(text) || !json.Valid(text) {
		s.fail(w, r, http.StatusConflict, errors.New("the payload is not JSON text, so it cannot be edited here; change the column payload of outbox_dead_letters by SQL, then replay the event"))
		return d, nil, nil, false
	}
	d.Text, d.Was = string(pretty(text)), hashOf(text, nil)
	if !d.Row {
		d.Headers, d.Was = string(pretty(e.Headers)), hashOf(text, e.Headers)
	}
	return d, e, text, true
}

// lostEdit answers a form whose dead letter somebody else has closed meanwhile: who it was, and what was written. It reports false if the request is not that.
func (s *Console) lostEdit(ctx context.Context, w http.ResponseWriter, r *http.Request) bool {
	p, err := s.selected(r.PathValue("pipeline"))
	if err != nil || r.Method != http.MethodPost {
		return false
	}
	closed := lastClosed(ctx, p[0], r.PathValue("id"), "")
	if closed == "" {
		return false
	}
	d := editData{Pipeline: p[0].Name, ID: r.PathValue("id"), Text: r.PostForm.Get("text"), Headers: r.PostForm.Get("headers"), Problem: "Nothing was changed and nothing was sent by you: " + closed}
	s.render(w, r, http.StatusConflict, "dead_edit_lost", "dead", "Nothing was changed", &d)
	return true
}

// deadEditForm serves the form.
func (s *Console) deadEditForm(w http.ResponseWriter, r *http.Request) {
	if d, _, _, ok := s.edited(r.Context(), w, r); ok {
		s.render(w, r, http.StatusOK, "dead_edit", "dead", "Edit and replay", &d)
	}
}

// deadEdit checks what was written, asks, and then stores and replays it.
func (s *Console) deadEdit(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxTried)
	if err := r.ParseForm(); err != nil {
		s.fail(w, r, http.StatusBadRequest, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), deadTimeout)
	defer cancel()
	d, e, old, ok := s.edited(ctx, w, r)
	if !ok {
		return
	}
	again := func(code int, problem string) {
		d.Text, d.Headers, d.Problem = r.PostForm.Get("text"), r.PostForm.Get("headers"), visible([]byte(s.config.Redact(problem)))
		s.render(w, r, code, "dead_edit", "dead", "Edit and replay", &d)
	}
	if r.PostForm.Get("was") != d.Was {
		again(http.StatusConflict, "Somebody else has changed the event since this form was opened; nothing was changed. Your text is below. The next step shows it beside what is there now.")
		return
	}
	text, err := s.checkEdited(ctx, e, []byte(r.PostForm.Get("text")))
	if err != nil {
		again(http.StatusUnprocessableEntity, err.Error())
		return
	}
	edit := buffer.DeadEdit{ID: e.ID, UUID: e.UUID, Row: d.Row, Old: old, New: text}
	if !d.Row {
		edit.Headers, edit.OldHeaders = true, e.Headers
		if edit.NewHeaders, err = preview.ParseHeaders([]byte(r.PostForm.Get("headers"))); err != nil {
			again(http.StatusUnprocessableEntity, err.Error())
			return
		}
		if sameJSON(e.Headers, edit.NewHeaders) || !r.PostForm.Has("headers") {
			edit.NewHeaders = e.Headers
		}
	}
	if sameJSON(old, text) { // it stays as it was written
		edit.New = old
	}
	if bytes.Equal(edit.Old, edit.New) && bytes.Equal(edit.OldHeaders, edit.NewHeaders) {
		again(http.StatusUnprocessableEntity, "Nothing is changed yet.")
		return
	}
	p, err := s.selected(d.Pipeline)
	if err != nil {
		s.fail(w, r, http.StatusNotFound, err)
		return
	}
	q := buffer.DeadFilter{IDs: []int64{e.ID}, ClosedBy: admin.ClosedBy(r, "console")}
	if e.UUID != uuid.Nil {
		q.IDs, q.UUIDs = []int64{}, []uuid.UUID{e.UUID}
	}
	if q.ClosedReason, err = admin.ParseReason(r.PostForm.Get("reason")); err != nil {
		s.fail(w, r, http.StatusBadRequest, err)
		return
	}
	would, err := p[0].Change(ctx, admin.Replay, q, true, nil)
	switch {
	case err != nil:
		s.fail(w, r, http.StatusServiceUnavailable, err)
		return
	case would.Changed == 0:
		again(http.StatusConflict, "It cannot be replayed now: its dead-letter hook was not notified of it yet, or its sink is dropped. Nothing was changed.")
		return
	}
	if r.PostForm.Get("confirmed") == "" {
		d.Before, d.Text = d.Text, string(pretty(text))
		d.HeadersBefore, d.Headers = d.Headers, string(pretty(edit.NewHeaders))
		s.tryEdited(ctx, &d, e, &edit)
		s.render(w, r, http.StatusOK, "dead_edit_confirm", "dead", "Are you sure?", &d)
		return
	}
	switch err := p[0].Store.EditDead(ctx, edit); {
	case errors.Is(err, buffer.ErrEventWaits):
		again(http.StatusConflict, "The event is still in the table: it waits to be sent to another sink, or done: mark keeps its row, which must be changed in the table. Nothing was changed.")
		return
	case errors.Is(err, buffer.ErrDeadChanged):
		again(http.StatusConflict, "Somebody else has changed, replayed or discarded it meanwhile, or its dead letters of several sinks differ. Nothing was changed.")
		return
	case err != nil:
		s.fail(w, r, http.StatusServiceUnavailable, err)
		return
	}
	changed, err := p[0].Change(ctx, admin.Replay, q, false, nil)
	s.changed(d.Pipeline)
	s.config.Audit.Add(ctx, audit.Entry{Who: q.ClosedBy, Action: "edit and replay", Pipeline: d.Pipeline, Count: changed.Changed, Detail: "event " + d.ID, Reason: q.ClosedReason})
	changed.CleanReasons(s.config.Redact, s.config.HidePayloads)
	switch {
	case err == nil && changed.Refused > 0:
		s.fail(w, r, http.StatusUnprocessableEntity, fmt.Errorf("the dead letter was changed, but the table refuses its row%s; correct it again", refusedBecause(changed.Refusals)))
		return
	case err != nil || changed.Changed == 0:
		s.fail(w, r, http.StatusServiceUnavailable, errors.Join(errors.New("the event was changed, but not replayed; replay it from the list"), err))
		return
	}
	done := fmt.Sprintf("Event %s was changed and replayed.", d.ID)
	redirect(w, root(r)+"dead?"+url.Values{"pipeline": {d.Pipeline}}.Encode()+"&"+s.flashes.put(done, false))
}

// checkEdited returns what was written on one line.
func (s *Console) checkEdited(ctx context.Context, e *buffer.DeadEvent, written []byte) ([]byte, error) {
	var (
		valid json.RawMessage
		one   bytes.Buffer
	)
	if err := json.Unmarshal(written, &valid); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			at := min(max(int(syntax.Offset)-1, 0), len(written))
			return nil, fmt.Errorf("line %d, column %d: %w; expected JSON (look for a comma, quote or bracket that is missing or too much there or just before)", 1+bytes.Count(written[:at], []byte("\n")), at-bytes.LastIndexByte(written[:at], '\n'), err)
		}
		return nil, err
	}
	if !utf8.Valid(written) {
		return nil, errors.New("the text is not UTF-8")
	}
	if err := json.Compact(&one, written); err != nil {
		return nil, err
	}
	p, err := s.previews(e.Pipeline)
	if err != nil {
		return nil, err
	}
	letters, err := s.selected(e.Pipeline)
	if err != nil {
		return nil, err
	}
	return one.Bytes(), letters[0].CheckEditedRow(ctx, e, one.Bytes(), p.Keys()...)
}

// sameJSON reports whether two texts differ in white space alone. No text is another one than null.
func sameJSON(a, b []byte) bool {
	var one, other bytes.Buffer
	return (a == nil) == (b == nil) && (a == nil || json.Compact(&one, a) == nil && json.Compact(&other, b) == nil && bytes.Equal(one.Bytes(), other.Bytes()))
}

// tryEdited shows the request that the event would make with another payload or other headers. What the projection would make of a row is not known before it is inserted.
func (s *Console) tryEdited(ctx context.Context, d *editData, e *buffer.DeadEvent, edit *buffer.DeadEdit) {
	if d.Row {
		return
	}
	p, err := s.previews(d.Pipeline)
	if err == nil {
		with := e.Event
		with.Payload, with.Headers = edit.New, edit.NewHeaders
		var result preview.Result
		if result, err = p.Events(ctx, d.Sink, []outbox.Event{with}); err == nil {
			s.addTried(&d.Tried, &result)
			return
		}
	}
	d.Tried.Notes = append(d.Tried.Notes, visible([]byte(s.config.Redact(err.Error()))))
}
