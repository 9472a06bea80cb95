package config

import (
	"context"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Letters are a pipeline's dead letters, as commands and the admin endpoint ask for
// them.
type Letters struct {
	DeadLetters
	// hooked: there is a dead-letter hook; chunk is how many are changed at once.
	hooked bool
	chunk  int
}

// DeadLetters is the part of a buffer about them; see buffertest.Buffer.
type DeadLetters interface {
	ListDead(ctx context.Context, f buffer.DeadFilter, after *buffer.DeadKey, limit int) ([]outbox.Event, error)
	CountDead(ctx context.Context, f buffer.DeadFilter) (buffer.DeadCount, error)
	Replay(ctx context.Context, f buffer.DeadFilter, limit int) (int, error)
	Discard(ctx context.Context, f buffer.DeadFilter, limit int) (int, error)
}

// Hooked tells whether a hook is to hear of a letter before it is closed.
func (l Letters) Hooked() bool { return l.hooked }

// Chunk is how many letters one transaction may change.
func (l Letters) Chunk() int { return l.chunk }

// Letters are those of the pipeline, in its buffer.
func (p *Pipeline) Letters(b Buffer) Letters {
	return Letters{b, p.DeadLetter.Hook != nil, p.BatchSize}
}
