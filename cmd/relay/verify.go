package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// auditTime is how long an audit may take: it reads all of buffer and ledger.
const auditTime = 10 * time.Minute

func (a *app) verifyCommand() *cobra.Command {
	var (
		pipeline       string
		repair, asJSON bool
		probe          probeConfig
		c              *cobra.Command
	)
	c = a.configured(&cobra.Command{
		Use:   "verify",
		Short: "Audit: does everything add up",
		Long: `Verify says where every event of every pipeline is, and whether ledger and buffer
agree: a stamped event without a ledger row, a ledger row without events. They may
disagree after a restore, or when somebody changed the tables by hand; --repair mends
it. The exit status is 1 when something does not agree.

With --events N it commits N probe events to the buffer, as an application does, waits
until a running relay has moved them, and accounts for each by its id: delivered, dead,
waiting, or not even claimed. Where the sink can be read (Redis streams, JetStream), it
is counted there how often each arrived. The exit status is 1 unless all were delivered,
and arrived exactly once. Probes are real events: whoever reads the sink gets them. They
need the relay's own table: in one of yours a row means what your application means by it.`,
		Example: `  relay verify -c relay.yaml
  relay verify -c relay.yaml --repair
  relay verify -c relay.yaml --pipeline orders --events 10000`,
	}, func(_ *cobra.Command, cfg *config.Config) error {
		logging.Disable() // go-redis has a log of its own; its errors come to us anyhow
		if err := cfg.CheckSources(); err != nil {
			return err
		}
		chosen, err := choose(cfg, pipeline)
		if err != nil {
			return err
		}
		if !c.Flags().Changed("events") {
			return a.verify(c.Context(), chosen, repair, asJSON)
		}
		switch {
		case probe.events < 1 || probe.events > maxProbes:
			return usage("--events is %d, 1 to %d was expected", probe.events, maxProbes)
		case repair:
			return usage("--repair stands beside --events, one of them was expected")
		case probe.timeout <= 0:
			return usage("--timeout is %v, a time like 1m was expected", probe.timeout)
		case len(chosen) > 1:
			return usage("there are several pipelines: --pipeline NAME was expected beside --events")
		case chosen[0].Source.Own.Is():
			return usage("%s: %s is a table of your own, and a probe is a row of the relay's own table: --events does not go with it. relay verify without it audits the table, "+
				"relay preview shows what its next events would send", chosen[0].Name, chosen[0].Source.Table)
		}
		return a.probe(c.Context(), chosen[0], probe, asJSON)
	})
	flags := c.Flags()
	flags.StringVar(&pipeline, "pipeline", "", "this pipeline only")
	flags.BoolVar(&repair, "repair", false, "mend what does not agree")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	flags.IntVar(&probe.events, "events", 0, "send so many probe events, and account for each")
	flags.StringVar(&probe.topic, "topic", "relay.verify", "the probes' topic")
	flags.DurationVar(&probe.timeout, "timeout", time.Minute, "how long to wait for the probes")
	return c
}

// audited is what an audit found of one pipeline.
type audited struct {
	Name string
	buffer.Audit
	hooked bool
	repair *buffer.Repair
	err    error
}

// verify audits pipelines at the same time and tells of each.
func (a *app) verify(ctx context.Context, chosen []*config.Pipeline, repair, asJSON bool) error {
	all := make([]audited, len(chosen))
	var wait sync.WaitGroup
	for i, p := range chosen {
		wait.Go(func() {
			all[i] = audited{Name: p.Name, hooked: p.DeadLetter.Hook != nil}
			all[i].err = all[i].look(ctx, p, repair)
		})
	}
	wait.Wait()
	for i := range all {
		one := &all[i]
		if one.err != nil {
			a.fail(fmt.Errorf("%s: %w", one.Name, one.err))
		}
		a.failed = a.failed || !one.Agrees()
	}
	if asJSON {
		return a.printJSON(auditsJSON(all))
	}
	_, err := io.WriteString(a.stdout, auditTable(all)+disagreements(all))
	return err
}

// look audits a pipeline and, if wanted and needed, mends it and looks again.
func (d *audited) look(ctx context.Context, p *config.Pipeline, repair bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, auditTime)
	defer cancel()
	b, err := p.OpenBuffer("verify")
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := b.Close(); err == nil {
			err = closeErr
		}
	}()
	if d.Audit, err = b.Audit(ctx); err != nil || !repair || d.Agrees() {
		return err
	}
	mended, err := b.Repair(ctx)
	if err != nil {
		return err
	}
	d.repair = &mended
	d.Audit, err = b.Audit(ctx)
	return err
}

