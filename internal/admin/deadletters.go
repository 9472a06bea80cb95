package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// DeadLetters are the dead letters of a pipeline. The methods of Store must be safe for concurrent use.
type DeadLetters struct {
	Store DeadLetterStore
	// Table is the buffer table, for messages.
	Table string
	// HasHook reports whether the pipeline has a dead-letter hook, which must be
	// notified of a dead letter before it is closed. Without it that holds for the dead letters of sinks with a hook of their own.
	HasHook bool
	// SinkHooks are the configured sinks with a hook of their own.
	SinkHooks []string
	// BatchSize is how many dead letters one transaction changes.
	BatchSize int
	// Sinks are the names of several configured sinks; nil for a single one.
	Sinks []string
}

// HasSink reports whether the name is that of one of several sinks, or [buffer.Unrouted], or of a former sink that has dead letters.
func (d DeadLetters) HasSink(ctx context.Context, name string) (bool, error) {
	switch {
	case d.Sinks == nil:
		return false, nil
	case name == buffer.Unrouted || slices.Contains(d.Sinks, name):
		return true, nil
	}
	n, err := d.Store.CountDead(ctx, buffer.DeadFilter{Sink: name})
	return n.Open+n.Closed > 0, err
}

// NoSinkError says that no pipeline has a sink.
func NoSinkError(name string, all ...DeadLetters) error {
	var names []string
	for _, d := range all {
		names = append(names, d.Sinks...)
	}
	if names == nil {
		return fmt.Errorf("sink is %q, and the pipeline has a single sink; expected no sink", name)
	}
	return fmt.Errorf("sink is %q; expected %s or *", name, strings.Join(names, ", "))
}

// DeadLetterStore is the part of a buffer that has the dead letters.
type DeadLetterStore interface {
	ListDead(ctx context.Context, f buffer.DeadFilter, after *buffer.DeadKey, limit int) ([]buffer.DeadEvent, error)
	ListNewestDead(ctx context.Context, f buffer.DeadFilter, limit int) ([]buffer.DeadEvent, error)
	CountDead(ctx context.Context, f buffer.DeadFilter) (buffer.DeadCount, error)
	buffer.DeadTimes
	CountDropped(ctx context.Context, f buffer.DeadFilter) ([]buffer.DroppedLetters, error)
	Replay(ctx context.Context, f buffer.DeadFilter, limit int) (int, error)
	Discard(ctx context.Context, f buffer.DeadFilter, limit int) (int, error)
	EditDead(ctx context.Context, e buffer.DeadEdit) error
	RowColumns(ctx context.Context) ([]string, error)
}

// Action is how dead letters are closed.
type Action string

// Replay puts the events back into the buffer, Discard gives them up.
const (
	Replay  Action = "replay"
	Discard Action = "discard"
)

// Changed is the result of an [Action], as commands and POST /api/dead report it.
type Changed struct {
	Pipeline string `json:"pipeline"`
	// Changed dead letters were replayed or discarded, or would be with DryRun.
	Changed int64 `json:"changed"`
	// Unnotified ones were skipped because the dead-letter hook was not notified yet.
	Unnotified int64 `json:"unnotified"`
	// Skipped ones have an id that is in the buffer, or a row that the table refuses, or were closed meanwhile.
	Skipped int64 `json:"skipped"`
	// Refused are those of the skipped ones whose row the table refuses. Refusals says why, for at most [maxRefusals] of them.
	Refused  int64     `json:"refused,omitempty"`
	Refusals []Refusal `json:"refusals,omitempty"`
	// ClosedMeanwhile are those of the skipped ones that another command has closed.
	ClosedMeanwhile int64 `json:"closed_meanwhile"`
	// DiedMeanwhile match too, and are still open, because their events died while the command ran.
	DiedMeanwhile int64 `json:"died_meanwhile,omitempty"`
	// Dropped are those that a replay skipped, or would skip, because their sink is dropped. They are not in Skipped.
	Dropped []buffer.DroppedLetters `json:"dropped,omitempty"`
	DryRun  bool                    `json:"dry_run"`
}

