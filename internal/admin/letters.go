package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Letters are a pipeline's dead letters; the methods with a context are described by
// buffertest.Buffer. All are safe for concurrent use.
type Letters interface {
	ListDead(ctx context.Context, f buffer.DeadFilter, after *buffer.DeadKey, limit int) ([]outbox.Event, error)
	CountDead(ctx context.Context, f buffer.DeadFilter) (buffer.DeadCount, error)
	Replay(ctx context.Context, f buffer.DeadFilter, limit int) (int, error)
	Discard(ctx context.Context, f buffer.DeadFilter, limit int) (int, error)
	// Hooked: the pipeline has a dead-letter hook, which is to hear of a letter
	// before it is closed.
	Hooked() bool
	// Chunk is how many are changed in one transaction.
	Chunk() int
}

// Act is what is done with dead letters: Letters.Replay or Letters.Discard.
type Act func(ctx context.Context, f buffer.DeadFilter, limit int) (int, error)

// Changed is what became of dead letters, as commands and POST /api/dead answer.
type Changed struct {
	Pipeline string `json:"pipeline"`
	// Changed were replayed or discarded; with DryRun, would have been.
	Changed int64 `json:"changed"`
	// Unnotified were left alone, because the dead-letter hook has not heard of them.
	Untold int64 `json:"untold"`
	// Skipped were left alone, because their id is in the buffer.
	Skipped int64 `json:"skipped"`
	DryRun  bool  `json:"dry_run"`
}

// Change does act with all the open letters that match, chunk by chunk; progress, if
// not nil, hears of each: how many so far, of how many. With an error, what was done
// before it stands in Changed.
func Change(ctx context.Context, l Letters, act Act, f buffer.DeadFilter, dryRun bool, progress func(done, of int64)) (Changed, error) {
	c := Changed{DryRun: dryRun}
	f.Closed, f.Notified = false, false
	n, err := l.CountDead(ctx, f)
	if err != nil {
		return c, err
	}
	if l.Hooked() {
		f.Notified = true
		c.Untold = n.Unnotified
	}
	due := n.Open - c.Untold
	if dryRun {
		c.Changed = due
		return c, nil
	}
	// What dies meanwhile is not meant.
	for c.Changed < due {
		n, err := act(ctx, f, int(min(int64(l.Chunk()), due-c.Changed)))
		c.Changed += int64(n)
		if err != nil {
			return c, err
		}
		if n == 0 {
			break
		}
		if progress != nil {
			progress(c.Changed, due)
		}
	}
	c.Skipped = due - c.Changed
	return c, nil
}

// DeadLetter is one as `relay dead list --json` and GET /api/dead show it: the columns
// of outbox_dead_letters.
type DeadLetter struct {
	Pipeline string   `json:"pipeline"`
	EventID  Identity `json:"event_id"`
	Topic    string   `json:"topic"`
	Key      *string  `json:"key"`
	// Payload where it is JSON, else PayloadBase64.
	Payload       json.RawMessage `json:"payload,omitempty"`
	PayloadBase64 *[]byte         `json:"payload_base64,omitempty"`
	Headers       json.RawMessage `json:"headers"`
	CreatedAt     instant         `json:"created_at"`
	GroupID       string          `json:"group_id"`
	Attempts      int             `json:"attempts"`
	Error         string          `json:"error"`
	DiedAt        instant         `json:"died_at"`
	ToldAt        instant         `json:"notified_at"`
	ClosedAt      instant         `json:"closed_at"`
	// EventRow is what a replay puts back, where the table is the user's own.
	EventRow json.RawMessage `json:"event_row,omitempty"`
}

// NewDeadLetter shows a dead letter; redact takes secrets out of its error.
func NewDeadLetter(e *outbox.Event, redact func(string) string) DeadLetter {
	d := e.DeadLetter
	shown := DeadLetter{
		Pipeline: d.Pipeline, EventID: Identity{e.ID, e.UUID}, Topic: e.Topic, Key: e.Key, Headers: json.RawMessage(e.Headers),
		CreatedAt: instant(e.CreatedAt), GroupID: d.GroupID.String(), Attempts: d.Attempts, Error: redact(d.Error),
		DiedAt: instant(d.DiedAt), ToldAt: instant(d.NotifiedAt), ClosedAt: instant(d.ClosedAt), EventRow: d.Row,
	}
	if json.Valid(e.Payload) && utf8.Valid(e.Payload) {
		shown.Payload = e.Payload
	} else {
		shown.PayloadBase64 = &e.Payload
	}
	return shown
}

// Identity is what an event is called: a number in JSON, and a text where it is a uuid.
type Identity struct {
	id   int64
	uuid uuid.UUID
}

// MarshalJSON writes it.
func (i Identity) MarshalJSON() ([]byte, error) {
	if i.uuid == uuid.Nil {
		return strconv.AppendInt(nil, i.id, 10), nil
	}
	return json.Marshal(i.uuid.String())
}

// Named reads the ids of events, decimal or uuids, for a filter that means those alone.
// The error names the first that is neither.
func Named(texts []string) (ids []int64, uuids []uuid.UUID, err error) {
	ids = []int64{} // not nil, which is any
	for _, text := range texts {
		text = strings.TrimSpace(text)
		if id, err := strconv.ParseInt(text, 10, 64); err == nil {
			ids = append(ids, id)
		} else if id, err := uuid.Parse(text); err == nil && id != uuid.Nil {
			uuids = append(uuids, id)
		} else {
			return nil, nil, fmt.Errorf("%q is no event's id, a number or a uuid was expected", text)
		}
	}
	slices.Sort(ids)
	slices.SortFunc(uuids, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	return slices.Compact(ids), slices.Compact(uuids), nil
}

// instant is a time to the microsecond; null when it is not set.
type instant time.Time

// MarshalJSON writes it as RFC 3339, in UTC.
func (i instant) MarshalJSON() ([]byte, error) {
	if time.Time(i).IsZero() {
		return []byte("null"), nil
	}
	return []byte(time.Time(i).UTC().Format(`"2006-01-02T15:04:05.000000Z"`)), nil
}
