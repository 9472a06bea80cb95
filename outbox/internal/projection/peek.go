package projection

import (
	"errors"
	"slices"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// maxPeeks is how many projections a peek runs to find the events whose data fails: enough for five among a thousand. Those that it did not come to are
// left out.
const maxPeeks = 100

// PeekParts finds the events of a peeked batch whose data makes its projection fail, by halving, as a relay does, and returns the batch with those alone
// rejected. peek is to peek again, at the first limit events but for some. If it fails, or each event fails, the batch is returned as it is.
func PeekParts(batch *buffer.Lease, peek func(limit int, without []outbox.Event) (*buffer.Lease, error)) *buffer.Lease {
	if batch == nil || batch.Len() < 2 || !errors.Is(batch.ProjectErr, buffer.ErrEventData) {
		return batch
	}
	all := batch.AllEvents()
	parts := [][]outbox.Event{all[:len(all)/2], all[len(all)/2:]}
	found := map[string]buffer.Rejection{} // by identity, with no Err for one that can be sent
	isJSON, ran := true, false
	for range maxPeeks {
		if len(parts) == 0 {
			break
		}
		part := parts[0]
		parts = parts[1:]
		names := make(map[string]bool, len(part))
		for i := range part {
			names[part[i].Identity()] = true
		}
		b, err := peek(len(part), slices.DeleteFunc(slices.Clone(all), func(e outbox.Event) bool { return names[e.Identity()] }))
		switch {
		case err != nil || b != nil && b.ProjectErr != nil && !errors.Is(b.ProjectErr, buffer.ErrEventData):
			return batch
		case b == nil: // they are claimed meanwhile
			continue
		case b.ProjectErr != nil && len(part) > 1:
			parts = append([][]outbox.Event{part[:len(part)/2], part[len(part)/2:]}, parts...)
			continue
		}
		ran = ran || b.ProjectErr == nil
		isJSON = isJSON && (b.PayloadIsJSON || len(b.Events) == 0)
		for _, e := range b.Events {
			found[e.Identity()] = buffer.Rejection{Event: e}
		}
		for _, r := range b.Rejected {
			found[r.Event.Identity()] = r
		}
	}
	if !ran {
		return batch
	}
	some := *batch
	some.Events, some.Rejected, some.ProjectErr, some.PayloadIsJSON = nil, nil, nil, isJSON
	for i := range all {
		f, ok := found[all[i].Identity()]
		f.Event.ID = all[i].ID // that of an event with a uuid is its place
		switch {
		case !ok:
		case f.Err != nil:
			some.Rejected = append(some.Rejected, f)
		default:
			some.Events = append(some.Events, f.Event)
		}
	}
	return &some
}
