package listen

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Subject is what findings about listening are about.
const Subject = "wake-ups"

// Diagnose returns the finding about how events wake a relay.
func (l *Listener) Diagnose(ctx context.Context, table string) (buffer.Finding, error) {
	found, err := l.findObstacle(ctx, table)
	f := buffer.Finding{Subject: Subject}
	switch {
	case err != nil:
	case found == nil:
		f.Text = "commits notify the relay"
	case l.config.Wake == buffer.WakeNotify:
		f = buffer.Finding{Level: buffer.LevelWarning, Subject: Subject, Text: "wake is notify, but " + found.text + "; " + polling, Fix: found.fix}
	case found == errNoTrigger:
		f.Text = polling + "; to be notified of commits, set wake: notify and run relay migrate"
	default:
		f.Text = found.text + "; " + polling
	}
	return f, err
}

// findObstacle returns nil if the relay can listen.
func (l *Listener) findObstacle(ctx context.Context, table string) (*obstacle, error) {
	trigger, err := findTrigger(ctx, l.config.DB, table)
	if err != nil || !trigger.enabled {
		return errNoTrigger, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := connect(ctx, l.config.URL)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if pooled, err := pg.ThroughPooler(ctx, conn); err != nil || !pooled {
		return nil, err
	}
	return errPooled, nil
}
