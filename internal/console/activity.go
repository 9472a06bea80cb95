package console

import (
	"net/http"

	"github.com/outboxrelay/relay/internal/audit"
)

// activityData is what the page of the activity shows.
type activityData struct {
	Entries []audit.Entry
	Kept    int
	Level   levelData
	Done    flash // what was done just now
}

// activity serves what users did at this process, and the level of its log.
func (s *Console) activity(w http.ResponseWriter, r *http.Request) {
	d := activityData{Entries: s.config.Audit.Entries(), Kept: audit.Kept, Level: s.level.data(), Done: s.flashes.take(r)}
	for i := range d.Entries {
		e := &d.Entries[i]
		for _, text := range []*string{&e.Who, &e.Detail, &e.Reason} {
			*text = visible([]byte(s.config.Redact(*text)))
		}
	}
	s.render(w, r, http.StatusOK, "activity", "activity", "Activity", &d)
}
