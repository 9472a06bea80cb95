package admin

import (
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// PauseReport is a pause of a pipeline or of one of its sinks.
type PauseReport struct {
	// Sink is one of several sinks; absent: the pipeline.
	Sink string `json:"sink,omitempty"`
	// Seconds is how long it has lasted.
	Seconds float64 `json:"seconds"`
	// By is who paused it, and Reason why.
	By     string `json:"by"`
	Reason string `json:"reason,omitempty"`
}

// Text describes the pause of a pipeline in one line.
func (p *PauseReport) Text(pipeline string) string {
	text, command := "", "relay resume"
	if p.Sink != "" {
		text, command = "sink "+p.Sink+" is ", command+" "+p.Sink
	}
	text += "paused for " + roughly(time.Duration(p.Seconds*float64(time.Second)))
	if p.By != "" {
		text += " by " + p.By
	}
	if p.Reason != "" {
		text += ": " + p.Reason
	}
	return text + ". > " + command + " --pipeline " + pipeline + " -c relay.yaml"
}

// NewPauseReports describes pauses, without secrets.
func NewPauseReports(pauses []buffer.Pause, redact func(string) string) (reports []PauseReport) {
	for _, p := range pauses {
		reports = append(reports, PauseReport{Sink: p.Sink, Seconds: p.For.Round(time.Millisecond).Seconds(), By: redact(p.By), Reason: redact(p.Reason)})
	}
	return reports
}

// pausedState is the state of a pipeline, or of a sink of it, that is paused; "" for one that is not.
func pausedState(pauses []buffer.Pause, sink string) string {
	i := slices.IndexFunc(pauses, func(p buffer.Pause) bool { return p.Sink == "" || p.Sink == sink })
	if i < 0 {
		return ""
	}
	return "paused " + roughly(pauses[i].For)
}
