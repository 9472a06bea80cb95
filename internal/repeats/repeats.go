// Package repeats limits the lines of a log that repeat, such as those of an outage: for each kind of line it writes the first
// one at once, and then one a minute with the attribute repeated, the number of lines that it stands for.
//
// Lines are of a kind if they have the same level, message and attributes. The attributes that differ from batch to batch
// do not count, nor does the error. Of a kind are written in a minute:
//
//   - WARN: the first line, and each line with an error that was not written in this minute, up to 4
//   - ERROR: all lines, up to 60
//
// What is over is counted, and the last of it is written when the minute is over, with repeated; nothing is dropped uncounted.
// INFO and DEBUG are never limited. An INFO line reports a change of its pipeline and sink, such as "sink recovered": the counts of
// both are written before it, and the next WARN at once. If the log has DEBUG, nothing is limited.
//
// There is no timer: that a minute is over is seen at the next line, and at Flush.
package repeats

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// summary is the message of the INFO line that package pipeline writes once a minute. It reports no change.
const summary = "delivered in the last minute"

const (
	window      = time.Minute
	maxWarnings = 4
	maxErrors   = 60
	// maxKinds bounds the memory: the oldest kind makes room for a new one, and its count is written.
	maxKinds = 256
)

// perBatch are the attributes that differ from batch to batch.
var perBatch = []string{"group_id", "events", "first_id", "retry_in", "attempts", "after", "unfinished", "error", "stack", "trace_id", "span_id"}

// Handler is a slog.Handler that limits what repeats. It is safe for concurrent use.
type Handler struct {
	next  slog.Handler
	kind  kind // without level and message; of the attributes that the logger has
	kinds *kinds
}

// New returns a handler that writes to next, and knows from it which levels are logged.
func New(next slog.Handler) *Handler {
	return &Handler{next: next, kinds: &kinds{all: map[kind]*repeat{}}}
}

// Flush writes all counts. It is for the end of the process. As slog does, it ignores errors of writing the log.
func (h *Handler) Flush() {
	h.kinds.mu.Lock()
	defer h.kinds.mu.Unlock()
	_ = h.kinds.flush(context.Background())
}

// Enabled implements [slog.Handler]. INFO lines that are not logged report changes all the same.
func (h *Handler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || h.next.Enabled(ctx, level)
}

// WithAttrs implements [slog.Handler].
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.next = h.next.WithAttrs(attrs)
	for _, a := range attrs {
		with.kind.add(a)
	}
	return &with
}

// WithGroup implements [slog.Handler].
func (h *Handler) WithGroup(name string) slog.Handler {
	with := *h
	with.next = h.next.WithGroup(name)
	with.kind.attrs += name + "."
	return &with
}

// Handle implements [slog.Handler].
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo {
		return h.next.Handle(ctx, r)
	}
	of, text := h.kind, errorOf(&r)
	of.level, of.message = r.Level, r.Message
	r.Attrs(func(a slog.Attr) bool {
		of.add(a)
		return true
	})

	k := h.kinds
	k.mu.Lock()
	defer k.mu.Unlock()
	var err error
	now := time.Now()
	switch {
	case h.next.Enabled(ctx, slog.LevelDebug):
		err = k.flush(ctx)
	case r.Level < slog.LevelWarn:
		err = k.sweep(ctx, now)
		if r.Message != summary {
			err = errors.Join(err, k.changed(ctx, of.pipeline, of.sink))
		}
	default:
		err = k.sweep(ctx, now)
		if !h.next.Enabled(ctx, r.Level) {
			return err
		}
		one, e := k.get(ctx, of, now)
		err = errors.Join(err, e)
		if !one.mayWrite(r.Level, text) {
			one.count, one.last, one.to = one.count+1, r.Clone(), h.next
			return err
		}
		one.written++
		one.texts = append(one.texts, text)
	}
	if h.next.Enabled(ctx, r.Level) {
		err = errors.Join(err, h.next.Handle(ctx, r))
	}
	return err
}

