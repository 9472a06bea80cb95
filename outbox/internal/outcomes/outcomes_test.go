package outcomes_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
)

func TestGroup(t *testing.T) {
	t.Parallel()
	batch := &buffer.Lease{Batch: buffer.Batch{GroupID: buffer.NewGroupID(), Events: []outbox.Event{{ID: 1}, {ID: 2}, {ID: 3}, {ID: 4}}}}
	s, err := outcomes.Group(batch, []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: []int64{1}},
		{Verdict: buffer.Dead, IDs: []int64{2}},
		{Verdict: buffer.Retry, IDs: []int64{3}, GroupID: buffer.NewGroupID()},
		{Verdict: buffer.Delivered, IDs: []int64{4}},
	})
	if err != nil || s.All != nil || s.RetriesWhole() || len(s.Retry) != 1 {
		t.Fatalf("got %+v, %v", s, err)
	}
	if delivered, dead := s.IDs(batch); !slices.Equal(delivered, []int64{1, 4}) || !slices.Equal(dead, []int64{2}) {
		t.Errorf("delivered %v, dead %v", delivered, dead)
	}
	s, err = outcomes.Group(batch, []buffer.Outcome{{Verdict: buffer.Delivered}})
	if delivered, dead := s.IDs(batch); err != nil || s.All == nil || s.RetriesWhole() || !slices.Equal(delivered, batch.IDs()) || dead != nil {
		t.Errorf("delivered %v, dead %v, %+v, %v", delivered, dead, s, err)
	}
	s, err = outcomes.Group(batch, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: batch.GroupID}})
	if err != nil || !s.RetriesWhole() {
		t.Errorf("got %+v, %v", s, err)
	}
}

func TestGroup_Rejects(t *testing.T) {
	t.Parallel()
	batch := &buffer.Lease{Batch: buffer.Batch{GroupID: buffer.NewGroupID()}}
	for want, all := range map[string][]buffer.Outcome{
		"no outcome":                      nil,
		"expected it alone":               {{Verdict: buffer.Delivered, IDs: []int64{1}}, {Verdict: buffer.Dead}},
		"verdict is":                      {{Verdict: 9}},
		"group_id of a retry of ids []":   {{Verdict: buffer.Retry, GroupID: buffer.NewGroupID()}},
		"group_id of a retry of ids [1]":  {{Verdict: buffer.Retry, IDs: []int64{1}, GroupID: batch.GroupID}},
		"for the whole batch is one of 2": {{Verdict: buffer.Retry, GroupID: batch.GroupID}, {Verdict: buffer.Delivered, IDs: []int64{1}}},
	} {
		if s, err := outcomes.Group(batch, all); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %+v, %v; expected %q", all, s, err, want)
		}
	}
}
