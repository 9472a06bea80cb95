package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func (a *app) pauseCommand() *cobra.Command {
	var (
		pipeline, reason string
		yes              bool
	)
	c := a.pauseOrResume(&cobra.Command{
		Use:   "pause [SINK]",
		Short: "Stop claiming and sending until relay resume",
		Long: `Pause stops a pipeline in all relays: they claim no events, send no batches, and finish
what is in flight. With SINK only that one of several sinks is paused: its events wait
for it, the other sinks go on. The running relays notice it within a second, an idle
relay within five. The pause stays when relays restart.

relay status shows what is paused, since when, by whom and why. Dead-letter hooks are
notified all the same.`,
		Example: "  relay pause -c relay.yaml --pipeline orders --reason 'the CRM is moved'\n  relay pause crm -c relay.yaml",
	}, &pipeline, func(ctx context.Context, p *config.Pipeline, b buffer.Pauser, sink string) (string, error) {
		changed, err := b.Pause(ctx, sink, operator(), reason)
		if !changed {
			return "was paused before", err
		}
		return "paused: running relays notice it within five seconds; relay resume ends the pause", err
	}, func(what string) (err error) {
		if reason, err = admin.ParseReason(reason); err != nil {
			return usage("--reason: %v", err)
		}
		if yes {
			return nil
		}
		return a.confirmPause(what)
	})
	c.Flags().StringVar(&pipeline, "pipeline", "", "of this pipeline only (default all)")
	c.Flags().StringVar(&reason, "reason", "", "why, for the others")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	return c
}

func (a *app) resumeCommand() *cobra.Command {
	var pipeline string
	c := a.pauseOrResume(&cobra.Command{
		Use:   "resume [SINK]",
		Short: "End what relay pause began",
		Long: `Resume lets relays claim and send again, within a second. A pipeline and each of its
sinks are paused and resumed by themselves: it says what is still paused.`,
		Example: "  relay resume -c relay.yaml --pipeline orders\n  relay resume crm -c relay.yaml",
	}, &pipeline, func(ctx context.Context, p *config.Pipeline, b buffer.Pauser, sink string) (string, error) {
		changed, err := b.Resume(ctx, sink)
		if err != nil {
			return "", err
		}
		text := "resumed"
		if !changed {
			text = "was not paused"
		}
		left, err := a.stillPaused(ctx, p, b, sink)
		if err != nil {
			a.fail(fmt.Errorf("%s: looking for what is still paused: %w", p.Name, err))
		}
		return text + left, nil
	}, nil)
	c.Flags().StringVar(&pipeline, "pipeline", "", "of this pipeline only (default all)")
	c.Flags().BoolP("yes", "y", false, "as for relay pause; resume asks nothing")
	return c
}

// pauseOrResume is a command that acts on pipelines, or on the sink that its argument names. before, unless nil, is called first with what is meant.
func (a *app) pauseOrResume(c *cobra.Command, pipeline *string, act func(context.Context, *config.Pipeline, buffer.Pauser, string) (string, error), before func(what string) error) *cobra.Command {
	var sink string
	c.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usage("%d names are given; expected at most that of one sink: %s", len(args), strings.TrimSpace(c.Example))
		}
		return nil
	}
	c = a.withoutSinks(c, func(c *cobra.Command, cfg *config.Config) error {
		if err := cfg.CheckSources(); err != nil {
			return err
		}
		selected, err := selectPipelines(cfg, *pipeline)
		if err == nil && sink != "" {
			selected, err = pipelinesWith(selected, sink)
		}
		if err != nil {
			return err
		}
		if before != nil {
			if err := before(pausedName(selected, sink)); err != nil {
				return err
			}
		}
		for _, p := range selected {
			text, err := withPauser(c.Context(), p, func(ctx context.Context, b buffer.Pauser) (string, error) { return act(ctx, p, b, sink) })
			if err != nil {
				a.fail(fmt.Errorf("%s: %w", p.Name, err))
				continue
			}
			if _, err := fmt.Fprintf(a.stdout, "%s: %s\n", pausedName([]*config.Pipeline{p}, sink), text); err != nil {
				return err
			}
		}
		return nil
	})
	configured := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if sink = ""; len(args) == 1 {
			sink = args[0]
		}
		return configured(c, nil)
	}
	return c
}

// stillPaused returns a line for each pause that keeps what was resumed from sending: that of the pipeline if one of its sinks was, those of the sinks otherwise.
func (a *app) stillPaused(ctx context.Context, p *config.Pipeline, b buffer.Pauser, resumed string) (lines string, err error) {
	of, ok := b.(buffer.Buffer)
	if !ok {
		return "", nil
	}
	status, err := of.Status(ctx)
	if err != nil {
		return "", err
	}
	for _, pause := range admin.NewPauseReports(status.Pauses, a.redact) {
		switch {
		case resumed == "":
			lines += "\n" + p.Name + ": " + a.forFile(oneLine(pause.Text(p.Name)))
		case pause.Sink == "":
			lines += "\n" + p.Name + ": the pipeline is " + a.forFile(oneLine(pause.Text(p.Name)))
		}
	}
	return lines, nil
}

// pausedName names what is paused: pipelines, or a sink of one.
func pausedName(of []*config.Pipeline, sink string) string {
	name := of[0].Name
	if len(of) > 1 {
		name = fmt.Sprintf("all %d pipelines", len(of))
	}
	if sink != "" {
		name += ", sink " + sink
	}
	return name
}

// pipelinesWith returns the pipeline that has a sink. A single pipeline is returned without a look at its configuration, which may lack a sink that
// events are still routed to.
func pipelinesWith(selected []*config.Pipeline, sink string) ([]*config.Pipeline, error) {
	if len(selected) == 1 {
		return selected, nil
	}
	var having []*config.Pipeline
	var flags, known []string
	for _, p := range selected {
		names := p.SinkNames()
		for _, name := range names {
			if !slices.Contains(known, name) {
				known = append(known, name)
			}
		}
		if slices.Contains(names, sink) {
			having, flags = append(having, p), append(flags, "--pipeline "+p.Name)
		}
	}
	switch {
	case len(having) == 1:
		return having, nil
	case len(having) > 1:
		return nil, usage("%d pipelines have a sink %q; expected %s", len(having), sink, strings.Join(flags, " or "))
	case len(known) == 0:
		return nil, usage("no pipeline has several sinks, so there is no sink %q; name a pipeline with --pipeline", sink)
	}
	return nil, usage("no sink is %q; expected %s, or name the pipeline with --pipeline", sink, strings.Join(known, " or "))
}

func withPauser(ctx context.Context, p *config.Pipeline, act func(context.Context, buffer.Pauser) (string, error)) (text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	b, err := p.OpenBuffer("pause")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	pauser, ok := b.(buffer.Pauser)
	if !ok {
		return "", fmt.Errorf("a buffer of %T cannot be paused", b)
	}
	return act(ctx, pauser)
}

// confirmPause asks for confirmation on a terminal.
func (a *app) confirmPause(what string) error {
	if !isTerminal(os.Stdin) || !isTerminal(a.stderr) {
		return nil
	}
	ok, err := a.newQuestions(os.Stdin).confirm("Pause " + what + " in all relays?")
	if err == nil && !ok || errors.Is(err, errNoAnswer) {
		return errors.New("nothing was changed")
	}
	return err
}
