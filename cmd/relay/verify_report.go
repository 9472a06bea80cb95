package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/outboxrelay/relay/internal/admin"
)

// String is the account for people.
func (c *probed) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of topic %s went into %s, ids %s (run %s)\n", many(c.Events, "probe", "probes"), c.Topic, c.Pipeline, ranges(c.ids), c.Run)
	line := func(what string, n int, more string) {
		if more != "" {
			more = "  " + more
		}
		fmt.Fprintf(&b, "  %-10s %8s%s\n", what, admin.Count(int64(n)), more)
	}
	fates := func(what string, some []fate) {
		by := map[string][]int64{}
		var whys []string
		for _, f := range some {
			if by[f.Why] == nil {
				whys = append(whys, f.Why)
			}
			by[f.Why] = append(by[f.Why], f.ID)
		}
		for _, why := range whys {
			line(what, len(by[why]), plain(why)+"; ids "+ranges(by[why]))
		}
	}
	line("delivered", c.Delivered, "")
	fates("dead", c.Dead)
	fates("waiting", c.Waiting)
	if n := len(c.Sending); n > 0 {
		line("sending", n, "a relay has them; ids "+ranges(c.Sending))
	}
	if n := len(c.Unclaimed); n > 0 {
		line("unclaimed", n, "nobody took them: is a relay running? relay run -c relay.yaml; ids "+ranges(c.Unclaimed))
	}
	switch {
	case c.Unread != "":
		fmt.Fprintf(&b, "  whether each arrived once is not known: %s\n", plain(c.Unread))
	case len(c.Missing)+len(c.Twice) == 0:
		fmt.Fprintf(&b, "  each of the delivered is in %s exactly once\n", c.Sink)
	default:
		if n := len(c.Missing); n > 0 {
			line("missing", n, "delivered, and not in "+c.Sink+"; ids "+ranges(c.Missing))
		}
		if n := len(c.Twice); n > 0 {
			line("twice", n, "more than once in "+c.Sink+"; ids "+ranges(c.Twice))
		}
	}
	return b.String()
}

// ranges writes sorted ids short: 1-5, 7; of very many the first.
func ranges(ids []int64) string {
	const most = 10
	var parts []string
	for i := 0; i < len(ids); {
		first := i
		for i++; i < len(ids) && ids[i] == ids[i-1]+1; i++ {
		}
		if len(parts) == most {
			return strings.Join(parts, ", ") + fmt.Sprintf(" and %s more", admin.Count(int64(len(ids)-first)))
		}
		part := strconv.FormatInt(ids[first], 10)
		if last := ids[i-1]; last != ids[first] {
			part += "-" + strconv.FormatInt(last, 10)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}
