package custom

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

type settlement struct {
	*ledger.Settlement
	table *Table
}

// SettleSteps are the steps for the events of a settlement.
func (t *Table) SettleSteps(with *ledger.Settlement, o *outcomes.Set) []pg.Step {
	s := settlement{with, t}
	if o.RetriesWhole() {
		return nil
	}
	var steps []pg.Step
	for _, d := range o.Dead {
		steps = append(append(steps, s.HistoryStep(d)), s.bury(d)...)
	}
	for _, r := range o.Retry {
		steps = append(steps, s.HistoryStep(r), s.regroup(r))
	}
	if step, ok := s.FreeRest(o); ok {
		return append(steps, step)
	}
	if s.Shared() {
		return append(steps, s.sharedSteps(o)...)
	}
	delivered, dead := o.IDs(s.Batch)
	sql := t.removals(s.Batch.DeliveryRecorded(), false)
	if s.Tables.Archive {
		if len(delivered) > 0 {
			slices.Sort(delivered)
			args := append([]string{s.Batch.GroupID.String(), s.finds(delivered)}, s.contents(delivered)...)
			steps = append(steps, t.removing(with, len(delivered), true, sql, args)...)
		}
	} else { // then both are only deleted or marked
		dead = append(delivered, dead...)
	}
	if len(dead) > 0 {
		slices.Sort(dead)
		steps = append(steps, t.removing(with, len(dead), false, sql, []string{s.Batch.GroupID.String(), s.finds(dead)})...)
	}
	if !s.Batch.DeliveryRecorded() {
		s.RecordKept(func() pg.Step {
			settled, dead := o.IDs(s.Batch)
			return pg.Step{SQL: s.Tables.SQL(s.table.either(recordKeptSQL, recordKeptUUIDSQL)), Args: append(s.KeptArgs(), s.finds(append(settled, dead...)))}
		})
	}
	if s.Batch.DeliveryRecorded() {
		ids := s.Batch.IDs()
		finds := s.finds(ids)
		args := []string{s.Tables.Buffer, s.Batch.GroupID.String(), pg.Int(s.Batch.LeaseNo), finds}
		free := s.Free(pg.Step{SQL: s.Tables.SQL(freeSQL), Args: []string{finds, s.Batch.GroupID.String(), finds, pg.IDArray(ids)}})
		steps = slices.Insert(steps, 0, free)
		steps = append(
			steps,
			pg.Step{SQL: s.Tables.SQL(closeSQL), Args: args, Affected: &s.Closed},
			s.Left(pg.Step{SQL: s.Tables.SQL(keepSQL), Args: append(slices.Clone(args), finds, pg.IDArray(ids))}),
		)
	}
	return steps
}

func (s *settlement) finds(ids []int64) string { return s.table.finds(s.Batch.AllEvents(), ids) }

func (s *settlement) bury(o *buffer.Outcome) []pg.Step {
	ids := o.IDs
	if ids == nil {
		ids = s.Batch.IDs()
	}
	finds := s.finds(ids)
	args := []string{s.Batch.Pipeline, s.Batch.GroupID.String(), pg.Int(int64(o.Attempts)), s.table.Base.DB.Text(o.Error), finds, finds}
	contents := s.contents(ids)
	stamp := s.Batch.GroupID.String()
	if s.Shared() {
		stamp = s.Batch.ClaimID.String()
	}
	return []pg.Step{
		{SQL: s.Tables.SQL(burySQL), Args: append(append(args, contents...), stamp)},
		{SQL: s.Tables.SQL(unburiedSQL), Args: []string{s.Batch.Pipeline, s.Batch.GroupID.String(), finds, finds, contents[0], stamp}},
	}
}

func (s *settlement) regroup(o *buffer.Outcome) pg.Step {
	if s.Shared() {
		return s.regroupShared(o)
	}
	origins := s.Batch.PartOrigins()
	return pg.Step{SQL: s.Tables.SQL(s.table.either(regroupSQL, regroupUUIDSQL)), Args: []string{
		s.Tables.Buffer, s.Batch.GroupID.String(), o.GroupID.String(), s.finds(o.IDs), pg.Interval(o.After), s.table.Base.Owner,
		pg.Int(int64(o.Attempts)), pg.Int(int64(o.Outages)), pg.UUIDArray(origins), s.table.Base.DB.Text(o.Error), s.table.Base.DB.OptionalText(o.Address), pg.Int(int64(o.UnfinishedLeases)),
	}}
}

// contents are what was sent of these events, in arrays: their ids, topics, keys,
// payloads, headers and times.
func (s *settlement) contents(ids []int64) []string {
	var numbers, topics, keys, payloads, headers, times pg.Array
	all := s.Batch.AllEvents()
	for _, id := range ids {
		e := eventOf(all, id)
		if e == nil {
			continue
		}
		numbers.Append(strconv.AppendInt(nil, id, 10))
		topics.Append([]byte(e.Topic))
		if e.Key == nil {
			keys.Append(nil)
		} else {
			keys.Append(append([]byte{}, *e.Key...))
		}
		payloads.Append(s.payload(e))
		if depth(e.Headers) <= maxDepth {
			headers.Append(e.Headers)
		} else {
			headers.Append(nil)
		}
		times.Append([]byte(pg.Timestamp(e.CreatedAt)))
	}
	return []string{numbers.String(), topics.String(), keys.String(), payloads.String(), headers.String(), times.String()}
}

// payload is how a dead letter's column reads what was sent; nil: nothing was.
func (s *settlement) payload(e *outbox.Event) []byte {
	switch {
	case e.Payload == nil:
		return nil
	case !pg.IsJSON(s.Tables.DeadPayloadOID):
		return []byte(`\x` + hex.EncodeToString(e.Payload))
	case fitsJSON(e.Payload):
		return e.Payload
	}
	// A dead letter is for people and for the hook; a replay puts back the row.
	return []byte(`{"payload_base64":"` + base64.StdEncoding.EncodeToString(e.Payload) + `"}`)
}

// fitsJSON reports whether a json column takes the payload. PostgreSQL's parser recurses,
// so its stack limits the depth.
func fitsJSON(payload []byte) bool {
	return utf8.Valid(payload) && json.Valid(payload) && depth(payload) <= maxDepth
}

// maxDepth is far less than the default max_stack_depth allows.
const maxDepth = 1000

// depth returns how deep arrays and objects are nested in valid JSON.
func depth(text []byte) (deepest int) {
	open, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			open++
			deepest = max(deepest, open)
		case c == ']' || c == '}':
			open--
		}
	}
	return deepest
}
