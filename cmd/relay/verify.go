package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/probe"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// auditTimeout is how long an audit may take. It reads all of buffer and ledger.
const auditTimeout = 10 * time.Minute

func (a *app) verifyCommand() *cobra.Command {
	var (
		pipeline       string
		repair, asJSON bool
		probes         probe.Config
		c              *cobra.Command
	)
	c = a.withConfig(&cobra.Command{
		Use:   "verify",
		Short: "Audit: does everything add up",
		Long: `Verify counts the events of every pipeline by state and compares the ledger with
the buffer. They may disagree after a restore or after manual changes; --repair fixes
it. The exit status is 1 if anything disagrees.

With --events N, verify commits N probe events to the buffer as an application would,
waits until a running relay has moved them, and accounts for each: delivered, dead,
waiting or unclaimed. Where the sink can be read (Redis streams, JetStream), verify
counts how often each probe arrived. The exit status is 1 unless every probe arrived
exactly once. Probes are real events: consumers of the sink receive them. A custom
table gets no probes.`,
		Example: `  relay verify -c relay.yaml
  relay verify -c relay.yaml --repair
  relay verify -c relay.yaml --pipeline orders --events 10000`,
	}, func(_ *cobra.Command, cfg *config.Config) error {
		if err := cfg.CheckSources(); err != nil {
			return err
		}
		selected, err := selectPipelines(cfg, pipeline)
		if err != nil {
			return err
		}
		if !c.Flags().Changed("events") {
			return a.verify(c.Context(), selected, repair, asJSON)
		}
		switch p := selected[0]; {
		case probes.Events < 1 || probes.Events > probe.MaxEvents:
			return usage("--events is %d; expected 1 to %d", probes.Events, probe.MaxEvents)
		case repair:
			return usage("--repair is used together with --events; expected one of them")
		case probes.Timeout <= 0:
			return usage("--timeout is %v; expected a duration like 1m", probes.Timeout)
		case len(selected) > 1:
			return usage("--pipeline is missing, and there are several pipelines; expected --pipeline NAME with --events")
		case p.Source.Custom.Is():
			return usage("%s: --events does not support the custom table %s; use relay verify without --events to audit it, or relay preview to see its next events",
				p.Name, p.Source.Table)
		}
		return a.probe(c.Context(), selected[0], probes, asJSON)
	})
	flags := c.Flags()
	flags.StringVar(&pipeline, "pipeline", "", "only this pipeline")
	flags.BoolVar(&repair, "repair", false, "fix what disagrees")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	flags.IntVar(&probes.Events, "events", 0, "number of probe events to send and account for")
	flags.StringVar(&probes.Topic, "topic", "relay.verify", "topic of the probes")
	flags.DurationVar(&probes.Timeout, "timeout", time.Minute, "how long to wait for the probes")
	return c
}

// pipelineAudit is the audit of a pipeline.
type pipelineAudit struct {
	pipeline string
	buffer.Audit
	hasHook bool
	repair  *buffer.Repair
	err     error
}

// verify audits the pipelines concurrently.
func (a *app) verify(ctx context.Context, selected []*config.Pipeline, repair, asJSON bool) error {
	all := make([]pipelineAudit, len(selected))
	var wait sync.WaitGroup
	for i, p := range selected {
		wait.Go(func() {
			all[i] = pipelineAudit{pipeline: p.Name, hasHook: p.DeadLetter.Hook != nil}
			all[i].err = all[i].run(ctx, p, repair)
		})
	}
	wait.Wait()
	var audits []pipelineAudit
	for _, one := range all {
		if one.err != nil {
			a.fail(fmt.Errorf("%s: %w", one.pipeline, one.err))
			continue
		}
		a.failed = a.failed || !one.Agrees()
		audits = append(audits, one)
	}
	if asJSON {
		return a.printJSON(auditsJSON(audits))
	}
	_, err := io.WriteString(a.stdout, auditTable(audits)+describeAudits(audits))
	return err
}

// run audits a pipeline. With repair, it repairs disagreements and audits again.
func (d *pipelineAudit) run(ctx context.Context, p *config.Pipeline, repair bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, auditTimeout)
	defer cancel()
	b, err := p.OpenBuffer("verify")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if d.Audit, err = b.Audit(ctx); err != nil || !repair || d.Agrees() {
		return err
	}
	repaired, err := b.Repair(ctx)
	if err != nil {
		return err
	}
	d.repair = &repaired
	d.Audit, err = b.Audit(ctx)
	return err
}

