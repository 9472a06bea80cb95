package console

import (
	"fmt"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func TestDeadCauseText(t *testing.T) {
	t.Parallel()
	letters := func(n int, topic, err string) (all []buffer.DeadEvent) {
		for i := range n {
			var e buffer.DeadEvent
			e.Topic, e.Error = topic, fmt.Sprintf(err, i)
			all = append(all, e)
		}
		return all
	}
	bills, orders := letters(3, "bills", "no tenant %d"), letters(2, "orders", "no order %d")
	for _, c := range []struct {
		newest []buffer.DeadEvent
		total  int64
		want   string
	}{
		{nil, 1, ""},
		{bills[:1], 1, "Topic bills: no tenant 0"},
		{bills, 3, "All of topic bills: no tenant 0"},
		{bills, 4000, "The newest 3 are all of topic bills: no tenant 0"},
		{append(orders[:2:2], bills...), 5, "3 of topic bills: no tenant 0"},
		{append(orders[:2:2], bills...), 4000, "3 of the newest 5 are of topic bills: no tenant 0"},
		{append(letters(1, "bills", "gone %d"), bills...), 4, "All of topic bills: no tenant 0 (and 1 other error)"},
	} {
		text, _ := deadCauseText(c.newest, c.total)
		testkit.Equal(t, "text", text, c.want)
	}
}
