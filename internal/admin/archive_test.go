package admin

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// fakeArchive is an archive whose size is asked for.
type fakeArchive struct {
	buffer.Retention
	size  buffer.ArchiveSize
	err   error
	asked int
}

func (a *fakeArchive) ArchiveSize(context.Context) (buffer.ArchiveSize, error) {
	a.asked++
	return a.size, a.err
}

func TestMetrics_Archive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		orders := &fakeArchive{size: buffer.ArchiveSize{Bytes: 46e6, Events: 60_000, Oldest: now.Add(-3 * time.Hour), Now: now}}
		down := &fakeArchive{err: errors.New("no route to host")}
		pipelines := two()
		pipelines[0].Archive, pipelines[1].Archive = orders, down
		s := New(pipelines, NewMetrics(""), Config{})
		expect := func(what string, want map[string]float64) {
			t.Helper()
			got := map[string]float64{}
			for name, value := range scrape(t, s) {
				if len(name) > len("relay_archive") && name[:len("relay_archive")] == "relay_archive" {
					got[name] = value
				}
			}
			nans := cmp.Comparer(func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) })
			if diff := cmp.Diff(want, got, nans); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		nan := math.NaN()
		want := map[string]float64{
			"relay_archive_bytes{pipeline=orders}": 46e6, "relay_archive_events{pipeline=orders}": 60_000, "relay_archive_oldest_seconds{pipeline=orders}": 10800,
			"relay_archive_bytes{pipeline=down}": nan, "relay_archive_events{pipeline=down}": nan, "relay_archive_oldest_seconds{pipeline=down}": nan,
		}
		expect("two archives", want)
		orders.size = buffer.ArchiveSize{Bytes: 8192, Events: -1, Now: now}
		expect("within a minute", want)
		if orders.asked != 1 || down.asked != 2 {
			t.Errorf("asked %d times, and %d times after a failure", orders.asked, down.asked)
		}
		time.Sleep(maxSlowAge + time.Second) //nolint:forbidigo // the bubble's time
		want["relay_archive_bytes{pipeline=orders}"], want["relay_archive_events{pipeline=orders}"], want["relay_archive_oldest_seconds{pipeline=orders}"] = 8192, nan, 0
		expect("later, empty and not analysed", want)
	})
}
