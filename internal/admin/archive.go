package admin

import (
	"context"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// maxArchiveAge is how long the size of an archive is reused. It changes slowly.
const maxArchiveAge = time.Minute

// archive is the latest size of a pipeline's archive.
type archive struct {
	mu   sync.Mutex
	at   time.Time
	size buffer.ArchiveSize
	err  error
}

// read returns a size no older than maxArchiveAge. A failure is not reused.
func (a *archive) read(ctx context.Context, of buffer.Retention) (buffer.ArchiveSize, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at.IsZero() || a.err != nil || time.Since(a.at) > maxArchiveAge {
		a.size, a.err = of.ArchiveSize(ctx)
		a.at = time.Now()
	}
	return a.size, a.err
}

// archiveSizes reads the sizes of all archives concurrently; nil where there is none.
func (all snapshots) archiveSizes(ctx context.Context) []func() (buffer.ArchiveSize, error) {
	sizes := make([]func() (buffer.ArchiveSize, error), len(all))
	var wait sync.WaitGroup
	for i, s := range all {
		if s.pipeline.Archive == nil {
			continue
		}
		wait.Go(func() {
			size, err := s.archive.read(ctx, s.pipeline.Archive)
			sizes[i] = func() (buffer.ArchiveSize, error) { return size, err }
		})
	}
	wait.Wait()
	return sizes
}

// archive collects the gauges of an archive.
func (c collecting) archive(s buffer.ArchiveSize, err error) {
	c.unknown = err != nil
	c.known(archiveBytesDesc, float64(s.Bytes))
	c.known(archiveOldestDesc, s.OldestAge().Seconds())
	c.unknown = c.unknown || s.Events < 0
	c.known(archiveEventsDesc, float64(s.Events))
}