func auditTable(audits []pipelineAudit) string {
	rows := [][]string{{"PIPELINE", "UNCLAIMED", "LEASED", "WAITING", "TO DELETE", "DEAD", "UNNOTIFIED", "CLOSED", "LEDGER AND BUFFER"}}
	for i := range audits {
		d := &audits[i]
		verdict := "agree"
		if !d.Agrees() {
			verdict = "disagree"
		}
		unnotified := "-" // no hook
		if d.hasHook {
			unnotified = admin.Count(d.Dead.Unnotified)
		}
		rows = append(rows, []string{
			d.pipeline, admin.Count(d.Unclaimed), eventsAndBatches(d.Leased), eventsAndBatches(d.Waiting), eventsAndBatches(d.Delivered),
			admin.Count(d.Dead.Open), unnotified, admin.Count(d.Dead.Closed), verdict,
		})
	}
	return columns(rows, 0)
}

func eventsAndBatches(t buffer.Count) string {
	if t.Batches == 0 {
		return "0"
	}
	return fmt.Sprintf("%s (%s)", admin.Count(t.Events), plural(t.Batches, "batch", "batches"))
}

// describeAudits describes what disagrees, and what was repaired.
func describeAudits(audits []pipelineAudit) string {
	var text string
	add := func(d *pipelineAudit, format string, args ...any) {
		text += "\n" + d.pipeline + ": " + fmt.Sprintf(format, args...)
	}
	for i := range audits {
		d := &audits[i]
		fix := "run relay verify --repair"
		if r := d.repair; r != nil {
			add(d, "repaired: added ledger rows for %s of %s, which are due; removed %s without events; corrected %s",
				plural(r.Adopted.Events, "event", "events"), plural(r.Adopted.Batches, "batch", "batches"),
				plural(r.Removed, "ledger row", "ledger rows"), plural(r.Corrected, "event count", "event counts"))
			fix = "leased batches are not repaired; run relay verify --repair again when the lease is over"
		}
		if d.Orphaned.Batches > 0 {
			add(d, "%s of %s have a group_id but no ledger row, as after a restore; relays look for them only every few minutes (%s)",
				plural(d.Orphaned.Events, "event", "events"), plural(d.Orphaned.Batches, "batch", "batches"), fix)
		}
		if d.EmptyBatches > 0 {
			add(d, "%s without events, which were deleted (%s)", plural(d.EmptyBatches, "ledger row", "ledger rows"), fix)
		}
		if d.Miscounted > 0 {
			add(d, "%s with another number of events than the ledger has; some were added or deleted (%s)", plural(d.Miscounted, "batch", "batches"), fix)
		}
	}
	if text != "" {
		text += "\n"
	}
	return text
}

// auditsJSON is the output of relay verify --json.
func auditsJSON(audits []pipelineAudit) any {
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
		Name         string  `json:"name"`
		Agrees       bool    `json:"agrees"`
		Unclaimed    int64   `json:"unclaimed"`
		Leased       count   `json:"leased"`
		Waiting      count   `json:"waiting"`
		ToDelete     count   `json:"to_delete"`
		Delivered    int64   `json:"delivered"`
		Dead         dead    `json:"dead"`
		Orphaned     count   `json:"orphaned"`
		EmptyBatches int64   `json:"empty_batches"`
		Miscounted   int64   `json:"miscounted"`
		Repaired     *repair `json:"repaired,omitempty"`
	}
	list := []pipeline{}
	for i := range audits {
		d := &audits[i]
		p := pipeline{
			Name: d.pipeline, Agrees: d.Agrees(), Unclaimed: d.Unclaimed, Leased: count(d.Leased), Waiting: count(d.Waiting),
			ToDelete: count(d.Delivered), Delivered: d.DeliveredEvents, Dead: dead{d.Dead.Open, d.Dead.Unnotified, d.Dead.Closed},
			Orphaned: count(d.Orphaned), EmptyBatches: d.EmptyBatches, Miscounted: d.Miscounted,
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
