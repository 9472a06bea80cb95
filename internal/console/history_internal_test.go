package console

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestHistory_Latencies: those of all relays that share a database are added up, without what was before the last observation.
func TestHistory_Latencies(t *testing.T) {
	t.Parallel()
	h, at := newHistory(), time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)
	look := func(after time.Duration, relays ...admin.RelayReport) point {
		o := observation{}
		o.relays(&admin.PipelineReport{Relays: relays}, func(string) bool { return true })
		h.add(seriesKey{pipeline: "orders"}, at.Add(after), o)
		p, _ := h.now(seriesKey{pipeline: "orders"})
		return p
	}
	relay := func(owner, latencies string) admin.RelayReport {
		return admin.RelayReport{Owner: owner, Running: true, Latencies: buffer.ParseLatencies(latencies)}
	}
	if p := look(0, relay("a/1/orders", "60:1000"), relay("b/2/orders", "60:500")); !math.IsNaN(float64(p.P50)) {
		t.Errorf("the first observation has a p50 of %v", p.P50)
	}
	p := look(10*time.Second, relay("a/1/orders", "0.01:98 60:1000"), relay("b/2/orders", "10:2 60:500"), relay("c/3/orders", "3600:9"))
	if p.P50 < .005 || p.P50 > .01 || p.P99 < 5 || p.P99 > 10 {
		t.Errorf("p50 is %v, p99 %v; want 98 deliveries of 10 ms and 2 of 10 s", p.P50, p.P99)
	}
	if p := look(20*time.Second, relay("a/1/orders", "0.01:98 60:1000")); !math.IsNaN(float64(p.P99)) {
		t.Errorf("without a delivery p99 is %v", p.P99)
	}
}

// TestHistory_LatenciesAfterOutage: no event took longer than the oldest one that was pending, whatever the bounds of the histogram are.
func TestHistory_LatenciesAfterOutage(t *testing.T) {
	t.Parallel()
	h, at, key := newHistory(), time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC), seriesKey{pipeline: "orders"}
	look := func(after time.Duration, oldest float64, latencies string) point {
		o := observation{oldest: &oldest}
		o.relays(&admin.PipelineReport{Relays: []admin.RelayReport{{Owner: "a/1/orders", Running: true, Latencies: buffer.ParseLatencies(latencies)}}}, func(string) bool { return true })
		h.add(key, at.Add(after), o)
		p, _ := h.now(key)
		return p
	}
	look(0, 142, "")
	if p := look(10*time.Second, 0, "300:1000"); p.P99 > 162 || p.P50 > 162 || p.P50 < 120 {
		t.Errorf("p50 is %v, p99 %v; the oldest event was 152 s old", p.P50, p.P99)
	}
}

// TestHistory_Memory: however many pipelines there are, the history takes 10 MB at most.
func TestHistory_Memory(t *testing.T) {
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	h, at := newHistory(), time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)
	for i := range 2 * maxSeries {
		key := seriesKey{pipeline: fmt.Sprint("pipeline-", i)}
		for _, after := range []time.Duration{0, hourStep} {
			o := observation{}
			var relays []admin.RelayReport
			for j := range 3 {
				relays = append(relays, admin.RelayReport{Owner: fmt.Sprintf("a-host-with-a-name-%d/12345/%s", j, key.pipeline), Running: true, Latencies: buffer.ParseLatencies("0.01:98")})
			}
			o.relays(&admin.PipelineReport{Relays: relays}, func(string) bool { return true })
			h.add(key, at.Add(after), o)
		}
		h.sparkline(key, at.Add(hourStep))
	}
	if took := heap() - before; took > 10<<20 {
		t.Errorf("the history takes %d kB", took>>10)
	}
	runtime.KeepAlive(h)
}
