package pipeline

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// archiveEvery is how often a relay without an archive asks whether others have one.
const archiveEvery = time.Minute

// noteArchive writes down where delivered events are copied, and has status and doctor show, and logs, that others copied them and this process does not.
// The first report was written before: the database can be used.
func (r *reporter) noteArchive(ctx context.Context) {
	if r.archive == nil || r.first || time.Since(r.archiveAt) < archiveEvery {
		return
	}
	r.archiveAt = time.Now()
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	err := r.archive.RememberArchive(ctx)
	table := ""
	if err == nil {
		table, err = r.archive.ForgottenArchive(ctx)
	}
	if err != nil { // it says nothing of the archive, and others say it of the database
		r.log.DebugContext(ctx, "comparing the archive with that of other relays failed", "error", err)
		return
	}
	if table == "" {
		r.notices.set("archive", "")
		return
	}
	text, fix := buffer.ForgottenArchiveText(table)
	r.notices.set("archive", text+". > "+fix)
	if table != r.forgotten {
		r.log.WarnContext(ctx, text, "fix", fix)
	}
	r.forgotten = table
}
