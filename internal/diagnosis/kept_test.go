package diagnosis

import (
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

func TestArchived(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		size  buffer.ArchiveSize
		keep  time.Duration
		level buffer.Level
		text  string
		fix   bool
	}{
		"empty":           {buffer.ArchiveSize{Bytes: 16384}, 30 * day, buffer.LevelOK, "kept is empty; relays delete those older than 30d", false},
		"for ever":        {buffer.ArchiveSize{Bytes: 46_000_000, Events: 60_000, Oldest: now.Add(-3 * day)}, 0, buffer.LevelOK, "kept has about 60,000 events, takes 46 MB, the oldest is 3d 0h old; it grows by every delivered event, and nothing deletes old ones", true},
		"much, for ever":  {buffer.ArchiveSize{Bytes: 2_500_000_000, Events: 9_000_000, Oldest: now.Add(-3 * day)}, 0, buffer.LevelWarning, "kept has about 9,000,000 events, takes 2.5 GB, the oldest is 3d 0h old; it grows by every delivered event, and nothing deletes old ones", true},
		"not analysed":    {buffer.ArchiveSize{Bytes: 5000, Events: -1, Oldest: now.Add(-time.Hour)}, 30 * day, buffer.LevelOK, "kept takes 5 kB, the oldest event is 1h 0m old; relays delete those older than 30d", false},
		"a little late":   {buffer.ArchiveSize{Bytes: 5000, Events: 3, Oldest: now.Add(-30*day - time.Hour)}, 30 * day, buffer.LevelOK, "kept has about 3 events, takes 5 kB, the oldest is 30d 1h old; relays delete those older than 30d", false},
		"nothing deletes": {buffer.ArchiveSize{Bytes: 50_000_000_000, Events: 3, Oldest: now.Add(-40 * day)}, 30 * day, buffer.LevelWarning, "kept has about 3 events, takes 50 GB, the oldest is 40d 0h old, although archive.keep is 30d", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.size.Table, c.size.Now = "kept", now
			got := archived(&c.size, c.keep)
			if got.Level != c.level || got.Text != c.text || (got.Fix != "") != c.fix {
				t.Errorf("got %+v, want %v %q", got, c.level, c.text)
			}
		})
	}
	s := &buffer.ArchiveSize{Table: "kept", Partitions: 9}
	if f := partitions(s, "day"); f != nil {
		t.Errorf("partitions that are well: %+v", f)
	}
	s.DefaultBytes = 8192
	if f := partitions(s, "day"); len(f) != 1 || f[0].Level != buffer.LevelWarning {
		t.Errorf("the default partition: %+v", f)
	}
	if f := partitions(&buffer.ArchiveSize{Table: "kept"}, "day"); len(f) != 1 || f[0].Level != buffer.LevelOK {
		t.Errorf("a table that stayed as it was: %+v", f)
	}
	if f := closed(manyClosed, 0); f.Level != buffer.LevelWarning || f.Text != "100,000 were replayed or discarded and are kept for ever" {
		t.Errorf("many: %+v", f)
	}
	if f := closed(1, 90*day); f.Level != buffer.LevelOK || f.Fix != "" || f.Text != "one was replayed or discarded and is kept for 90d" {
		t.Errorf("one: %+v", f)
	}
}
