package console

import (
	"net/http"
	"time"

	"github.com/outboxrelay/relay/internal/audit"
)

// activityData is what the page of the activity shows.
type activityData struct {
	Entries []audit.Entry
	Kept    int
	Level   levelData
	Done    flash // what was done just now
	Process string
	Others  []string // relays that run and have an activity of their own
	Pauses  []pauseRow
}

// pauseRow is a pause that is in force, whichever relay somebody used for it.
type pauseRow struct {
	Pipeline, Sink, By, Reason string
	Since                      time.Time
}

// activity serves what users did at this process, what is paused by whomever, and the level of its log.
func (s *Console) activity(w http.ResponseWriter, r *http.Request) {
	d := activityData{Entries: s.config.Audit.Entries(), Kept: audit.Kept, Level: s.level.data(), Done: s.flashes.take(r), Process: s.config.Process}
	report, at := s.report(r.Context())
	for _, one := range s.relayRows(report) {
		if one.Running && !one.This {
			d.Others = append(d.Others, one.Process)
		}
	}
	for i := range report.Pipelines {
		p := &report.Pipelines[i]
		for k := range p.Pauses {
			one := &p.Pauses[k]
			d.Pauses = append(d.Pauses, pauseRow{p.Name, one.Sink, visible([]byte(one.By)), visible([]byte(one.Reason)), at.Add(-time.Duration(one.Seconds * float64(time.Second)))})
		}
	}
	for i := range d.Entries {
		e := &d.Entries[i]
		for _, text := range []*string{&e.Who, &e.Detail, &e.Reason} {
			*text = visible([]byte(s.config.Redact(*text)))
		}
	}
	s.render(w, r, http.StatusOK, "activity", "activity", "Activity", &d)
}
