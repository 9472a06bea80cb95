package retention_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/outboxrelay/relay/internal/retention"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeBuffer has events that are old enough, and dead letters in pages, in a bubble.
type fakeBuffer struct {
	mu     sync.Mutex
	old    int64 // events to delete
	pages  int   // of dead letters, each with one to delete
	took   time.Duration
	err    error
	froms  []time.Time
	pieces []time.Time // when each was begun
	walks  []time.Time // when the first page of dead letters was asked for
	filter buffer.DeadFilter
}

func (b *fakeBuffer) DeleteArchived(_ context.Context, keep time.Duration, from time.Time, limit int) (buffer.DeletedArchived, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pieces, b.froms = append(b.pieces, time.Now()), append(b.froms, from)
	time.Sleep(b.took) //nolint:forbidigo // the bubble's time
	if b.err != nil {
		return buffer.DeletedArchived{}, b.err
	}
	n := min(b.old, int64(limit))
	b.old -= n
	return buffer.DeletedArchived{Events: n, Next: from.Add(time.Duration(n) + 1), More: n == int64(limit)}, nil
}

func (b *fakeBuffer) DeleteClosed(_ context.Context, f buffer.DeadFilter, _ time.Duration, after *buffer.DeadKey, _ int) (buffer.DeletedClosed, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.filter = f
	page := int64(1)
	if after == nil {
		b.walks = append(b.walks, time.Now())
	} else {
		page = after.EventID + 1
	}
	if page == int64(b.pages) {
		return buffer.DeletedClosed{DeadLetters: 1}, nil
	}
	return buffer.DeletedClosed{DeadLetters: 1, Next: &buffer.DeadKey{EventID: page}}, nil
}

func (b *fakeBuffer) ArchiveSize(context.Context) (buffer.ArchiveSize, error) {
	return buffer.ArchiveSize{}, nil
}

// run runs a cleaner for so long, and returns its log.
func run(t *testing.T, b *fakeBuffer, c retention.Config, long time.Duration) string {
	t.Helper()
	var log testkit.Output
	c.Buffer, c.Log = b, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cleaner, err := retention.New(c)
	testkit.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	testkit.NoError(t, cleaner.Run(ctx))
	return log.String()
}

func TestCleaner_DeletesAtABoundedPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBuffer{old: 10_500, took: 20 * time.Millisecond}
		log := run(t, b, retention.Config{Archive: time.Hour}, 50*time.Second)
		testkit.Equal(t, "events left", b.old, 0)
		testkit.Equal(t, "pieces", len(b.pieces), 11)
		for i := 1; i < len(b.pieces); i++ {
			if pause := b.pieces[i].Sub(b.pieces[i-1]); pause < 5*b.took {
				t.Errorf("piece %d begins %v after the one before, which took %v", i, pause, b.took)
			}
			if b.froms[i].Before(b.froms[i-1]) {
				t.Errorf("piece %d begins at %v, before %v", i, b.froms[i], b.froms[i-1])
			}
		}
		if strings.Count(log, "deleted old events") != 1 || !strings.Contains(log, "count=10500 keep=1h0m0s") {
			t.Errorf("log: %s", log)
		}
	})
}

func TestCleaner_Rounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBuffer{old: 5, pages: 3}
		log := run(t, b, retention.Config{Archive: time.Hour, Dead: time.Hour, Filter: buffer.DeadFilter{Notified: true}}, 150*time.Minute+time.Second)
		testkit.Equal(t, "rounds", len(b.pieces), 151)
		testkit.Equal(t, "walks over dead letters", len(b.walks), 3)
		testkit.Equal(t, "filter", b.filter.Notified, true)
		oldest := 0
		for _, from := range b.froms {
			if from.IsZero() {
				oldest++
			}
		}
		testkit.Equal(t, "rounds from the oldest event", oldest, 3)
		if strings.Count(log, "deleted closed dead letters") != 3 || strings.Count(log, "deleted old events") != 1 {
			t.Errorf("a round that deletes nothing says something: %s", log)
		}
	})
}

func TestCleaner_DatabaseUnavailable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBuffer{err: errors.New("no route to host")}
		log := run(t, b, retention.Config{Archive: time.Hour}, 10*time.Minute+time.Second)
		testkit.Equal(t, "rounds", len(b.pieces), 11)
		testkit.Equal(t, "warnings", strings.Count(log, "level=WARN"), 1)
		if !strings.Contains(log, "no route to host") {
			t.Errorf("log: %s", log)
		}
	})
}

func TestNew_Errors(t *testing.T) {
	t.Parallel()
	for _, c := range []retention.Config{{}, {Buffer: &fakeBuffer{}, Archive: -1}, {Buffer: &fakeBuffer{}, Piece: -1}} {
		if _, err := retention.New(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}
