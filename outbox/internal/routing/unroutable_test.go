package routing

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestUnroutable: events that cannot be routed together are divided, and one alone waits. A batch whose read breaks waits as a whole until that happened
// three times in a row, because a database that restarts breaks reads of any batch.
func TestUnroutable(t *testing.T) {
	t.Parallel()
	broken := fmt.Errorf("%w: unexpected EOF", buffer.ErrDatabaseUnavailable)
	bad, foreign := fmt.Errorf("%w: division by zero", buffer.ErrEventData), errors.New(`function "f" does not exist`)
	for _, c := range []struct {
		name               string
		n, part            int
		notRead, projected error
		outages            int
		want               string // outcomes: ids, or how long the batch waits, and its outages
	}{
		{"routable", 5, 0, nil, nil, 0, ""},
		{"too large", 5, 2, buffer.ErrTooLarge, nil, 0, "[1 2]/0 [3 4]/0 [5]/0"},
		{"slow", 4, 0, buffer.ErrSlowRead, nil, 0, "[1]/0 [2]/0 [3]/0 [4]/0"},
		{"too large alone", 1, 0, buffer.ErrTooLarge, nil, 0, "1s/1"},
		{"broken", 5, 2, broken, nil, 0, "1s/1"},
		{"broken twice", 5, 2, broken, nil, 1, "2s/2"},
		{"broken three times", 5, 2, broken, nil, 2, "[1 2 3]/0 [4 5]/0"},
		{"broken after other outages", 2, 0, broken, nil, 40, "[1]/0 [2]/0"},
		{"broken three times, alone", 1, 0, broken, nil, 2, "4s/3"},
		{"broken for hours, alone", 1, 0, broken, nil, 1000, "5m0s/1001"},
		{"bad data", 3, 0, nil, bad, 0, "[1 2]/0 [3]/0"},
		{"bad data alone", 1, 0, nil, bad, 0, "1s/1"},
		{"a projection that fails for all", 3, 0, nil, foreign, 5, "32s/6"},
		{"a database that is away", 3, 0, nil, broken, 5, "32s/6"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := &buffer.Lease{Batch: buffer.Batch{GroupID: buffer.NewGroupID()}, Outages: c.outages, Attempts: 2, ProjectErr: c.projected}
			for i := range c.n {
				l.Events = append(l.Events, outbox.Event{ID: int64(i + 1)})
			}
			if c.notRead != nil {
				l.FailRead(c.notRead, c.part)
			}
			outcomes, why := new(Failing).Unroutable(l)
			var got []string
			for _, o := range outcomes {
				text := fmt.Sprint(o.IDs)
				if o.IDs == nil {
					text = o.After.String()
				}
				got = append(got, fmt.Sprint(text, "/", o.Outages))
				if o.Verdict != buffer.Retry || o.Attempts != 2 || o.Error == "" || (o.GroupID == l.GroupID) != (o.IDs == nil) {
					t.Errorf("outcome %+v", o)
				}
			}
			if got := strings.Join(got, " "); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			waits := len(outcomes) == 1 && outcomes[0].IDs == nil
			if (why != nil) != waits {
				t.Errorf("why: %v", why)
			}
		})
	}
}