func auditTable(all []audited) string {
	rows := [][]string{{"PIPELINE", "UNCLAIMED", "LEASED", "WAITING", "TO DELETE", "DEAD", "UNTOLD", "CLOSED", "LEDGER AND BUFFER"}}
	for i := range all {
		d := &all[i]
		if d.err != nil {
			continue
		}
		verdict := "agree"
		if !d.Agrees() {
			verdict = "do not agree"
		}
		untold := "-" // there is nobody to tell
		if d.hooked {
			untold = admin.Count(d.Dead.Unnotified)
		}
		rows = append(rows, []string{
			d.Name, admin.Count(d.Unclaimed), tally(d.Leased), tally(d.Waiting), tally(d.Delivered),
			admin.Count(d.Dead.Open), untold, admin.Count(d.Dead.Closed), verdict,
		})
	}
	return columns(rows, 0)
}

// tally shows batches and their events.
func tally(t buffer.Count) string {
	if t.Batches == 0 {
		return "0"
	}
	return fmt.Sprintf("%s (%s)", admin.Count(t.Events), many(int(t.Batches), "batch", "batches"))
}

// disagreements says in sentences what is wrong, and what was mended.
func disagreements(all []audited) string {
	var text string
	say := func(d *audited, format string, args ...any) {
		text += "\n" + d.Name + ": " + fmt.Sprintf(format, args...)
	}
	for i := range all {
		d := &all[i]
		again := "relay verify --repair"
		if r := d.repair; r != nil {
			say(d, "mended: %s of %s have a ledger row again and are due; %s without events removed; %s corrected",
				many(int(r.Adopted.Events), "event", "events"), many(int(r.Adopted.Batches), "batch", "batches"),
				many(int(r.Removed), "ledger row", "ledger rows"), many(int(r.Corrected), "count", "counts"))
			again = "what is leased is left alone: relay verify --repair again, when the lease is over"
		}
		if d.Orphaned.Batches > 0 {
			say(d, "%s of %s have a group_id and no ledger row, as after a restore: nobody would send them but a relay that looks for such, every few minutes (%s)",
				many(int(d.Orphaned.Events), "event", "events"), many(int(d.Orphaned.Batches), "batch", "batches"), again)
		}
		if d.EmptyBatches > 0 {
			say(d, "%s without any event: somebody deleted them (%s)", many(int(d.EmptyBatches), "ledger row", "ledger rows"), again)
		}
		if d.Miscounted > 0 {
			say(d, "%s not with as many events as written down: somebody added or deleted some (%s)", many(int(d.Miscounted), "batch", "batches"), again)
		}
	}
	if text != "" {
		text += "\n"
	}
	return text
}

// auditsJSON is what `relay verify --json` prints.
func auditsJSON(all []audited) any {
	type count struct {
		Batches int64 `json:"batches"`
		Events  int64 `json:"events"`
	}
	type repair struct {
		Adopted   count `json:"adopted"`
		Removed   int64 `json:"removed"`
		Corrected int64 `json:"corrected"`
	}
	type dead struct {
		Open       int64 `json:"open"`
		Unnotified int64 `json:"unnotified"`
		Closed     int64 `json:"closed"`
	}
	type pipeline struct {
		Name      string  `json:"name"`
		Agrees    bool    `json:"agrees"`
		Unclaimed int64   `json:"unclaimed"`
		Leased    count   `json:"leased"`
		Waiting   count   `json:"waiting"`
		Marked    count   `json:"to_delete"`
		Delivered int64   `json:"delivered"`
		Dead      dead    `json:"dead"`
		Orphans   count   `json:"orphans"`
		Hollow    int64   `json:"hollow"`
		Uneven    int64   `json:"uneven"`
		Repaired  *repair `json:"repaired,omitempty"`
	}
	list := []pipeline{}
	for i := range all {
		d := &all[i]
		if d.err != nil {
			continue
		}
		p := pipeline{
			Name: d.Name, Agrees: d.Agrees(), Unclaimed: d.Unclaimed, Leased: count(d.Leased), Waiting: count(d.Waiting),
			Marked: count(d.Delivered), Delivered: d.DeliveredEvents, Dead: dead(d.Dead), Orphans: count(d.Orphaned), Hollow: d.EmptyBatches, Uneven: d.Miscounted,
		}
		if d.repair != nil {
			p.Repaired = &repair{count(d.repair.Adopted), d.repair.Removed, d.repair.Corrected}
		}
		list = append(list, p)
	}
	return struct {
		Pipelines []pipeline `json:"pipelines"`
	}{list}
}
