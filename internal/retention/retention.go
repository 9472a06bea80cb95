// Package retention deletes what a pipeline has kept long enough: delivered events in its archive (`archive.keep`), and closed dead letters
// (`dead_letter.keep`).
//
// A round goes through both in small pieces, each a transaction of its own, and pauses after each for several times as long as it took. So it takes a small
// part of the database's time, however much there is to delete, and a relay that is killed loses nothing but its piece. Every relay of a pipeline does
// it; the buffer lets one at a time delete.
package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Config of a Cleaner. Buffer is required.
type Config struct {
	// Buffer deletes.
	Buffer buffer.Retention
	// Archive is how long events stay in the archive, and Dead how long closed dead letters are kept; 0: for ever.
	Archive, Dead time.Duration
	// Filter is which dead letters may be deleted: its Notified and SinkNotified leave those that a hook must be notified of.
	Filter buffer.DeadFilter
	// Every is the time between two rounds; a minute when 0. DeadEvery is that between two that look at dead letters, of which every one is read; an hour when 0.
	Every, DeadEvery time.Duration
	// Piece is how many rows a transaction deletes at most; 1000 when 0.
	Piece int
	// Log may be nil: slog.Default.
	Log *slog.Logger
}

const (
	// idle is how many times as long as a piece took the pause after it lasts: a fifth of the time is spent on pieces.
	idle = 4
	// minPause is the shortest pause.
	minPause = 5 * time.Millisecond
	// fromTheOldest is how often a round begins at the oldest event, and not where the last one ended: a clock was set, or rows were added by hand.
	fromTheOldest = time.Hour
)

func (c Config) withDefaults() Config {
	if c.Every == 0 {
		c.Every = time.Minute
	}
	if c.DeadEvery == 0 {
		c.DeadEvery = time.Hour
	}
	if c.Piece == 0 {
		c.Piece = 1000
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

func (c Config) validate() error {
	if c.Buffer == nil {
		return errors.New("retention: there is no buffer; expected one")
	}
	if c.Archive < 0 || c.Dead < 0 || c.Every < 0 || c.DeadEvery < 0 || c.Piece < 0 {
		return fmt.Errorf("retention: a time or a number is negative; expected none: %v, %v, %v, %v, %d", c.Archive, c.Dead, c.Every, c.DeadEvery, c.Piece)
	}
	return nil
}

// Cleaner deletes what was kept long enough. Make one with New.
type Cleaner struct {
	config Config

	// Owned by Run.
	from   time.Time // where the archive's deletion continues
	whole  time.Time // when it began at the oldest event
	failed bool      // the last round did
}

// New returns the cleaner of a pipeline; the buffer stays the caller's to close, after Run.
func New(c Config) (*Cleaner, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Cleaner{config: c}, nil
}

// Run deletes until ctx is done. It returns nil: a database that is unavailable is asked again.
func (c *Cleaner) Run(ctx context.Context) error {
	tick := time.NewTicker(c.config.Every)
	defer tick.Stop()
	var deadAt time.Time
	for {
		var archive, dead error
		if c.config.Archive > 0 {
			archive = c.archive(ctx)
		}
		if c.config.Dead > 0 && (deadAt.IsZero() || time.Since(deadAt) >= c.config.DeadEvery) {
			if dead = c.dead(ctx); dead == nil {
				deadAt = time.Now()
			}
		}
		c.report(ctx, errors.Join(archive, dead))
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// report logs the first of several failures in a row: the pipelines report an outage as well.
func (c *Cleaner) report(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		level := slog.LevelDebug
		if !c.failed {
			level = slog.LevelWarn
		}
		c.config.Log.Log(ctx, level, "deleting what was kept long enough failed", "error", err, "retry_in", c.config.Every)
	}
	c.failed = err != nil
}

// archive deletes old events of the archive until none is left.
func (c *Cleaner) archive(ctx context.Context) error {
	if time.Since(c.whole) >= fromTheOldest {
		c.from, c.whole = time.Time{}, time.Now()
	}
	return c.pieces(ctx, "deleted old events of the archive", c.config.Archive, func() (n int64, more bool, err error) {
		done, err := c.config.Buffer.DeleteArchived(ctx, c.config.Archive, c.from, c.config.Piece)
		if err == nil {
			c.from = done.Next
		}
		if done.Partitions > 0 {
			c.config.Log.InfoContext(ctx, "dropped an old partition of the archive", "keep", c.config.Archive)
		}
		return done.Events, done.More, err
	})
}

// dead goes through all dead letters.
func (c *Cleaner) dead(ctx context.Context) error {
	var after *buffer.DeadKey
	return c.pieces(ctx, "deleted closed dead letters", c.config.Dead, func() (n int64, more bool, err error) {
		done, err := c.config.Buffer.DeleteClosed(ctx, c.config.Filter, c.config.Dead, after, c.config.Piece)
		after = done.Next
		return done.DeadLetters, after != nil, err
	})
}

// pieces calls piece until there is no more, and pauses after each call.
func (c *Cleaner) pieces(ctx context.Context, did string, keep time.Duration, piece func() (n int64, more bool, err error)) error {
	var all int64
	began := time.Now()
	defer func() {
		if all > 0 {
			c.config.Log.InfoContext(ctx, did, "count", all, "keep", keep, "took", time.Since(began).Round(time.Millisecond))
		}
	}()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		start := time.Now()
		n, more, err := piece()
		all += n
		if err != nil || !more {
			return err
		}
		pause.Reset(max(minPause, idle*time.Since(start)))
	}
}
