package admin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func TestGeneralized(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"no tenant 17", "no tenant 18", true},
		{"user cus_9fA83x is gone", "user cus_1bC2 is gone", true},
		{"row 0198c0de-0000-7000-8000-000000000001", "row 0198c0de-0000-7000-8000-000000000002", true},
		{"POST http://h1: 422 Unprocessable Entity: id 1", "POST http://h1: 422 Unprocessable Entity: id 2", true},
		{"400 Bad Request", "422 Unprocessable Entity", false},
		{"address is suppressed", "address is invalid", false},
		{strings.Repeat("é", maxComparedError) + "a", strings.Repeat("é", maxComparedError) + "b", true},
	} {
		if got := generalized(c.a) == generalized(c.b); got != c.same {
			t.Errorf("%q and %q: the same is %v, want %v", generalized(c.a), generalized(c.b), got, c.same)
		}
	}
}

// The number of groups is bounded, whatever the errors are.
func TestErrorGroups_Bounded(t *testing.T) {
	t.Parallel()
	var g ErrorGroups
	for i := range maxErrorGroups + 5 {
		name := strings.Map(func(r rune) rune { return r - '0' + 'a' }, fmt.Sprint(i))
		g.Add(&buffer.DeadEvent{Event: outbox.Event{ID: int64(i)}, DeadLetter: buffer.DeadLetter{Error: name, DiedAt: time.Unix(int64(i), 0)}})
	}
	if len(g.groups) != maxErrorGroups || g.Others != 5 {
		t.Errorf("%d groups and %d others", len(g.groups), g.Others)
	}
}
