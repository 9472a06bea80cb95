package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

const (
	// previewTimeout is how long the preview of a pipeline may take. It may have to fetch a token.
	previewTimeout = 30 * time.Second
	maxPreviewed   = 1000
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
		if events < 1 || events > maxPreviewed {
			return usage("-n is %d; expected 1 to %d", events, maxPreviewed)
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
		result, err := previewSink(ctx, from, s, events, limit)
		if err != nil {
			return nil, err
		}
		a.failed = a.failed || result.projectErr != nil
		return result.others, a.printPreview(s.Config, result, again)
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
				a.fail(fmt.Errorf("%s: %w", name(s.Config), err))
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

// preview is what would happen to the next events of a pipeline.
type preview struct {
	// events is the number of events; 0 if none is unclaimed. others are the topics of those that are not for this one of several sinks.
	events int
	others []string
	// claimed counts the batches, and why is the finding about those that wait for a
	// retry. Both are set if events is 0.
	claimed buffer.Status
	why     string
	// elsewhere reports whether events wait, and none for this one of several sinks.
	elsewhere bool
	// projectErr is the error of the projection, if it failed for all events.
	projectErr error
	requests   []request
	// unprojected have no row in the projection; rejected would be rejected by the sink. The headers of withoutHeaders are not sent.
	unprojected    []string
	withoutHeaders []string
	rejected       []rejection
}

// request is a request and the ids of its events.
type request struct {
	sink.PreparedMessage
	events []string
}

// rejection is an event that the sink would reject.
type rejection struct {
	event string
	err   error
}

// previewSink reads the events that a claim would take, unless events has others, and prepares the requests of one sink.
func previewSink(ctx context.Context, from buffer.Buffer, s config.RuntimeSink, events []outbox.Event, limit int) (result preview, err error) {
	ctx, cancel := context.WithTimeout(ctx, previewTimeout)
	defer cancel()
	previewer, ok := s.Sink.(sink.Previewer)
	if !ok {
		return result, fmt.Errorf("%s does not support preview", s.Config.Sink.URL)
	}
	patterns, err := buffer.ParsePatterns(s.Config.Match)
	if err != nil {
		return result, err
	}
	b := &buffer.Lease{Batch: buffer.Batch{Pipeline: s.Config.Name, Events: events}}
	if events == nil {
		if b, err = from.Peek(ctx, limit); err != nil {
			return result, err
		}
	}
	if b == nil {
		err = result.readClaimed(ctx, from, s.Config.SinkName)
		return result, err
	}
	if result.events = b.Len(); b.ProjectErr != nil {
		result.projectErr = b.ProjectErr
		return result, nil
	}
	for _, r := range b.Rejected {
		if id := r.Event.Identity(); errors.Is(r.Err, buffer.ErrNotProjected) {
			result.unprojected = append(result.unprojected, id)
		} else {
			result.rejected = append(result.rejected, rejection{id, r.Err})
		}
	}
	var sent []outbox.Event
	for i := range b.Events {
		if e := &b.Events[i]; patterns.Match(e.Topic) {
			sent = append(sent, *e)
		} else {
			result.others = append(result.others, e.Topic)
		}
	}
	result.withoutHeaders = eventsWithUnsentHeaders(s.Config, sent)
	for len(sent) > 0 {
		n := min(len(sent), s.Config.BatchSize)
		if err := result.add(ctx, previewer, batchOf(b, sent[:n])); err != nil {
			return result, err
		}
		sent = sent[n:]
	}
	return result, nil
}

// readClaimed reads the batches that are already claimed; those of one of several sinks, if it is named.
func (p *preview) readClaimed(ctx context.Context, b buffer.Buffer, sink string) (err error) {
	if p.claimed, err = b.Status(ctx); err != nil || p.claimed.Pending == 0 {
		return err
	}
	if sink != "" {
		i := slices.IndexFunc(p.claimed.Sinks, func(s buffer.SinkStatus) bool { return s.Name == sink })
		s := p.claimed.Sinks[i]
		p.claimed, p.elsewhere = buffer.Status{Pending: s.Pending, Leased: s.Leased, Waiting: s.Waiting}, s.Pending == 0
		if len(s.Waits) > 0 {
			p.why = s.Waits[0].Error
		}
		return nil
	}
	if p.claimed.Waiting == 0 {
		return nil
	}
	for _, f := range b.Diagnose(ctx) {
		if f.Subject == "batches" && f.Level != buffer.LevelOK {
			p.why = f.Text
		}
	}
	return nil
}

// batchOf returns a batch of some events of a batch, as a claim would make it.
func batchOf(b *buffer.Lease, events []outbox.Event) *buffer.Batch {
	some := b.Batch
	some.GroupID, some.Events = buffer.NewGroupID(), events
	return &some
}

// add prepares the requests of a batch.
func (p *preview) add(ctx context.Context, s sink.Previewer, b *buffer.Batch) error {
	messages, err := s.Preview(ctx, b)
	for _, m := range messages {
		r := request{PreparedMessage: m}
		for _, i := range m.Events {
			r.events = append(r.events, b.Events[i].Identity())
		}
		p.requests = append(p.requests, r)
	}
	batchErr, partial := errors.AsType[*sink.BatchError](err)
	switch {
	case err == nil:
		return nil
	case partial:
		for _, e := range batchErr.Events {
			p.rejected = append(p.rejected, rejection{b.Events[e.Index].Identity(), e.Err})
		}
		return nil
	case errors.Is(err, sink.ErrUnavailable), ctx.Err() != nil:
		return err
	}
	for i := range b.Events {
		p.rejected = append(p.rejected, rejection{b.Events[i].Identity(), err})
	}
	return nil
}
