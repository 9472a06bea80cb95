package admin

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// scrape returns the relay's metrics: values by name and labels, a histogram as its
// count.
func scrape(t *testing.T, s *Server) map[string]float64 {
	t.Helper()
	values := map[string]float64{}
	for name, family := range families(t, s) {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			if strings.HasPrefix(name, "relay_") {
				values[name+"{"+strings.Join(labels, ",")+"}"] = value
			}
		}
	}
	return values
}

func families(t *testing.T, s *Server) map[string]*dto.MetricFamily {
	t.Helper()
	w := get(t, s, "/metrics")
	if w.Code != http.StatusOK {
		t.Fatalf("/metrics answers %d", w.Code)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	all, err := parser.TextToMetricFamilies(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// observed returns a server of two pipelines, and the observer of the first.
func observed() (*Server, *Observer) {
	m := NewMetrics("1.2.3")
	o := m.Observer("orders", "")
	m.Observer("down", "")
	return New(two(), m, Config{}), o
}

func TestMetrics_PresentFromTheStart(t *testing.T) {
	t.Parallel()
	s, _ := observed()
	got := scrape(t, s)
	want := map[string]float64{}
	for _, p := range []string{"orders", "down"} {
		for _, name := range []string{
			"relay_events_delivered_total", "relay_events_dead_total", "relay_claim_seconds", "relay_send_seconds",
			"relay_settle_seconds", "relay_delivery_latency_seconds",
		} {
			want[name+"{pipeline="+p+"}"] = 0
		}
		for _, outcome := range []string{"delivered", "retry", "split", "buried"} {
			want["relay_batches_total{outcome="+outcome+",pipeline="+p+"}"] = 0
		}
		for _, kind := range []string{"transaction", "prepared", "slot"} {
			want["relay_source_xmin_horizon_seconds{kind="+kind+",pipeline="+p+"}"] = 0
		}
	}
	for name, value := range map[string]float64{
		"relay_events_pending{pipeline=": 1234, "relay_oldest_pending_seconds{pipeline=": 90.123456,
		"relay_events_delayed{pipeline=": 0, "relay_source_oldest_transaction_seconds{pipeline=": 5, "relay_source_table_locked{pipeline=": 0, "relay_dead_letters{pipeline=": 4, "relay_dead_letters_unnotified{pipeline=": 0, "relay_batches{pipeline=": -1,
		"relay_suspect_batches{pipeline=": 2, "relay_oldest_suspect_seconds{pipeline=": 500,
	} {
		if value >= 0 {
			want[name+"orders}"], want[name+"down}"] = value, math.NaN()
			continue
		}
		for i, state := range []string{"leased", "waiting", "delivered"} {
			want[name+"orders,state="+state+"}"], want[name+"down,state="+state+"}"] = float64(i+1), math.NaN()
		}
	}
	want["relay_build_info{goversion="+runtime.Version()+",revision=,version=1.2.3}"] = 1
	want["relay_dead_letter_hook{pipeline=orders}"], want["relay_dead_letter_hook{pipeline=down}"] = 0, 0
	want["relay_source_up{pipeline=orders}"], want["relay_source_up{pipeline=down}"] = 1, 0
	want["relay_paused{pipeline=orders}"], want["relay_paused{pipeline=down}"] = 0, math.NaN()
	want["relay_ready{pipeline=orders}"], want["relay_ready{pipeline=down}"] = 1, 0
	for _, class := range []string{"database", "sink", "stalled", "refusing"} {
		want["relay_not_ready{class="+class+",pipeline=orders}"], want["relay_not_ready{class="+class+",pipeline=down}"] = 0, 0
	}
	want["relay_not_ready{class=database,pipeline=down}"] = 1
	for _, p := range []string{"orders", "down"} {
		want["relay_batch_size{pipeline="+p+"}"], want["relay_workers{pipeline="+p+"}"] = 1000, 4
	}
	nans := cmp.Comparer(func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) })
	if diff := cmp.Diff(want, got, nans); diff != "" {
		t.Error(diff)
	}
	all := families(t, s)
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes"} {
		if all[name] == nil {
			t.Errorf("metric %s is missing", name)
		}
	}
	for name, family := range all {
		if strings.HasPrefix(name, "relay_") && family.GetHelp() == "" {
			t.Errorf("%s has no help", name)
		}
	}
}

