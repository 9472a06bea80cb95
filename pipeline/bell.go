package pipeline

import (
	"context"

	"github.com/outboxrelay/relay/distributor"
)

// Bell tells of commits, while Run runs.
type Bell interface {
	distributor.Bell
	// Run listens until ctx is done.
	Run(ctx context.Context)
}
