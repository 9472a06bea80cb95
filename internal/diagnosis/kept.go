package diagnosis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	// muchKept are the bytes of an archive, and manyClosed the closed dead letters, from which it is a warning that they are kept for ever.
	muchKept   = 1 << 30
	manyClosed = 100_000
	// lateKept is how much longer than configured something may be kept: a relay was away, or has just got the setting.
	lateKept = 24 * time.Hour
)

// kept adds what the archive and the closed dead letters take, and whether relays delete old ones. It returns nothing of what cannot be read: the
// buffer's own findings say why.
func kept(ctx context.Context, p *config.Pipeline, b buffer.Buffer) (findings []buffer.Finding) {
	if keeps, ok := b.(buffer.Retention); ok && p.Archive.Table != "" {
		if s, err := keeps.ArchiveSize(ctx); err == nil {
			findings = append(findings, archived(&s, p.Archive.Keep))
			findings = append(findings, partitions(&s, p.Archive.Partition)...)
			if p.Archive.Keep > 0 {
				findings = append(findings, deletes(ctx, keeps, p.Archive.Keep)...)
			}
		}
	}
	if n, err := b.CountDead(ctx, buffer.DeadFilter{}); err == nil && n.Closed > 0 {
		findings = append(findings, closed(n.Closed, p.DeadLetter.Keep))
	}
	return findings
}

// deletes tries to delete nothing, which needs what a relay needs.
func deletes(ctx context.Context, b buffer.Retention, keep time.Duration) []buffer.Finding {
	_, err := b.DeleteArchived(ctx, keep, time.Time{}, 0)
	if !errors.Is(err, buffer.ErrNotReady) {
		return nil
	}
	return []buffer.Finding{{Level: buffer.LevelWarning, Subject: "archive", Text: "no old event is deleted: " + err.Error(), Fix: "run the statement that it names"}}
}

// partitions adds what is wrong with those of the archive.
func partitions(s *buffer.ArchiveSize, wanted string) (findings []buffer.Finding) {
	add := func(level buffer.Level, text, fix string) {
		findings = append(findings, buffer.Finding{Level: level, Subject: "archive", Text: text, Fix: fix})
	}
	if s.DefaultBytes > 0 {
		add(buffer.LevelWarning, fmt.Sprintf("the default partition of %s has %s: events of days without a partition, because no relay ran that makes them; they are deleted one by one", s.Table, megabytes(s.DefaultBytes)),
			"keep a relay with archive.keep running: it makes the partitions of the next 7 days")
	}
	if wanted != "" && s.Partitions == 0 {
		add(buffer.LevelOK, fmt.Sprintf("%s has no partitions, although archive.partition is %s: a table that exists stays as it is, and old events are deleted one by one", s.Table, wanted),
			"for partitions, name another table in archive.table and run relay migrate; relay replay reads the table that is named")
	}
	return findings
}

func archived(s *buffer.ArchiveSize, keep time.Duration) buffer.Finding {
	f := buffer.Finding{Level: buffer.LevelOK, Subject: "archive"}
	age := s.OldestAge()
	switch {
	case s.Oldest.IsZero():
		f.Text = s.Table + " is empty"
	case s.Events < 0:
		f.Text = fmt.Sprintf("%s takes %s, the oldest event is %s old", s.Table, megabytes(s.Bytes), admin.Age(age))
	default:
		f.Text = fmt.Sprintf("%s has about %s events, takes %s, the oldest is %s old", s.Table, admin.Count(s.Events), megabytes(s.Bytes), admin.Age(age))
	}
	switch {
	case keep == 0:
		f.Text += "; it grows by every delivered event, and nothing deletes old ones"
		f.Fix = "archive: {keep: 30d} has relays delete older ones in small pieces"
		if s.Bytes >= muchKept {
			f.Level = buffer.LevelWarning
		}
	case age > keep+lateKept:
		f.Level = buffer.LevelWarning
		f.Text += fmt.Sprintf(", although archive.keep is %s", days(keep))
		f.Fix = "if no relay with this setting has run, start one; it takes time for a large archive, and the log of relay run says what it has deleted, or why it cannot"
	default:
		f.Text += "; relays delete those older than " + days(keep)
	}
	return f
}

func closed(n int64, keep time.Duration) buffer.Finding {
	f := buffer.Finding{Level: buffer.LevelOK, Subject: "dead letters", Text: admin.Count(n) + " were replayed or discarded and are kept"}
	if n == 1 {
		f.Text = "one was replayed or discarded and is kept"
	}
	if keep > 0 {
		f.Text += " for " + days(keep)
		return f
	}
	f.Text += " for ever"
	f.Fix = "dead_letter: {keep: 90d} has relays delete older ones"
	if n >= manyClosed {
		f.Level = buffer.LevelWarning
	}
	return f
}

// days formats a time of the configuration: 30d, not 30d 0h.
func days(d time.Duration) string {
	if d%(24*time.Hour) == 0 {
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
	return admin.Age(d)
}

// megabytes formats a size for people.
func megabytes(bytes int64) string {
	switch {
	case bytes >= 10_000_000_000:
		return fmt.Sprintf("%d GB", bytes/1_000_000_000)
	case bytes >= 1_000_000_000:
		return fmt.Sprintf("%.1f GB", float64(bytes)/1e9)
	case bytes >= 1_000_000:
		return fmt.Sprintf("%d MB", bytes/1_000_000)
	}
	return fmt.Sprintf("%d kB", (bytes+999)/1000)
}
