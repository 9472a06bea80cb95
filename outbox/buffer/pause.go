package buffer

import (
	"context"
	"time"
)

// Pauser pauses and resumes what relays do with a buffer. All relays of the buffer read it from the database, within about a second, or within five if
// nothing waits.
//
// A pipeline that is paused claims no events and sends no batches; a sink that is paused is sent no batches, and its events wait in its queue. What is in
// flight is finished. Dead-letter hooks are notified all the same.
type Pauser interface {
	// Pause pauses the pipeline, or the sink of that name if sink is not "". changed is false, and nothing is changed, if it is paused already. The error is a
	// [*NoSinkError] if the buffer has no such sink, and wraps [ErrNotReady] if no relay has used the buffer yet.
	Pause(ctx context.Context, sink, by, reason string) (changed bool, err error)
	// Resume takes a pause back. changed is false if there is none. The pipeline and its sinks are resumed one by one.
	Resume(ctx context.Context, sink string) (changed bool, err error)
}

// Pausable is a queue that may be paused; see [Pauser]. The buffer is one, and the queue of each of its sinks.
type Pausable interface {
	// Paused reports whether the pipeline is paused or, for the queue of a sink, the sink.
	Paused(ctx context.Context) (bool, error)
}

// Pause is what somebody paused.
type Pause struct {
	// Sink is one of several sinks; "": the pipeline.
	Sink string
	// For is how long ago it was paused, by the database's clock.
	For time.Duration
	// By is who did it, and Reason why, which may be "".
	By, Reason string
}
