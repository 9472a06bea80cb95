package admin

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// archiveSizes reads the sizes of all archives concurrently; nil where there is none.
func (all snapshots) archiveSizes(ctx context.Context) []func() (buffer.ArchiveSize, error) {
	return readSlow(ctx, all, func(s *snapshot) (*slow[buffer.ArchiveSize], func(context.Context) (buffer.ArchiveSize, error)) {
		if s.pipeline.Archive == nil {
			return nil, nil
		}
		return &s.archive, s.pipeline.Archive.ArchiveSize
	})
}

// archive collects the gauges of an archive.
func (c collecting) archive(s buffer.ArchiveSize, err error) {
	c.unknown = err != nil
	c.known(archiveBytesDesc, float64(s.Bytes))
	c.known(archiveOldestDesc, s.OldestAge().Seconds())
	c.unknown = c.unknown || s.Events < 0
	c.known(archiveEventsDesc, float64(s.Events))
}
