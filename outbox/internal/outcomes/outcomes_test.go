package outcomes_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
)

func TestGroup(t *testing.T) {
	t.Parallel()
	batch := &outbox.Batch{GroupID: outbox.NewGroupID(), Events: []outbox.Event{{ID: 1}, {ID: 2}, {ID: 3}, {ID: 4}}}
	s, err := outcomes.Group(batch, []outbox.Outcome{
		{Verdict: outbox.Delivered, IDs: []int64{1}}, {Verdict: outbox.Dead, IDs: []int64{2}},
		{Verdict: outbox.Retry, IDs: []int64{3}, GroupID: outbox.NewGroupID()}, {Verdict: outbox.Delivered, IDs: []int64{4}},
	})
	if err != nil || s.All != nil || s.RetriesWhole() || len(s.Retry) != 1 {
		t.Fatalf("got %+v, %v", s, err)
	}
	if delivered, dead := s.IDs(batch); !slices.Equal(delivered, []int64{1, 4}) || !slices.Equal(dead, []int64{2}) {
		t.Errorf("delivered %v, dead %v", delivered, dead)
	}
	s, err = outcomes.Group(batch, []outbox.Outcome{{Verdict: outbox.Delivered}})
	if delivered, dead := s.IDs(batch); err != nil || s.All == nil || s.RetriesWhole() || !slices.Equal(delivered, batch.IDs()) || dead != nil {
		t.Errorf("delivered %v, dead %v, %+v, %v", delivered, dead, s, err)
	}
	s, err = outcomes.Group(batch, []outbox.Outcome{{Verdict: outbox.Retry, GroupID: batch.GroupID}})
	if err != nil || !s.RetriesWhole() {
		t.Errorf("got %+v, %v", s, err)
	}
}

func TestGroup_Rejects(t *testing.T) {
	t.Parallel()
	batch := &outbox.Batch{GroupID: outbox.NewGroupID()}
	for want, all := range map[string][]outbox.Outcome{
		"no outcome":                      nil,
		"expected it alone":               {{Verdict: outbox.Delivered, IDs: []int64{1}}, {Verdict: outbox.Dead}},
		"verdict is":                      {{Verdict: 9}},
		"group_id of a retry of ids []":   {{Verdict: outbox.Retry, GroupID: outbox.NewGroupID()}},
		"group_id of a retry of ids [1]":  {{Verdict: outbox.Retry, IDs: []int64{1}, GroupID: batch.GroupID}},
		"for the whole batch is one of 2": {{Verdict: outbox.Retry, GroupID: batch.GroupID}, {Verdict: outbox.Delivered, IDs: []int64{1}}},
	} {
		if s, err := outcomes.Group(batch, all); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %+v, %v; expected %q", all, s, err, want)
		}
	}
}