// The age of the oldest transaction is absent if the role does not see those of others.
func TestMetrics_HiddenTransactions(t *testing.T) {
	t.Parallel()
	for _, hidden := range []bool{false, true} {
		s := New([]Pipeline{(&state{name: "orders", status: buffer.Status{TransactionsHidden: hidden}}).pipeline()}, NewMetrics("1.2.3"), Config{})
		if _, ok := scrape(t, s)["relay_source_oldest_transaction_seconds{pipeline=orders}"]; ok == hidden {
			t.Errorf("hidden: %t, and the metric is there: %t", hidden, ok)
		}
	}
}

// locks is a pipeline whose locks are observed.
type locks struct {
	state
	table *buffer.LockedError
	known bool
}

func (l *locks) Locker() (h buffer.VacuumBlocker, holds, ok bool) { return h, false, false }
func (l *locks) LocksSeenAt() time.Time                           { return time.Time{} }
func (l *locks) TableLocker() *buffer.LockedError                 { return l.table }
func (l *locks) LocksKnown() bool                                 { return l.known }

var _ lockObserver = (*locks)(nil)

func TestMetrics_TableLocked(t *testing.T) {
	t.Parallel()
	locked := &buffer.LockedError{Text: "table public.orders is locked"}
	for name, c := range map[string]struct {
		locks locks
		want  float64
	}{
		"none":                     {locks{known: true}, 0},
		"locked":                   {locks{known: true, table: locked}, 1},
		"locked, no status":        {locks{known: true, table: locked, state: state{err: errUnreachable}}, 1},
		"the status waited for it": {locks{state: state{err: fmt.Errorf("reading the status: %w", locked)}}, 1},
		"not looked at":            {locks{}, math.NaN()},
		"no database":              {locks{known: true, state: state{err: errUnreachable}}, math.NaN()},
	} {
		s := New([]Pipeline{{Name: "orders", Health: &c.locks}}, NewMetrics("1.2.3"), Config{})
		got, ok := scrape(t, s)["relay_source_table_locked{pipeline=orders}"]
		if !ok || got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("%s: the metric is %v, %t; want %v", name, got, ok, c.want)
		}
	}
}

func TestVacuumObserver(t *testing.T) {
	t.Parallel()
	m := NewMetrics("1.2.3")
	s := New(two(), m, Config{})
	m.Observer("apart", "")
	h := m.VacuumObserver("orders", "down")
	h.Blocked(buffer.BlockedByTransaction, 90*time.Second)
	h.Blocked(buffer.BlockedByPrepared, 0)
	h.Blocked(buffer.BlockedBySlot, -1)
	got := scrape(t, s)
	for _, c := range []struct {
		kind  string
		value float64
	}{{"transaction", 90}, {"prepared", 0}, {"slot", math.NaN()}} {
		for pipeline, want := range map[string]float64{"orders": c.value, "down": c.value, "apart": 0} {
			v, ok := got["relay_source_xmin_horizon_seconds{kind="+c.kind+",pipeline="+pipeline+"}"]
			if !ok || v != want && !(math.IsNaN(v) && math.IsNaN(want)) {
				t.Errorf("%s of %s is %v, %v; want %v", c.kind, pipeline, v, ok, want)
			}
		}
	}
}

