package admin

import (
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// Report is the status of all pipelines, as `relay status --json` and
// GET /api/status show it.
type Report struct {
	Pipelines []PipelineReport `json:"pipelines"`
	// Errors are about the pipelines that are missing above because their status
	// could not be read. The command tells them on standard error.
	Errors []ReportError `json:"errors,omitempty"`
}

// PipelineReport is the status of one pipeline.
type PipelineReport struct {
	Name                 string  `json:"name"`
	Pending              int64   `json:"pending"`
	OldestPendingSeconds float64 `json:"oldest_pending_seconds"`
	Batches              Batches `json:"batches"`
	Dead                 int64   `json:"dead"`
}

// Batches are the live batches by state.
type Batches struct {
	Leased    int64 `json:"leased"`
	Waiting   int64 `json:"waiting"`
	Delivered int64 `json:"delivered"`
}

// ReportError is why a pipeline's status could not be read.
type ReportError struct {
	Name  string `json:"name"`
	Error string `json:"error"`
}

// NewPipelineReport shows a pipeline's status.
func NewPipelineReport(name string, s outbox.Status) PipelineReport {
	return PipelineReport{
		Name: name, Pending: s.Pending,
		OldestPendingSeconds: s.OldestPending.Round(time.Millisecond).Seconds(),
		Batches:              Batches{Leased: s.Leased, Waiting: s.Waiting, Delivered: s.Delivered},
		Dead:                 s.Dead,
	}
}