// kind is what lines that repeat have in common.
type kind struct {
	level                          slog.Level
	message, pipeline, sink, attrs string
}

func (k *kind) add(a slog.Attr) {
	switch {
	case a.Key == "pipeline":
		k.pipeline = a.Value.String()
	case a.Key == "sink":
		k.sink = a.Value.String()
	case !slices.Contains(perBatch, a.Key):
		k.attrs += a.Key + "=" + a.Value.String() + "\x00"
	}
}

// repeat is a kind in its minute.
type repeat struct {
	since   time.Time
	written int
	texts   []string // of the errors that were written
	count   int      // of the lines that were not, the last of which is last
	last    slog.Record
	to      slog.Handler
}

func (r *repeat) mayWrite(level slog.Level, text string) bool {
	if level >= slog.LevelError {
		return r.written < maxErrors
	}
	return r.written < maxWarnings && !slices.Contains(r.texts, text)
}

// flush writes the count.
func (r *repeat) flush(ctx context.Context) error {
	last, to := r.last, r.to
	last.AddAttrs(slog.Int("repeated", r.count))
	r.count, r.last, r.to = 0, slog.Record{}, nil
	return to.Handle(ctx, last)
}

// kinds are the kinds of the last minute.
type kinds struct {
	mu  sync.Mutex
	all map[kind]*repeat
	due time.Time // the earliest end of a minute, or before it
}

// get returns the repeat of a kind, which may be new.
func (k *kinds) get(ctx context.Context, of kind, now time.Time) (*repeat, error) {
	if one := k.all[of]; one != nil {
		return one, nil
	}
	var err error
	if len(k.all) >= maxKinds {
		err = k.evict(ctx)
	}
	if len(k.all) == 0 {
		k.due = now.Add(window)
	}
	one := &repeat{since: now}
	k.all[of] = one
	return one, err
}

// evict removes the oldest kind.
func (k *kinds) evict(ctx context.Context) error {
	var (
		oldest kind
		since  time.Time
	)
	for of, one := range k.all {
		if since.IsZero() || one.since.Before(since) {
			oldest, since = of, one.since
		}
	}
	one := k.all[oldest]
	delete(k.all, oldest)
	if one.count == 0 {
		return nil
	}
	return one.flush(ctx)
}

// sweep writes the counts whose minute is over, which begins the next one, and forgets the kinds that did not repeat.
func (k *kinds) sweep(ctx context.Context, now time.Time) error {
	if now.Before(k.due) {
		return nil
	}
	var errs []error
	k.due = now.Add(window)
	for of, one := range k.all {
		switch {
		case now.Sub(one.since) < window:
			if end := one.since.Add(window); end.Before(k.due) {
				k.due = end
			}
		case one.count == 0:
			delete(k.all, of)
		default:
			text := errorOf(&one.last)
			errs = append(errs, one.flush(ctx))
			one.since, one.written, one.texts = now, 1, []string{text}
		}
	}
	return errors.Join(errs...)
}

// changed writes the counts of a pipeline and sink, as far as their kinds may write, and lets the next error be written at once.
func (k *kinds) changed(ctx context.Context, pipeline, sink string) error {
	var errs []error
	for of, one := range k.all {
		if of.pipeline != pipeline || of.sink != sink {
			continue
		}
		one.texts = nil
		if one.count > 0 && one.mayWrite(of.level, "") {
			one.written++
			errs = append(errs, one.flush(ctx))
		}
	}
	return errors.Join(errs...)
}

// flush writes all counts, and forgets the kinds.
func (k *kinds) flush(ctx context.Context) error {
	var errs []error
	for _, one := range k.all {
		if one.count > 0 {
			errs = append(errs, one.flush(ctx))
		}
	}
	clear(k.all)
	return errors.Join(errs...)
}

// errorOf is the text of a line's error; "" if it has none.
func errorOf(r *slog.Record) (text string) {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" {
			text = a.Value.String()
		}
		return text == ""
	})
	return text
}
