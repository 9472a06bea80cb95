package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// withOutdated adds what of the configuration has changed since the process read it to why a pipeline is not ready.
func withOutdated(err error, outdated func(class string) string) error {
	why, ok := errors.AsType[*NotReady](err)
	if !ok {
		return err
	}
	text := outdated(why.class)
	if text == "" {
		return err
	}
	return &NotReady{class: why.class, kind: why.kind, err: fmt.Errorf("%w; %s", why.err, text)}
}

// noteOutdated has status and doctor show what of the configuration has changed since the process read it, while the pipeline is not ready because
// of the part that changed, and logs it at once and every minute. They show it when the pipeline is ready again, too, until the restart: another
// relay that has the new content may deliver its events.
func (r *reporter) noteOutdated(ctx context.Context) {
	text, shown := "", ""
	if why, ok := errors.AsType[*NotReady](r.ready()); ok {
		if text = r.outdated(why.class); text != "" {
			r.outdatedClass = why.class
		}
		shown = text // of another class it would look like the reason
	} else if r.outdatedClass != "" {
		shown = r.outdated(r.outdatedClass)
	}
	if r.notices.set("configuration", shown); text != "" && (text != r.changed || time.Since(r.loggedAt) >= time.Minute) {
		r.log.WarnContext(ctx, "configuration changed", "change", text)
		r.loggedAt = time.Now()
	}
	r.changed = text
}
