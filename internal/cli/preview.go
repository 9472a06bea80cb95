package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/preview"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func (a *app) previewCommand() *cobra.Command {
	var (
		pipeline, sinkName string
		events             int
		answer             answerFlags
		c                  *cobra.Command
	)
	c = a.withConfig(&cobra.Command{
		Use:   "preview",
		Short: "Show the requests that the next events would make",
		Long: `Preview shows the requests that the next events would make: URL, headers without
secrets, and body, with JSON indented. It claims, sends and writes nothing.

It also shows the events that would not be sent: those for which the projection
returns no row, and those that the sink would reject. The exit status is 1 if
source.project or sink.request fails for all events. Events in batches that wait for
a retry are not shown; if there are no others, preview says how many wait, and why.
Their request is shown if --events-file has them: a request's body, or one envelope
a line.

With --answer it shows what sink.results, or without it the status, makes of an answer
of the API to these events: which are delivered, which are rejected, and why.`,
		Example: `  relay preview -c relay.yaml
  relay preview -c relay.yaml --pipeline orders -n 1
  relay preview -c relay.yaml --answer answer.json --status 422`,
	}, func(_ *cobra.Command, cfg *config.Config) error {
		if events < 1 || events > preview.MaxEvents {
			return usage("-n is %d; expected 1 to %d", events, preview.MaxEvents)
		}
		selected, err := selectPipelines(cfg, pipeline)
		if err != nil {
			return err
		}
		if sinkName != "" && !slices.ContainsFunc(selected, func(p *config.Pipeline) bool { return hasSinkNamed(p, sinkName) }) {
			return usage("--sink is %q; no selected pipeline has a sink of this name", sinkName)
		}
		show, err := answer.viewer(c)
		if err != nil {
			return err
		}
		return a.preview(c.Context(), selected, sinkName, events, show)
	})
	answer.bind(c)
	c.Flags().StringVar(&sinkName, "sink", "", "only this one of several sinks")
	c.Flags().StringVar(&pipeline, "pipeline", "", "only this pipeline")
	c.Flags().IntVarP(&events, "events", "n", 3, "number of events of each pipeline")
	return c
}

func hasSinkNamed(p *config.Pipeline, name string) bool {
	return slices.ContainsFunc(p.PerSink(), func(one *config.Pipeline) bool { return one.SinkName == name })
}

// previewer shows what would happen to the next events of one sink. others are the topics of those that are not for it.
type previewer func(ctx context.Context, a *app, from buffer.Buffer, s config.RuntimeSink, events int, again bool) (others []string, err error)

// previewRequests shows the requests of these events, or of the next ones of the buffer if events is nil.
func previewRequests(events []outbox.Event) previewer {
	return func(ctx context.Context, a *app, from buffer.Buffer, s config.RuntimeSink, limit int, again bool) ([]string, error) {
		var (
			result preview.Result
			err    error
		)
		if events == nil {
			result, err = preview.Next(ctx, from, s, limit)
		} else {
			result, err = preview.Events(ctx, s, events)
		}
		if err != nil {
			return nil, err
		}
		a.failed = a.failed || result.ProjectErr != nil
		return result.Others, a.printPreview(s.Config, result, again)
	}
}

// preview shows one pipeline after the other. It continues after errors.
func (a *app) preview(ctx context.Context, selected []*config.Pipeline, sinkName string, events int, show previewer) error {
	var (
		pipelines []*config.Runtime
		errs      config.Errors
	)
	for _, p := range selected {
		opened, err := p.Open(config.Process{Owner: "preview", Stdout: io.Discard, Log: discardLog})
		if some, ok := errors.AsType[config.Errors](err); ok {
			errs = append(errs, some...)
		} else if err != nil {
			return errors.Join(append(closeAll(pipelines), err)...)
		} else {
			pipelines = append(pipelines, opened)
		}
	}
	if errs != nil {
		return errors.Join(append(closeAll(pipelines), errs)...)
	}
	for i, opened := range pipelines {
		unmatched := map[string]bool{} // topics of events that no sink takes
		for n, s := range opened.Sinks {
			if sinkName != "" && s.Config.SinkName != sinkName {
				continue
			}
			others, err := show(ctx, a, opened.Buffer, s, events, i+n > 0)
			if err != nil {
				a.fail(fmt.Errorf("%s: %w", s.Config.FullName(), err))
				continue
			}
			for _, topic := range others {
				unmatched[topic] = !selected[i].Takes(topic)
			}
		}
		for _, topic := range slices.Sorted(maps.Keys(unmatched)) {
			if !unmatched[topic] {
				continue
			}
			if _, err := fmt.Fprintf(a.stdout, "\n%s: no sink takes topic %s\n", selected[i].Name, printable(topic)); err != nil {
				return err
			}
		}
	}
	for _, err := range closeAll(pipelines) {
		a.fail(err)
	}
	return nil
}
