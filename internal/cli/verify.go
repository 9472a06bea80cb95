package cli

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
	c = a.withConfigOf(&cobra.Command{
		Use:   "verify",
		Short: "Audit: does everything add up",
		Long: `Verify counts the events of every pipeline by state and compares the ledger with
the buffer. They may disagree after a restore or after manual changes; --repair fixes
it. The exit status is 1 if anything disagrees.

With --events N, verify commits N probe events to the buffer as an application would,
waits until a running relay has moved them, and accounts for each: delivered, dead,
waiting or unclaimed. Where the sink can be read (Redis streams, JetStream), verify
counts how often each probe arrived. The exit status is 1 unless every probe arrived
exactly once. Probes are real events: consumers of the sink receive them. Ctrl-C
deletes those that no relay has claimed yet. A custom table gets no probes.`,
		Example: `  relay verify -c relay.yaml
  relay verify -c relay.yaml --repair
  relay verify -c relay.yaml --pipeline orders --events 10000`,
	}, func() bool { return c.Flags().Changed("events") }, func(_ *cobra.Command, cfg *config.Config) error {
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
		case !p.Takes(probes.Topic):
			return usage("--topic is %q, which no sink of %s takes; expected one that matches", probes.Topic, p.Name)
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

// auditReport is the output of relay verify --json.
type auditReport struct {
	Pipelines []pipelineAudit `json:"pipelines"`
}

type pipelineAudit struct {
	Name         string `json:"name"`
	Agrees       bool   `json:"agrees"`
	Unclaimed    int64  `json:"unclaimed"`
	Delayed      int64  `json:"delayed"`
	Leased       count  `json:"leased"`
	Waiting      count  `json:"waiting"`
	ToDelete     count  `json:"to_delete"`
	Delivered    int64  `json:"delivered"`
	Dead         dead   `json:"dead"`
	Orphaned     count  `json:"orphaned"`
	EmptyBatches int64  `json:"empty_batches"`
	Miscounted   int64  `json:"miscounted"`
	// Sinks is set if there are several.
	Sinks    *sinksAudit `json:"sinks,omitempty"`
	Repaired *repair     `json:"repaired,omitempty"`
	// NothingSent is why nothing is sent, as in the status.
	NothingSent string `json:"nothing_is_sent,omitempty"`

	hasHook bool
}

// sinksAudit is the part of an audit about several sinks; see buffer.Audit.
type sinksAudit struct {
	Split       int64 `json:"split"`
	Doubled     int64 `json:"doubled"`
	Unserved    count `json:"unserved"`
	Kept        count `json:"kept"`
	Unrouted    count `json:"unrouted"`
	KeptDeleted int64 `json:"kept_deleted"`
}

type count struct {
	Batches int64 `json:"batches"`
	Events  int64 `json:"events"`
}

type dead struct {
	Open       int64 `json:"open"`
	Unnotified int64 `json:"unnotified"`
	Closed     int64 `json:"closed"`
}

type repair struct {
	Adopted   count `json:"adopted"`
	Cleared   int64 `json:"cleared"`
	Removed   int64 `json:"removed"`
	Corrected int64 `json:"corrected"`
	Joined    int64 `json:"joined,omitempty"`
}

// verify audits the pipelines concurrently.
func (a *app) verify(ctx context.Context, selected []*config.Pipeline, repair, asJSON bool) error {
	all, errs := make([]pipelineAudit, len(selected)), make([]error, len(selected))
	var wait sync.WaitGroup
	for i, p := range selected {
		wait.Go(func() { all[i], errs[i] = audit(ctx, p, repair) })
	}
	wait.Wait()
	report := auditReport{Pipelines: []pipelineAudit{}}
	for i, err := range errs {
		if err != nil {
			a.fail(fmt.Errorf("%s: %w", selected[i].Name, err))
			continue
		}
		a.failed = a.failed || !all[i].Agrees || all[i].Sinks != nil && all[i].Sinks.Unserved.Batches > 0
		report.Pipelines = append(report.Pipelines, all[i])
	}
	if asJSON {
		return a.printJSON(report)
	}
	_, err := io.WriteString(a.stdout, report.table()+report.describe())
	return err
}

// audit audits a pipeline. If ledger and buffer disagree and repairing is set, it repairs them and audits again.
func audit(ctx context.Context, p *config.Pipeline, repairing bool) (_ pipelineAudit, err error) {
	ctx, cancel := context.WithTimeout(ctx, auditTimeout)
	defer cancel()
	b, err := p.OpenBuffer("verify")
	if err != nil {
		return pipelineAudit{}, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	found, err := b.Audit(ctx)
	var repaired *repair
	if err == nil && repairing && (!found.Agrees() || found.KeptDeleted > 0) {
		var r buffer.Repair
		if r, err = b.Repair(ctx); err == nil {
			repaired = &repair{count(r.Adopted), r.Cleared, r.Removed, r.Corrected, r.Joined}
			found, err = b.Audit(ctx)
		}
	}
	problem := ""
	if err == nil {
		if wrong := admin.Unsendable(ctx, b); wrong != nil {
			problem = wrong.Error()
		}
	}
	var sinks *sinksAudit
	if p.Sinks != nil {
		sinks = &sinksAudit{found.Split, found.Doubled, count(found.Unserved), count(found.Kept), count(found.Unrouted), found.KeptDeleted}
	}
	return pipelineAudit{
		Sinks: sinks, Name: p.Name, Agrees: found.Agrees(), Unclaimed: found.Unclaimed, Delayed: found.Delayed, Leased: count(found.Leased), Waiting: count(found.Waiting),
		ToDelete: count(found.Delivered), Delivered: found.DeliveredEvents, Dead: dead(found.Dead), Orphaned: count(found.Orphaned),
		EmptyBatches: found.EmptyBatches, Miscounted: found.Miscounted, Repaired: repaired, NothingSent: problem, hasHook: p.DeadLetter.Hook != nil || p.SinkHooks() != nil,
	}, err
}

func (r *auditReport) table() string {
	rows := [][]string{{"PIPELINE", "UNCLAIMED", "LEASED", "WAITING", "TO DELETE", "DEAD", "UNNOTIFIED", "CLOSED", "LEDGER AND BUFFER"}}
	for _, p := range r.Pipelines {
		state := "agree"
		if !p.Agrees {
			state = "disagree"
		}
		unnotified := "-" // no hook
		if p.hasHook {
			unnotified = admin.Count(p.Dead.Unnotified)
		}
		rows = append(rows, []string{
			p.Name, admin.Count(p.Unclaimed), p.Leased.String(), p.Waiting.String(), p.ToDelete.String(),
			admin.Count(p.Dead.Open), unnotified, admin.Count(p.Dead.Closed), state,
		})
	}
	return columns(rows, 0)
}

func (c count) String() string {
	if c.Batches == 0 {
		return "0"
	}
	return fmt.Sprintf("%s (%s)", admin.Count(c.Events), plural(c.Batches, "batch", "batches"))
}

// describe describes what disagrees, and what was repaired.
func (r *auditReport) describe() string {
	var text string
	for _, p := range r.Pipelines {
		add := func(format string, args ...any) { text += "\n" + p.Name + ": " + fmt.Sprintf(format, args...) }
		if p.NothingSent != "" {
			add("nothing is sent: %s", oneLine(p.NothingSent))
		}
		if p.Delayed > 0 {
			add("%s delayed; UNCLAIMED counts those that are due", plural(p.Delayed, "event is", "events are"))
		}
		fix := "run relay verify --repair"
		if r := p.Repaired; r != nil {
			add("repaired: added ledger rows for %s of %s, which are due; removed %s without events; corrected %s",
				plural(r.Adopted.Events, "event", "events"), plural(r.Adopted.Batches, "batch", "batches"),
				plural(r.Removed, "ledger row", "ledger rows"), plural(r.Corrected, "event count", "event counts"))
			if r.Cleared > 0 {
				add("cleared the group_id of %s, which was not a uuid; only the relay writes group_id", plural(r.Cleared, "event", "events"))
			}
			if r.Joined > 0 {
				add("joined the claims of %s that hold the same events", plural(r.Joined, "batch", "batches"))
			}
			fix = "leased batches are not repaired; run relay verify --repair again when the lease is over"
		}
		if p.Orphaned.Batches > 0 {
			add("%s of %s have a group_id but no ledger row, as after a restore; relays search for them only every few minutes (%s)",
				plural(p.Orphaned.Events, "event", "events"), plural(p.Orphaned.Batches, "batch", "batches"), fix)
		}
		if p.EmptyBatches > 0 {
			add("%s without events, which were deleted (%s)", plural(p.EmptyBatches, "ledger row", "ledger rows"), fix)
		}
		if p.Miscounted > 0 {
			add("%s with another number of events than the ledger has; some were added or deleted (%s)", plural(p.Miscounted, "batch", "batches"), fix)
		}
		if s := p.Sinks; s != nil {
			s.describe(add, fix)
		}
	}
	if text != "" {
		text += "\n"
	}
	return text
}

// describe describes what disagrees, and what waits without being sent.
func (s *sinksAudit) describe(add func(format string, args ...any), fix string) {
	events := func(n int64) string { return plural(n, "event", "events") }
	if s.Split > 0 {
		add("%s in batches of different claims: when one sink has an event, another may lose it (%s)", events(s.Split), fix)
	}
	if s.Doubled > 0 {
		add("%s in two batches of one sink, which gets them twice", events(s.Doubled))
	}
	if s.KeptDeleted > 0 {
		add("%s of kept events count events that the application has deleted (%s)", plural(s.KeptDeleted, "ledger row", "ledger rows"), fix)
	}
	for _, c := range []struct {
		count
		text string
	}{
		{s.Unserved, "for sinks that are not in table outbox_sinks, so no relay sends them; configure the sinks again, or run relay sinks drop"},
		{s.Kept, "kept until a sink takes their topics"},
		{s.Unrouted, "claimed and not routed yet; a running relay routes them"},
	} {
		if c.Batches > 0 {
			add("%s in %s %s", events(c.Events), plural(c.Batches, "batch", "batches"), c.text)
		}
	}
}