// Empty reports whether nothing matched.
func (c *Changed) Empty() bool {
	return c.Changed+c.Unnotified+c.Skipped+c.DiedMeanwhile == 0 && len(c.Dropped) == 0
}

// maxRefusals is how many dead letters that a table refuses are named.
const maxRefusals = 100

// Refusal is why a table refuses the row of a dead letter, in the database's words.
type Refusal struct {
	EventID Identity `json:"event_id"`
	// Reason is "" if payloads are hidden.
	Reason string `json:"reason,omitempty"`
}

// Change applies an action to all open dead letters that match when it begins, in several transactions. It calls progress,
// if not nil, after each. If it fails, the result has what was done before. Those that die meanwhile stay open: a replay would otherwise send what the sink refuses
// again and again, and not come to the others.
func (d DeadLetters) Change(ctx context.Context, act Action, f buffer.DeadFilter, dryRun bool, progress func(done, total int64)) (Changed, error) {
	c := Changed{DryRun: dryRun}
	all := f
	if !dryRun {
		newest, err := d.NewestDied(ctx, f)
		if err != nil {
			return c, err
		}
		if newest.IsZero() { // nothing matches
			newest = time.Unix(0, 0)
		}
		f, all = DiedUntil(f, newest), DiedAfter(f, newest)
	}
	f = d.closable(f)
	total, dropped, err := d.countFor(ctx, act, f, &c)
	if err != nil {
		return c, err
	}
	if dryRun {
		c.Changed = total
		return c, nil
	}
	change := d.Store.Discard
	if act == Replay {
		change = d.Store.Replay
	}
	refused := map[Identity]string{}
	f.OnRefused = func(r buffer.Refusal) { refused[refusedIdentity(r)] = r.Reason }
	for c.Changed < total {
		n, err := change(ctx, f, int(min(int64(d.BatchSize), total-c.Changed)))
		c.Changed += int64(n)
		if err != nil {
			return c, err
		}
		if n == 0 {
			break
		}
		if progress != nil {
			progress(c.Changed, total)
		}
	}
	if total == 0 {
		return c, nil
	}
	if c.Skipped = total - c.Changed; c.Skipped > 0 {
		open, _, err := d.CountClosable(ctx, f)
		if err != nil {
			return c, err
		}
		c.ClosedMeanwhile = max(0, c.Skipped-max(0, open-dropped))
		c.addRefused(refused)
	}
	c.DiedMeanwhile, err = d.CountFor(ctx, act, all)
	return c, err
}

func refusedIdentity(r buffer.Refusal) Identity {
	if r.UUID != uuid.Nil {
		return Identity{uuid: r.UUID}
	}
	return Identity{id: r.ID}
}

// addRefused names events that the table refuses, the lowest ids first.
func (c *Changed) addRefused(why map[Identity]string) {
	c.Refused = min(int64(len(why)), c.Skipped-c.ClosedMeanwhile)
	for _, id := range slices.SortedFunc(maps.Keys(why), Identity.compare) {
		if len(c.Refusals) == maxRefusals || c.Refused == 0 {
			break
		}
		c.Refusals = append(c.Refusals, Refusal{id, why[id]})
	}
}

// Refusal returns why the table refuses the row of an event; "" if it does not, or is not named.
func (c *Changed) Refusal(e *buffer.DeadEvent) string {
	of := refusedIdentity(buffer.Refusal{ID: e.ID, UUID: e.UUID})
	for _, r := range c.Refusals {
		if r.EventID == of {
			return r.Reason
		}
	}
	return ""
}

// CleanReasons removes secrets from the reasons with redact, or leaves the reasons out if payloads are hidden: some quote a value.
func (c *Changed) CleanReasons(redact func(string) string, hidden bool) {
	for i := range c.Refusals {
		if c.Refusals[i].Reason = redact(c.Refusals[i].Reason); hidden {
			c.Refusals[i].Reason = ""
		}
	}
}

