package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

const (
	// previewTime is how long a pipeline may take to be shown; a token may have to be
	// fetched for it.
	previewTime = 30 * time.Second
	// mostPreviewed is how many events are shown at the most: people read them.
	mostPreviewed = 1000
)

func (a *app) previewCommand() *cobra.Command {
	var (
		pipeline string
		events   int
		c        *cobra.Command
	)
	c = a.configured(&cobra.Command{
		Use:   "preview",
		Short: "Show what would be sent next, without sending it",
		Long: `Preview shows the request that the next events would make: where it goes, its
headers, without their secrets, and its body, JSON with its lines indented.
Nothing is claimed, nothing is sent and nothing is written.

It also says what would not be sent: events that the projection returns no row
for, and those that the sink would refuse. The exit status is 1 when source.project
or sink.request fails over all of them. Events in batches that wait for a retry are
not shown; how many wait, and why, is said when there are no others.`,
		Example: "  relay preview -c relay.yaml\n  relay preview -c relay.yaml --pipeline orders -n 1",
	}, func(_ *cobra.Command, cfg *config.Config) error {
		if events < 1 || events > mostPreviewed {
			return usage("-n is %d, a number from 1 to %d was expected", events, mostPreviewed)
		}
		chosen, err := choose(cfg, pipeline)
		if err != nil {
			return err
		}
		return a.preview(c.Context(), chosen, events)
	})
	c.Flags().StringVar(&pipeline, "pipeline", "", "this pipeline only")
	c.Flags().IntVarP(&events, "events", "n", 3, "how many events of each pipeline")
	return c
}

// preview shows pipeline after pipeline; one that cannot be shown holds up no other.
func (a *app) preview(ctx context.Context, chosen []*config.Pipeline, events int) error {
	logging.Disable() // go-redis has a log of its own; its errors come to us anyhow
	var (
		lines []*config.Opened
		wrong config.Errors
	)
	for _, p := range chosen {
		line, err := p.Open(config.Process{Owner: "preview", Stdout: io.Discard, Log: silent})
		if some, ok := errors.AsType[config.Errors](err); ok {
			wrong = append(wrong, some...)
		} else if err != nil {
			return errors.Join(append(closeAll(lines), err)...)
		} else {
			lines = append(lines, line)
		}
	}
	if wrong != nil {
		return errors.Join(append(closeAll(lines), wrong)...)
	}
	for i, line := range lines {
		p := chosen[i]
		shown, err := look(ctx, p, line, events)
		if err != nil {
			a.fail(fmt.Errorf("%s: %w", p.Name, err))
			continue
		}
		a.failed = a.failed || shown.projectErr != nil
		if err := a.printPreview(p, shown, i > 0); err != nil {
			return err
		}
	}
	for _, err := range closeAll(lines) {
		a.fail(err)
	}
	return nil
}

// previewed is what would become of the next events of a pipeline.
type previewed struct {
	// events is how many were looked at; 0: none is unclaimed.
	events int
	// claimed are in batches that wait for a retry, are leased, or lack their delete;
	// why is what the newest of those waits for, "" for nothing. Known where events is 0.
	claimed buffer.Status
	why     string
	// projectErr is why nothing can be said of them.
	projectErr error
	requests   []request
	// buried and refused are those that would not arrive.
	buried  []string
	refused []refusal
}

// request is one that would be made, for the events of these identities.
type request struct {
	sink.PreparedMessage
	events []string
}

// refusal is an event, or "" for a whole batch, that the sink would not take.
type refusal struct {
	event string
	err   error
}

// look takes what a claim would bring and asks the sink what it would send of it.
func look(ctx context.Context, p *config.Pipeline, line *config.Opened, limit int) (shown previewed, err error) {
	ctx, cancel := context.WithTimeout(ctx, previewTime)
	defer cancel()
	previewer, ok := line.Sink.(sink.Previewer)
	if !ok {
		return shown, fmt.Errorf("%s cannot be previewed", p.Sink.URL)
	}
	b, err := line.Buffer.Peek(ctx, limit)
	if err != nil {
		return shown, err
	}
	if b == nil {
		err = shown.batches(ctx, line.Buffer)
		return shown, err
	}
	if shown.events = len(b.Events); b.ProjectErr != nil {
		shown.projectErr = b.ProjectErr
		return shown, nil
	}
	sent := b.Events[:0:0]
	for _, e := range b.Events {
		if e.NoProjection {
			shown.buried = append(shown.buried, e.Identity())
			continue
		}
		if e.ProjectErr != nil {
			shown.refused = append(shown.refused, refusal{e.Identity(), e.ProjectErr})
			continue
		}
		sent = append(sent, e)
	}
	for len(sent) > 0 {
		n := min(len(sent), p.BatchSize)
		if err := shown.add(ctx, previewer, part(b, sent[:n])); err != nil {
			return shown, err
		}
		sent = sent[n:]
	}
	return shown, nil
}

// batches looks at what is claimed already.
func (p *previewed) batches(ctx context.Context, b config.Buffer) (err error) {
	if p.claimed, err = b.Status(ctx); err != nil || p.claimed.Waiting == 0 {
		return err
	}
	for _, f := range b.Diagnose(ctx) {
		if f.Subject == "batches" && f.Level != buffer.LevelOK {
			if _, p.why, _ = strings.Cut(f.Text, "because: "); p.why == "" {
				p.why = f.Text
			}
		}
	}
	return nil
}

// part is a batch of some of a batch's events, as a claim would make it.
func part(b *buffer.Lease, events []outbox.Event) *buffer.Lease {
	some := *b
	some.GroupID, some.Events = buffer.NewGroupID(), events
	some.FirstID, some.LastID = events[0].ID, events[len(events)-1].ID
	return &some
}

// add asks what would be sent of a batch.
func (p *previewed) add(ctx context.Context, s sink.Previewer, b *buffer.Lease) error {
	shown, err := s.Preview(ctx, &b.Batch)
	for _, one := range shown {
		r := request{PreparedMessage: one}
		for _, i := range one.Events {
			r.events = append(r.events, b.Events[i].Identity())
		}
		p.requests = append(p.requests, r)
	}
	some, partly := errors.AsType[*sink.BatchError](err)
	switch {
	case err == nil:
		return nil
	case partly:
		for _, e := range some.Events {
			p.refused = append(p.refused, refusal{b.Events[e.Index].Identity(), e.Err})
		}
		return nil
	case errors.Is(err, sink.ErrUnavailable), ctx.Err() != nil:
		return err
	}
	for i := range b.Events {
		p.refused = append(p.refused, refusal{b.Events[i].Identity(), err})
	}
	return nil
}
