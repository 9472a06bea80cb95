package admin

import (
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
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
	// HeldBackBy is what keeps the database's dead rows, where that is worth a word.
	HeldBackBy *HolderReport `json:"held_back_by,omitempty"`
}

// HolderReport is what holds a database back.
type HolderReport struct {
	Kind        string  `json:"kind"`
	Name        string  `json:"name,omitempty"`
	PID         int     `json:"pid,omitempty"`
	Application string  `json:"application,omitempty"`
	User        string  `json:"user,omitempty"`
	Database    string  `json:"database,omitempty"`
	State       string  `json:"state,omitempty"`
	AgeSeconds  float64 `json:"age_seconds"`
	// QueryAgeSeconds is how long ago its last query began, where that is known.
	QueryAgeSeconds float64 `json:"query_age_seconds,omitempty"`
	Behind          int64   `json:"behind"`
	// Text says all of it in a line.
	Text string `json:"text"`
}

// NewHolderReport shows a holder.
func NewHolderReport(h buffer.VacuumBlocker) *HolderReport {
	return &HolderReport{
		Kind: string(h.Kind), Name: h.Name, PID: h.PID, Application: h.Application, User: h.User, Database: h.Database, State: h.State,
		AgeSeconds: h.Age.Round(time.Millisecond).Seconds(), QueryAgeSeconds: h.QueryAge.Round(time.Millisecond).Seconds(),
		Behind: h.Behind, Text: h.String(),
	}
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
func NewPipelineReport(name string, s buffer.Status) PipelineReport {
	return PipelineReport{
		Name: name, Pending: s.Pending,
		OldestPendingSeconds: s.OldestPending.Round(time.Millisecond).Seconds(),
		Batches:              Batches{Leased: s.Leased, Waiting: s.Waiting, Delivered: s.Delivered},
		Dead:                 s.Dead,
	}
}
