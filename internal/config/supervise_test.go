package config

import (
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/supervisor"
)

type ignore struct{}

func (ignore) Blocked(buffer.BlockerKind, time.Duration) {}

// TestSupervise_OnePerDatabase: however many pipelines are on it, and however they name it.
func TestSupervise_OnePerDatabase(t *testing.T) {
	t.Parallel()
	c := parseGood(t, `pipelines:
  - {name: a, source: {url: "postgres://x@localhost/app", supervisor: {warn_after: 1m}}, sink: {url: "stdout:"}}
  - {name: b, source: {url: "postgres://y@127.0.0.1:5432/app", table: b, supervisor: {terminate_after: 1h}}, sink: {url: "stdout:"}}
  - {name: c, source: {url: "postgres://x@localhost/other"}, sink: {url: "stdout:"}}
  - {name: d, source: {url: "sqlite:///`+t.TempDir()+`/d.db"}, sink: {url: "stdout:"}}
  - {name: e, source: {url: "postgres://x@localhost/app", table: app.e}, sink: {url: "stdout:"}}
`)
	lines, err := c.Open(func(string) Process { return Process{Stdout: io.Discard} })
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		for _, line := range lines {
			if err := line.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
	var of []string
	all, err := c.Supervise(lines, func(names ...string) supervisor.Observer {
		of = append(of, strings.Join(names, "+"))
		return ignore{}
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a+b+e", "c"}, of); diff != "" || len(all) != 2 {
		t.Errorf("%d supervisors: %s", len(all), diff)
	}
	if lines[0].supervisor != all[0] || lines[1].supervisor != all[0] || lines[2].supervisor != all[1] || lines[3].supervisor != nil || lines[4].supervisor != all[0] {
		t.Error("the pipelines have other supervisors than their database's")
	}
	for _, line := range lines {
		if h, ok := line.Worst(); ok {
			t.Errorf("before the first observation the blocker is %+v", h)
		}
	}
}
