package cli

import (
	"context"
	"fmt"
	"io"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/probe"
)

// probe runs probes through a pipeline and reports what happened to them.
func (a *app) probe(ctx context.Context, p *config.Pipeline, c probe.Config, asJSON bool) error {
	bar, step := newProgress(a.stderr, ""), ""
	c.Progress = func(name string, done, total int64) {
		if name != step {
			bar.end()
			bar, step = newProgress(a.stderr, name), name
		}
		bar.set(done, total)
	}
	c.Idle = func(after time.Duration) {
		bar.end()
		a.printErr(fmt.Sprintf("relay: no relay has claimed a probe for %v; start one with relay run -c %s if none is running, or end a pause that relay status shows. Ctrl-C deletes the unclaimed probes", after, a.config))
	}
	ctx, stop := signal.NotifyContext(ctx, endSignals()...)
	defer stop()
	result, err := probe.Run(ctx, p, c)
	bar.end()
	if err != nil {
		return err
	}
	a.failed = a.failed || !result.OK()
	result.Unread = oneLine(a.redact(result.Unread))
	for _, list := range [][]probe.Failed{result.Dead, result.Waiting} {
		for i := range list {
			list[i].Error = a.redact(list[i].Error)
		}
	}
	if asJSON {
		return a.printJSON(result)
	}
	_, err = io.WriteString(a.stdout, a.forFile(probeReport(result)))
	return err
}

// probeReport formats a result for people.
func probeReport(c *probe.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: committed %s with topic %s, ids %s (run %s)\n", c.Pipeline, plural(int64(c.Events), "probe", "probes"), c.Topic, ranges(c.IDs), c.Run)
	line := func(state string, n int, note string) {
		if note != "" {
			note = "  " + note
		}
		fmt.Fprintf(&b, "  %-10s %8s%s\n", state, admin.Count(int64(n)), note)
	}
	failed := func(state string, probes []probe.Failed) {
		ids := map[string][]int64{}
		var errs []string
		for _, p := range probes {
			if ids[p.Error] == nil {
				errs = append(errs, p.Error)
			}
			ids[p.Error] = append(ids[p.Error], p.ID)
		}
		for _, err := range errs {
			line(state, len(ids[err]), printable(err)+"; ids "+ranges(ids[err]))
		}
	}
	line("delivered", c.Delivered, "")
	failed("dead", c.Dead)
	failed("waiting", c.Waiting)
	if n := len(c.Sending); n > 0 {
		line("sending", n, "claimed by a relay; ids "+ranges(c.Sending))
	}
	if n := len(c.Unclaimed); n > 0 {
		line("unclaimed", n, "no relay has claimed them; run relay run -c relay.yaml; ids "+ranges(c.Unclaimed))
	}
	switch {
	case c.Unread != "":
		fmt.Fprintf(&b, "  arrivals are unknown: %s\n", printable(c.Unread))
	case len(c.Missing)+len(c.Duplicates) == 0:
		fmt.Fprintf(&b, "  every delivered probe is in %s exactly once\n", c.Sink)
	default:
		if n := len(c.Missing); n > 0 {
			line("missing", n, "delivered, but not in "+c.Sink+"; ids "+ranges(c.Missing))
		}
		if n := len(c.Duplicates); n > 0 {
			line("duplicates", n, "more than once in "+c.Sink+"; ids "+ranges(c.Duplicates))
		}
	}
	return b.String()
}

// ranges formats sorted ids: 1-5, 7. It shows the first ten ranges.
func ranges(ids []int64) string {
	const maxRanges = 10
	var parts []string
	for i := 0; i < len(ids); {
		first := i
		for i++; i < len(ids) && ids[i] == ids[i-1]+1; i++ {
		}
		if len(parts) == maxRanges {
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