// RefusalsText counts the reasons of [Changed.Refusals], the commonest first: "new row violates ..., 3 times; ..."; "" if none is known.
func RefusalsText(all []Refusal) string {
	const shown = 3
	var (
		counts  = map[string]int{}
		reasons []string
	)
	for _, r := range all {
		if counts[r.Reason]++; counts[r.Reason] == 1 && r.Reason != "" {
			reasons = append(reasons, r.Reason)
		}
	}
	slices.SortStableFunc(reasons, func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
	more := len(reasons) - shown
	for i, reason := range reasons {
		if counts[reason] > 1 {
			reasons[i] = fmt.Sprintf("%s, %d times", reason, counts[reason])
		}
	}
	text := strings.Join(reasons[:min(shown, len(reasons))], "; ")
	if more > 0 {
		text += fmt.Sprintf("; and %d other reasons", more)
	}
	return text
}

// countFor returns how many dead letters an action may close, and how many it leaves because their sink is dropped. It completes c.
func (d DeadLetters) countFor(ctx context.Context, act Action, f buffer.DeadFilter, c *Changed) (total, dropped int64, err error) {
	if total, c.Unnotified, err = d.CountClosable(ctx, f); err != nil || act != Replay {
		return total, 0, err
	}
	if c.Dropped, err = d.Store.CountDropped(ctx, f); err != nil {
		return 0, 0, err
	}
	for _, of := range c.Dropped {
		dropped += of.Letters
	}
	return max(0, total-dropped), dropped, nil
}

// CountFor counts the open dead letters that match and that an action would close.
func (d DeadLetters) CountFor(ctx context.Context, act Action, f buffer.DeadFilter) (int64, error) {
	total, _, err := d.countFor(ctx, act, d.closable(f), new(Changed))
	return total, err
}

// NewestDied returns when the last of the open dead letters that match died, by the database's clock; zero if none matches.
func (d DeadLetters) NewestDied(ctx context.Context, f buffer.DeadFilter) (time.Time, error) {
	f.Closed = false
	newest, err := d.Store.ListNewestDead(ctx, f, 1)
	if err != nil || len(newest) == 0 {
		return time.Time{}, err
	}
	return newest[0].DiedAt, nil
}

// DiedUntil narrows a filter to those that died at a time of [DeadLetters.NewestDied] or earlier.
func DiedUntil(f buffer.DeadFilter, at time.Time) buffer.DeadFilter {
	if before := afterDied(at); f.Before.IsZero() || before.Before(f.Before) {
		f.Before = before
	}
	return f
}

// DiedAfter narrows a filter to those that died later than a time of [DeadLetters.NewestDied]; to none fewer if it is zero.
func DiedAfter(f buffer.DeadFilter, at time.Time) buffer.DeadFilter {
	if at.IsZero() {
		return f
	}
	if from := afterDied(at); from.After(f.From) {
		f.From = from
	}
	return f
}

// afterDied is the first time after one at which something died.
func afterDied(at time.Time) time.Time {
	if at.Truncate(time.Millisecond).Equal(at) { // SQLite has no finer times
		return at.Add(time.Millisecond)
	}
	return at.Add(time.Microsecond)
}

// Notifies reports whether a hook is to be notified of the dead letters of a sink.
func (d DeadLetters) Notifies(sink string) bool {
	return d.HasHook || slices.Contains(d.SinkHooks, sink)
}

// closable selects those that may be closed.
func (d DeadLetters) closable(f buffer.DeadFilter) buffer.DeadFilter {
	f.Closed, f.Notified, f.SinkNotified = false, d.HasHook, d.Sinks != nil
	return f
}

// CountClosable counts the open dead letters that match and may be closed, and those that may not, because a hook was not notified yet.
func (d DeadLetters) CountClosable(ctx context.Context, f buffer.DeadFilter) (open, unnotified int64, err error) {
	some, err := d.Store.CountDead(ctx, d.closable(f))
	if err != nil || !d.HasHook && len(d.SinkHooks) == 0 { // more of them may die between two counts
		return some.Open, 0, err
	}
	f.Notified, f.SinkNotified = false, false
	all, err := d.Store.CountDead(ctx, f)
	return some.Open, max(0, all.Open-some.Open), err
}

const (
	// eachPageSize is the number of dead letters in a query. Payloads may be large.
	eachPageSize = 200
	// eachPageTimeout is how long the database may take for a page.
	eachPageTimeout = 10 * time.Second
)

// Each calls visit for every match, in order, until it returns false or an error.
func (d DeadLetters) Each(ctx context.Context, f buffer.DeadFilter, visit func(*buffer.DeadEvent) (more bool, err error)) error {
	var after *buffer.DeadKey
	for {
		page, cancel := context.WithTimeout(ctx, eachPageTimeout)
		events, err := d.Store.ListDead(page, f, after, eachPageSize)
		cancel()
		if err != nil {
			return err
		}
		for i := range events {
			e := &events[i]
			if more, err := visit(e); err != nil || !more {
				return err
			}
			after = &buffer.DeadKey{EventID: e.ID, GroupID: e.GroupID}
		}
		if len(events) == 0 {
			return nil
		}
	}
}

// DeadLetter is a dead letter in `relay dead list --json` and GET /api/dead. The fields
// are the columns of outbox_dead_letters.
type DeadLetter struct {
	Pipeline string `json:"pipeline"`
	// Sink is set if the pipeline has several; "*" if none takes the topic.
	Sink    string   `json:"sink,omitempty"`
	EventID Identity `json:"event_id"`
	Topic   string   `json:"topic"`
	Key     *string  `json:"key"`
	// Payload is set if it is JSON, PayloadBase64 otherwise.
	Payload       json.RawMessage `json:"payload,omitempty"`
	PayloadBase64 *[]byte         `json:"payload_base64,omitempty"`
	Headers       json.RawMessage `json:"headers"`
	CreatedAt     instant         `json:"created_at"`
	GroupID       string          `json:"group_id"`
	Attempts      int             `json:"attempts"`
	Error         string          `json:"error"`
	// History is what was tried, the first attempt first; left out if nobody wrote it.
	History    []buffer.Attempt `json:"history,omitempty"`
	DiedAt     instant          `json:"died_at"`
	NotifiedAt instant          `json:"notified_at"`
	ClosedAt   instant          `json:"closed_at"`
	// ClosedAs is "replayed" or "discarded"; null while the dead letter is open.
	ClosedAs *string `json:"closed_as"`
	// ClosedBy is who did that; null also if nobody said so.
	ClosedBy *string `json:"closed_by"`
	// ClosedReason is why they did it; null also if nobody said so.
	ClosedReason *string `json:"closed_reason"`
	// EventRow is the row of a custom table that a replay inserts.
	EventRow json.RawMessage `json:"event_row,omitempty"`
	// PayloadHidden reports whether [DeadLetter.WithoutPayload] left something out.
	PayloadHidden bool `json:"payload_hidden,omitempty"`
}

// WithoutPayload is the dead letter without key, payload, headers and row of its event.
func (d DeadLetter) WithoutPayload() DeadLetter {
	d.Key, d.Payload, d.PayloadBase64, d.Headers, d.EventRow, d.PayloadHidden = nil, nil, nil, nil, nil, true
	return d
}

// NewDeadLetter returns a dead letter; redact removes secrets from its error.
func NewDeadLetter(d *buffer.DeadEvent, redact func(string) string) DeadLetter {
	dead := DeadLetter{
		Pipeline: d.Pipeline, Sink: d.Sink, EventID: Identity{d.ID, d.UUID}, Topic: d.Topic, Key: d.Key, Headers: json.RawMessage(d.Headers),
		CreatedAt: instant(d.CreatedAt), GroupID: d.GroupID.String(), Attempts: d.Attempts, Error: redact(d.Error),
		DiedAt: instant(d.DiedAt), NotifiedAt: instant(d.NotifiedAt), ClosedAt: instant(d.ClosedAt), EventRow: d.Row,
	}
	for _, attempt := range d.History {
		attempt.Error = redact(attempt.Error)
		dead.History = append(dead.History, attempt)
	}
	if d.ClosedAs != "" {
		dead.ClosedAs = &d.ClosedAs
	}
	if d.ClosedBy != "" {
		dead.ClosedBy = &d.ClosedBy
	}
	if d.ClosedReason != "" {
		dead.ClosedReason = &d.ClosedReason
	}
	if json.Valid(d.Payload) && utf8.Valid(d.Payload) {
		dead.Payload = d.Payload
	} else {
		dead.PayloadBase64 = &d.Payload
	}
	return dead
}

// Text returns the dead letter as a JSON object, each line after the first behind prefix. Payload, headers and row are as
// they were written, which package json would format anew.
func (d DeadLetter) Text(prefix string) ([]byte, error) {
	written := [...]struct { // the last first, so that a name found first is a field's
		name  string
		value *json.RawMessage
	}{{"event_row", &d.EventRow}, {"headers", &d.Headers}, {"payload", &d.Payload}}
	var texts [len(written)]json.RawMessage
	place := json.RawMessage("0")
	for i, w := range written {
		if texts[i] = *w.value; len(texts[i]) > 0 {
			*w.value = place
		}
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent(prefix, "  ")
	if err := enc.Encode(d); err != nil {
		return nil, err
	}
	text := bytes.TrimRight(buf.Bytes(), "\n")
	for i, w := range written {
		if len(texts[i]) > 0 {
			field := []byte("\n" + prefix + "  \"" + w.name + "\": ")
			text = bytes.Replace(text, append(field[:len(field):len(field)], place...), append(field, texts[i]...), 1)
		}
	}
	return text, nil
}

// Identity is the id of an event. In JSON it is a number, or a string for a uuid.
type Identity struct {
	id   int64
	uuid uuid.UUID
}

// NewIdentity is the id of a dead letter's event.
func NewIdentity(e *buffer.DeadEvent) Identity { return Identity{e.ID, e.UUID} }

// String is the number, or the uuid.
func (i Identity) String() string {
	if i.uuid == uuid.Nil {
		return strconv.FormatInt(i.id, 10)
	}
	return i.uuid.String()
}

func (i Identity) compare(other Identity) int {
	return cmp.Or(cmp.Compare(i.id, other.id), bytes.Compare(i.uuid[:], other.uuid[:]))
}

// MarshalJSON implements json.Marshaler.
func (i Identity) MarshalJSON() ([]byte, error) {
	if i.uuid == uuid.Nil {
		return strconv.AppendInt(nil, i.id, 10), nil
	}
	return json.Marshal(i.uuid.String())
}

// ParseIDs parses the ids of events, decimal numbers or uuids, for a filter. ids is
// never nil, because a nil filter matches all.
func ParseIDs(texts []string) (ids []int64, uuids []uuid.UUID, err error) {
	ids = []int64{}
	for _, text := range texts {
		text = strings.TrimSpace(text)
		if id, err := strconv.ParseInt(text, 10, 64); err == nil {
			ids = append(ids, id)
		} else if id, err := uuid.Parse(text); err == nil && id != uuid.Nil {
			uuids = append(uuids, id)
		} else {
			return nil, nil, fmt.Errorf("id is %q; expected a number or a uuid", text)
		}
	}
	slices.Sort(ids)
	slices.SortFunc(uuids, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	return slices.Compact(ids), slices.Compact(uuids), nil
}

// instant is a time in microseconds, null in JSON if it is zero.
type instant time.Time

// MarshalJSON implements json.Marshaler: RFC 3339 in UTC.
func (i instant) MarshalJSON() ([]byte, error) {
	if time.Time(i).IsZero() {
		return []byte("null"), nil
	}
	return []byte(time.Time(i).UTC().Format(`"2006-01-02T15:04:05.000000Z"`)), nil
}