func TestObserver(t *testing.T) {
	t.Parallel()
	ten := batch(10, time.Minute)
	marked := batch(10, time.Minute)
	marked.Delivered = []int64{1, 2}
	all := buffer.Outcome{}
	some := func(v buffer.Verdict, ids ...int64) buffer.Outcome { return buffer.Outcome{Verdict: v, IDs: ids} }
	for _, c := range []struct {
		name     string
		batch    *buffer.Lease
		outcomes []buffer.Outcome
		want     map[string]float64
	}{
		{"all delivered", ten, []buffer.Outcome{all}, map[string]float64{"events_delivered_total": 10, "delivered": 1, "delivery_latency_seconds": 10}},
		{"all again", ten, []buffer.Outcome{{Verdict: buffer.Retry}}, map[string]float64{"retry": 1}},
		{
			"a part again", ten,
			[]buffer.Outcome{some(buffer.Delivered, 1, 2, 3, 5), some(buffer.Retry, 4, 6, 7, 8, 9, 10)},
			map[string]float64{"events_delivered_total": 4, "split": 1, "delivery_latency_seconds": 4},
		},
		{
			"one dead", ten,
			[]buffer.Outcome{some(buffer.Delivered, 1, 9), some(buffer.Dead, 10), some(buffer.Retry, 2, 3, 4, 5, 6, 7, 8)},
			map[string]float64{"events_delivered_total": 2, "events_dead_total": 1, "buried": 1, "delivery_latency_seconds": 2},
		},
		{"all dead", ten, []buffer.Outcome{{Verdict: buffer.Dead}}, map[string]float64{"events_dead_total": 10, "buried": 1}},
		{
			"marked", marked,
			[]buffer.Outcome{some(buffer.Delivered, 1, 2), some(buffer.Retry, 3, 4, 5, 6, 7, 8, 9, 10)},
			map[string]float64{"events_delivered_total": 2, "split": 1},
		},
		{"no events", batch(0, 0), []buffer.Outcome{all}, map[string]float64{"delivered": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, o := observed()
			before := scrape(t, s)
			o.Settled(c.batch, c.outcomes, true, time.Millisecond)
			got := map[string]float64{}
			for name, value := range scrape(t, s) {
				if difference := value - before[name]; difference != 0 && !math.IsNaN(difference) {
					got[name] = difference
				}
			}
			want := map[string]float64{"relay_settle_seconds{pipeline=orders}": 1}
			for name, value := range c.want {
				if outcomes := []string{"delivered", "retry", "split", "buried"}; slices.Contains(outcomes, name) {
					want["relay_batches_total{outcome="+name+",pipeline=orders}"] = value
				} else {
					want["relay_"+name+"{pipeline=orders}"] = value
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	s, o := observed()
	o.Claimed(ten, time.Second)
	o.Sent(ten, time.Second)
	got := scrape(t, s)
	if got["relay_claim_seconds{pipeline=orders}"] != 1 || got["relay_send_seconds{pipeline=orders}"] != 1 {
		t.Errorf("a claim and a send were not counted: %v", got)
	}
}

// The database's clock is hours ahead of the local one.
func TestObserver_Latency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testLatency)
}

func testLatency(t *testing.T) {
	s, o := observed()
	b := batch(120, 119*time.Second) // 119 s, 118 s, ..., 0 s
	<-time.After(time.Microsecond)
	o.Settled(b, []buffer.Outcome{{}}, true, 0)
	h := families(t, s)["relay_delivery_latency_seconds"].GetMetric()
	i := slices.IndexFunc(h, func(m *dto.Metric) bool { return m.GetLabel()[0].GetValue() == "orders" })
	var sum float64
	want := map[float64]uint64{}
	for _, bound := range buffer.LatencyBounds() {
		n := 0
		for age := range 120 {
			if float64(age) < bound {
				n++
			}
		}
		want[bound] = uint64(n)
	}
	for age := range 120 {
		sum += float64(age)
	}
	got := map[float64]uint64{}
	for _, bucket := range h[i].GetHistogram().GetBucket() {
		if !math.IsInf(bucket.GetUpperBound(), 1) {
			got[bucket.GetUpperBound()] = bucket.GetCumulativeCount()
		}
	}
	// A second's event is a microsecond older than that, and so beyond the bound of its own second.
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if mean := h[i].GetHistogram().GetSampleSum(); math.Abs(mean-sum) > 10 {
		t.Errorf("the sum is %v, want %v", mean, sum)
	}
	if keys := slices.Collect(maps.Keys(got)); len(keys) != len(buffer.LatencyBounds()) {
		t.Errorf("%d buckets", len(keys))
	}
}

// A send that ends at the default of sink.timeout is in a bucket with an end.
func TestObserver_Timeout(t *testing.T) {
	t.Parallel()
	s, o := observed()
	o.Sent(batch(1, time.Second), 30*time.Second+50*time.Millisecond)
	for _, m := range families(t, s)["relay_send_seconds"].GetMetric() {
		buckets := m.GetHistogram().GetBucket()
		finite := slices.DeleteFunc(buckets, func(b *dto.Bucket) bool { return math.IsInf(b.GetUpperBound(), 1) })
		if last := finite[len(finite)-1]; last.GetCumulativeCount() != m.GetHistogram().GetSampleCount() {
			t.Errorf("%d of %d sends took at most %v s", last.GetCumulativeCount(), m.GetHistogram().GetSampleCount(), last.GetUpperBound())
		}
	}
}

// With traces, the buckets name the trace of a batch that is sampled; all events are counted as without. Without traces the format has none.
func TestObserver_Exemplars(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testExemplars)
}

func testExemplars(t *testing.T) {
	const id = "0af7651916cd43dd8448eb211c80319c"
	for _, on := range []bool{true, false} {
		m := NewMetrics("1.2.3")
		o := m.Observer("orders", "")
		s := New(two(), m, Config{Exemplars: on})
		plain, sampled := batch(3, 2*time.Second), batch(3, 2*time.Second)
		sampled.TraceID = id
		for _, b := range []*buffer.Lease{plain, sampled} {
			o.Sent(b, 20*time.Millisecond)
			o.Settled(b, []buffer.Outcome{{}}, true, time.Millisecond)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody)
		r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		var got []string
		for line := range strings.Lines(w.Body.String()) {
			if before, after, found := strings.Cut(line, " # "); found {
				exemplar, _, _ := strings.Cut(after, "} ")
				got = append(got, before+" # "+exemplar+"}")
			}
		}
		want := []string(nil)
		if on {
			want = []string{
				`relay_delivery_latency_seconds_bucket{pipeline="orders",le="2.5"} 6 # {trace_id="` + id + `"}`,
				`relay_send_seconds_bucket{pipeline="orders",le="0.025"} 2 # {trace_id="` + id + `"}`,
				`relay_settle_seconds_bucket{pipeline="orders",le="0.001"} 2 # {trace_id="` + id + `"}`,
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("exemplars, on=%v (-want +got):\n%s", on, diff)
		}
		if n := families(t, s)["relay_delivery_latency_seconds"]; on && sampleCount(n, "orders") != 6 {
			t.Errorf("%d events are counted", sampleCount(n, "orders"))
		}
	}
}

func sampleCount(f *dto.MetricFamily, pipeline string) (n uint64) {
	for _, m := range f.GetMetric() {
		if m.GetLabel()[0].GetValue() == pipeline {
			n += m.GetHistogram().GetSampleCount()
		}
	}
	return n
}

func BenchmarkSettled(b *testing.B) {
	o := NewMetrics("1.2.3").Observer("orders", "")
	ten := batch(1000, time.Minute)
	for _, outcomes := range [][]buffer.Outcome{{{}}, {{IDs: ten.IDs()}}} {
		b.Run(fmt.Sprintf("ids=%d", len(outcomes[0].IDs)), func(b *testing.B) {
			for b.Loop() {
				o.Settled(ten, outcomes, true, time.Millisecond)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/event")
		})
	}
}
