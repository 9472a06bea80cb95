package console

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestRelayRows_Order: the rows of relays stay where they are, whichever of them the database names first.
func TestRelayRows_Order(t *testing.T) {
	t.Parallel()
	s := New(Config{Process: "b/2"})
	relays := []admin.RelayReport{{Owner: "c/3/orders", Running: true}, {Owner: "a/1/orders", Running: true}, {Owner: "d/4/orders"}, {Owner: "b/2/orders", Running: true}}
	for range 4 {
		relays = append(relays[1:], relays[0])
		var names []string
		for _, r := range s.relayRows(&admin.Report{Pipelines: []admin.PipelineReport{{Name: "orders", Relays: relays}}}) {
			names = append(names, r.Process)
		}
		testkit.Equal(t, "rows", strings.Join(names, " "), "b/2 a/1 c/3 d/4")
	}
}

// TestProblems_OthersDeliver: while another relay delivers everything, what this one cannot reach stops nothing; while something waits, it does.
func TestProblems_OthersDeliver(t *testing.T) {
	t.Parallel()
	source := &oneSource{health: &reason{class: buffer.NotReadySink, kind: buffer.NotReadySink}, report: admin.Report{Pipelines: []admin.PipelineReport{{
		Name: "orders", State: "sending", Relays: []admin.RelayReport{{Owner: "other/2/orders", Running: true}, {Owner: "host/1/orders", Running: true}},
	}}}}
	s := New(Config{Source: source, Process: "host/1"})
	p := &source.report.Pipelines[0]
	for _, c := range []struct {
		pending  int64
		other    string // why the other one is not ready
		headline string
	}{
		{0, "", "Everything moves, with warnings."}, {3, "", "The pipeline needs attention."}, {0, "away", "The pipeline needs attention."},
	} {
		p.Pending, p.Relays[0].NotReady = c.pending, c.other
		d := s.overviewOf(&source.report, problems(s, &source.report))
		testkit.Equal(t, "headline", d.Headline, c.headline)
		testkit.Equal(t, "problems", len(d.Problems), 1)
	}
}

// TestSinksState: a pipeline of several sinks has the state of the sink that is worst off.
func TestSinksState(t *testing.T) {
	t.Parallel()
	of := func(states ...string) []row {
		rows := make([]row, len(states))
		for i, text := range states {
			class, state, _ := strings.Cut(text, " ")
			rows[i] = row{Sink: string(rune('a' + i)), State: state, Class: strings.TrimPrefix(class, "-")}
		}
		return rows
	}
	for _, c := range []struct {
		rows []row
		want string
	}{
		{of("good moving", "- idle"), "moving good"},
		{of("- idle", "- idle"), "idle "},
		{of("good moving", "bad no access 8s", "- idle"), "b: no access 8s bad"},
		{of("bad sink full 1m", "bad no access 8s", "- idle"), "2 of 3 sinks stand still bad"},
		{append(of("bad sink full 1m", "bad no access 8s"), row{Sink: buffer.Unrouted, State: "stands still 1m", Class: "bad", Unrouted: true}), "2 of 2 sinks stand still bad"},
		{append([]row{{Sink: buffer.Unrouted, State: "stands still 1m", Class: "bad", Unrouted: true}}, of("bad no access 8s", "good moving")...), "a: no access 8s bad"},
		{of("warn retries in 8s", "good moving"), "a: retries in 8s warn"},
		{append(of("- idle", "- idle"), row{Sink: buffer.Unrouted, State: "stands still 1m", Class: "warn", Unrouted: true}), "stands still 1m warn"},
	} {
		text, class := sinksState(c.rows)
		testkit.Equal(t, "state", text+" "+class, c.want)
	}
}

// TestMerged: dead letters and what the sink still says to such events are one problem, whichever relay says it; what waits for another reason is one of its own.
func TestMerged(t *testing.T) {
	t.Parallel()
	const said = `POST http://crm/a: 422 Unprocessable Entity: {"detail": "currency"}`
	all := merged([]problem{
		{Pipeline: "orders", Title: "sink refuses some events", Detail: "vm/2: sink: " + said, Refuses: true, Warning: true},
		{Pipeline: "orders", Title: titleWaits, Detail: "2 batches wait (3 events), due now: " + said, Said: said, Warning: true},
		{Pipeline: "orders", Title: "7 dead letters", Key: keyDead, Detail: "All of topic a: " + said, Said: said, Now: "3 events became dead letters.", Warning: true},
		{Pipeline: "bills", Title: "1 dead letter", Key: keyDead, Said: said, Warning: true},
		{Pipeline: "bills", Title: titleWaits, Detail: "1 batch waits: 503", Said: "503", Warning: true},
	})
	var got []string
	for i := range all {
		got = append(got, all[i].Pipeline+" "+all[i].Title)
	}
	testkit.Equal(t, "problems", strings.Join(got, ", "), "orders 7 dead letters, bills 1 dead letter, bills batches wait for a retry")
	testkit.Equal(t, "now", all[0].Now, "3 events became dead letters. 2 batches wait (3 events), due now.")
	testkit.Equal(t, "detail", all[0].Detail, "All of topic a: "+said)
}

// TestDeaths: deaths and deliveries of the last minute are counted, with the share, and older ones are not.
func TestDeaths(t *testing.T) {
	t.Parallel()
	h, key, at := newHistory(), seriesKey{pipeline: "orders"}, time.Now()
	observe := func(died, delivered int64) {
		h.add(key, at, observation{died: map[string]int64{"a": died}, delivered: map[string]int64{"a": delivered}})
		at = at.Add(minInterval)
	}
	observe(1000, 1000) // before the console looked
	observe(1003, 1003)
	testkit.Equal(t, "first", h.deaths(key).text("orders"), "3 events became dead letters in the last 10s: 50 % of what orders got.")
	observe(1004, 1200)
	testkit.Equal(t, "many", h.deaths(key).many(), true)
	observe(1004, 5000)
	observe(1004, 5000)
	testkit.Equal(t, "many, when it is over", h.deaths(key).many(), false)
	testkit.Equal(t, "when it is over", h.deaths(key).text("orders"), "4 events became dead letters in the last 40s: less than 1 % of what orders got. None did in the last 20s.")
	for range tallies {
		observe(1004, 5000)
	}
	testkit.Equal(t, "a minute later", h.deaths(key).text("orders"), "")
	observe(1005, 90_000)
	testkit.Equal(t, "a few", h.deaths(key).text("orders"), "1 event became a dead letter in the last 10s: less than 1 % of what orders got.")
	testkit.Equal(t, "many", h.deaths(key).many(), false)
}

// TestDeaths_OfSink: the share is that of the sink at which events die, since they do: neither other sinks nor what was delivered before make it smaller. The card names the
// sink, and its advice is the same whether a relay says just then that the sink refuses some.
func TestDeaths_OfSink(t *testing.T) {
	t.Parallel()
	source := &oneSource{health: healthy{}, report: admin.Report{Pipelines: []admin.PipelineReport{{
		Name: "orders", Dead: 30, Sinks: []admin.SinkReport{{Name: "log", State: "sending"}, {Name: "crm", State: "sending", Dead: 30}},
	}}}}
	s := New(Config{Source: source, Process: "host/1"})
	p, at := &source.report.Pipelines[0], time.Now()
	observe := func(died, crm, log int64) {
		p.Relays = []admin.RelayReport{{Owner: "host/1/orders", Sink: "crm", Running: true, Delivered: crm, Dead: died}, {Owner: "host/1/orders", Sink: "log", Running: true, Delivered: log}}
		s.sample(at, &source.report)
		at = at.Add(minInterval)
	}
	observe(0, 0, 0)
	observe(0, 9000, 9000)
	observe(30, 9070, 9100)
	d := s.overviewOf(&source.report, problems(s, &source.report))
	testkit.Equal(t, "headline", d.Headline, "The pipeline needs attention. In the last minute, 30 % of orders/crm became dead letters.")
	testkit.Equal(t, "card", d.Problems[0].Named()+": "+d.Problems[0].Title, "orders/crm: 30 dead letters")
	testkit.Equal(t, "now", d.Problems[0].Now, "30 events became dead letters in the last 10s: 30 % of what orders/crm got.")
	testkit.Equal(t, "row", d.Rows[0].State, "moving, 30 % died at crm")
	if !strings.Contains(d.Problems[0].Do, "pause sink crm (Pause sink crm, on the page of orders)") {
		t.Errorf("to do: %s", d.Problems[0].Do)
	}
	p.Relays[0].NotReady, p.Relays[0].NotReadyClass, p.Relays[0].NotReadyKind, p.Relays[0].Owner = "422", buffer.NotReadyRefusing, buffer.KindSome, "other/2/orders"
	again := problems(s, &source.report)
	testkit.Equal(t, "cards while a relay says that the sink refuses some", len(again), 1)
	testkit.Equal(t, "to do then", again[0].Do, d.Problems[0].Do)
	testkit.Equal(t, "by itself then", again[0].Alone, d.Problems[0].Alone)
}

// TestObserve: a problem that ended and comes back is a new one; one that flickers is the same for 30 seconds, and one that the sampler saw twice is one, too.
func TestObserve(t *testing.T) {
	t.Parallel()
	began := time.Now()
	for _, c := range []struct {
		one   problem
		gone  time.Duration
		later bool
	}{
		{problem{Pipeline: "orders", Title: "sink unavailable"}, 25 * time.Second, true},
		{problem{Pipeline: "orders", Title: "sink unavailable"}, 3 * time.Second, false},
		{problem{Pipeline: "orders", Title: "sink refuses some events", Cause: buffer.NotReadyRefusing}, 25 * time.Second, false},
	} {
		l := newLive()
		all := []problem{c.one}
		l.observe(began, all)
		for at := time.Second; at < c.gone; at += time.Second {
			l.observe(began.Add(at), nil)
		}
		back := began.Add(c.gone)
		l.observe(back, all)
		l.setSince(back, all)
		want := began
		if c.later {
			want = back
		}
		testkit.Equal(t, c.one.Title+" since", all[0].Since, want)
	}
	l := newLive()
	all := []problem{{Pipeline: "orders", Title: "sink unavailable"}}
	l.observe(began, all)
	l.observe(began.Add(hourStep), all)
	l.setSince(began.Add(hourStep), all)
	testkit.Equal(t, "since, sampled every ten seconds", all[0].Since, began)
}

// TestProblems_RowLocks: a transaction that holds locks in the event table blocks events once one waits for a minute; the pipelines of the same database that it does not block
// have a card of their own, which does not say so. What waits for another reason is not blamed on it.
func TestProblems_RowLocks(t *testing.T) {
	t.Parallel()
	oldest := 66.0
	blocker := func(locks bool) *admin.BlockerReport {
		return &admin.BlockerReport{Kind: string(buffer.BlockedByTransaction), PID: 7, Text: "a transaction is open", Fix: "SELECT pg_terminate_backend(7)", LocksBuffer: locks}
	}
	report := admin.Report{Pipelines: []admin.PipelineReport{
		{Name: "orders", State: "sending", VacuumBlockedBy: blocker(false)},
		{Name: "shipments", State: "sending", Pending: 2, OldestPendingSeconds: &oldest, VacuumBlockedBy: blocker(true), RowsLockedBy: blocker(true)},
		{Name: "emails", State: "sending", VacuumBlockedBy: blocker(false)},
	}}
	s := New(Config{Source: &oneSource{health: healthy{}, report: report}, Process: "host/1"})
	cards := func() (all []string) {
		d := s.overviewOf(&report, problems(s, &report))
		for i := range d.Problems {
			all = append(all, d.Problems[i].Named()+": "+d.Problems[i].Title)
		}
		return append(all, d.Headline)
	}
	p := &report.Pipelines[1]
	testkit.Equal(t, "cards", strings.Join(cards(), "\n"), `shipments: a transaction blocks events: it holds locks in their table
1 of 3 pipelines needs attention.`)
	d := s.overviewOf(&report, problems(s, &report))
	row := d.Rows[slices.IndexFunc(d.Rows, func(r row) bool { return r.Pipeline == "shipments" })]
	testkit.Equal(t, "row", row.State+" "+row.Class, "moving, rows locked bad")
	p.VacuumBlockedBy = nil // before warn_after
	testkit.Equal(t, "first card before warn_after", cards()[0], "shipments: a transaction blocks events: it holds locks in their table")
	p.Waits = []admin.WaitReport{{Error: "503", Batches: 1}}
	testkit.Equal(t, "first card while a batch waits for the sink", cards()[0], "orders and emails: a forgotten transaction blocks vacuum")
	p.Waits, p.VacuumBlockedBy, oldest = nil, blocker(true), 2
	testkit.Equal(t, "first card while no event is old", cards()[0]+"\n"+cards()[1], "orders and emails: a forgotten transaction blocks vacuum\nshipments: a transaction can block events: it holds locks in their table")
	const order = "with order: key no later event of their keys is sent"
	alone := func() string {
		all := problems(s, &report)
		return all[slices.IndexFunc(all, func(p problem) bool { return p.Pipeline == "shipments" })].Alone
	}
	testkit.Equal(t, "later events may wait", strings.Contains(alone(), order), true)
	p.Pending, p.Batches.Delivered = 0, 1 // the locked rows are sent already
	if text := alone(); strings.Contains(text, order) || !strings.Contains(text, "1 batch was sent, and is not sent again") {
		t.Errorf("while nothing waits: %s", text)
	}
	p.Pending, p.Batches.Delivered, oldest = 4, 0, 12
	testkit.Equal(t, "first card while a relay claims nothing of what waits for some seconds, and none runs", cards()[0], "orders and emails: a forgotten transaction blocks vacuum")
	p.Relays = []admin.RelayReport{{Owner: "host/1/shipments", Running: true}}
	testkit.Equal(t, "first card while a relay claims nothing of what waits for some seconds", cards()[0], "shipments: a transaction blocks events: it holds locks in their table")
	locked, found := s.lockedEvents(&report, "shipments")
	if !found || !strings.HasPrefix(locked.Text, "shipments: 4 events are pending. Those that are in no batch are locked: ") {
		t.Errorf("the page of batches says %+v", locked)
	}
	p.Batches.Leased = 1
	testkit.Equal(t, "first card while it sends", cards()[0], "orders and emails: a forgotten transaction blocks vacuum")
}

// TestProblems_NoTables: tables that are missing are one problem of all pipelines, with the command, and no database that does not answer.
func TestProblems_NoTables(t *testing.T) {
	t.Parallel()
	source := &oneSource{health: &reason{class: buffer.NotReadyDatabase, kind: buffer.NotReadyDatabase, cause: missing{}}, report: admin.Report{Errors: []admin.ReportError{{Name: "orders", Error: "no table"}}}}
	s := New(Config{Source: source})
	d := s.overviewOf(&source.report, problems(s, &source.report))
	testkit.Equal(t, "cards", len(d.Problems), 1)
	testkit.Equal(t, "title", d.Problems[0].Title, "tables are missing")
	testkit.Equal(t, "to copy", d.Problems[0].Fix, "relay migrate -c relay.yaml")
	testkit.Equal(t, "its row", d.Rows[0].Error, "its tables are missing: see above")
	testkit.Equal(t, "the relays", d.NoTables, true)
	other := d.Problems[0]
	other.Pipeline, other.Detail = "bills", "table bills does not exist"
	groups := grouped([]problem{d.Problems[0], other})
	testkit.Equal(t, "groups", len(groups), 1)
	if !strings.Contains(groups[0].Detail, "said so") || !strings.Contains(groups[0].Detail, "table bills") {
		t.Errorf("detail: %s", groups[0].Detail)
	}
}

// missing is what a buffer without tables says.
type missing struct{}

func (missing) Error() string            { return "table outbox_events does not exist" }
func (missing) Migrates() (string, bool) { return "relay migrate -c relay.yaml", true }

// TestProblems_TableLocked: a table that a transaction has locked is one card with what ends it, whatever the relay or the status say of statements that took too long, and
// whichever pipelines it blocks vacuum for.
func TestProblems_TableLocked(t *testing.T) {
	t.Parallel()
	locked := &buffer.LockedError{
		Table: "public.emails", Holder: &buffer.VacuumBlocker{Kind: buffer.BlockedByTransaction, PID: 7, Waiting: 3},
		Text: "table public.emails is locked", Fix: "SELECT pg_terminate_backend(7)", Err: context.DeadlineExceeded,
	}
	lock := admin.NewLockReport(locked)
	for name, c := range map[string]struct {
		health admin.Health
		report admin.Report
	}{
		"supervisor": {healthy{}, admin.Report{Pipelines: []admin.PipelineReport{{Name: "orders", State: "idle", TableLockedBy: lock}}}},
		"status":     {healthy{}, admin.Report{Errors: []admin.ReportError{{Name: "orders", Error: "SQLSTATE 55P03", TableLockedBy: lock}}}},
		"readiness":  {&reason{class: buffer.NotReadyDatabase, kind: buffer.KindLocked, cause: locked}, admin.Report{Pipelines: []admin.PipelineReport{{Name: "orders", State: "table locked 8s"}}}},
		"stalled":    {&reason{class: buffer.NotReadyStalled, kind: buffer.NotReadyStalled}, admin.Report{Pipelines: []admin.PipelineReport{{Name: "orders", State: "stalled 8s", TableLockedBy: lock}}}},
		"time-out": {
			&reason{class: buffer.NotReadyDatabase, kind: buffer.NotReadyDatabase, cause: context.DeadlineExceeded},
			admin.Report{Pipelines: []admin.PipelineReport{{Name: "orders", State: "db error 8s", TableLockedBy: lock, Relays: []admin.RelayReport{{Owner: "other/2/orders", Running: true, NotReady: "database: 55P03", NotReadyClass: buffer.NotReadyDatabase}}}}},
		},
		"both": {&reason{class: buffer.NotReadyDatabase, kind: buffer.NotReadyDatabase, cause: context.DeadlineExceeded}, admin.Report{Errors: []admin.ReportError{{Name: "orders", Error: "SQLSTATE 55P03", TableLockedBy: lock}}}},
		"blocks vacuum": {healthy{}, admin.Report{Pipelines: []admin.PipelineReport{
			{Name: "orders", State: "idle", TableLockedBy: lock}, {Name: "bills", State: "idle", VacuumBlockedBy: &admin.BlockerReport{Kind: "transaction", Text: "a transaction is open", Fix: lock.Fix}},
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := New(Config{Source: &oneSource{health: c.health, report: c.report}, Process: "host/1", Redact: func(text string) string { return text }})
			d := s.overviewOf(&c.report, problems(s, &c.report))
			testkit.Equal(t, "cards", len(d.Problems), 1)
			one := d.Problems[0]
			testkit.Equal(t, "card", one.Named()+": "+one.Title+": "+one.Detail, "orders: a transaction locks its table: table public.emails is locked")
			testkit.Equal(t, "to copy", one.Fix, lock.Fix)
			testkit.Equal(t, "now", one.Now, "3 sessions wait for it.")
			testkit.Equal(t, "loud", d.Attention && !one.Warning, true)
			if row := d.Rows[0]; !strings.Contains(row.State, "table locked") && row.State != "db error 8s, table locked" || row.Class != "bad" {
				t.Errorf("its row is %s, %s", row.State, row.Class)
			}
			if strings.Contains(one.Do, "Check that the database runs") {
				t.Errorf("it sends the reader to a database that works: %s", one.Do)
			}
		})
	}
}

// TestProblems_RefusesAll: while a sink refuses the only topic there is no dead letter to look at.
func TestProblems_RefusesAll(t *testing.T) {
	t.Parallel()
	source := &oneSource{health: &reason{class: buffer.NotReadyRefusing, kind: buffer.KindSome}, report: admin.Report{Pipelines: []admin.PipelineReport{{Name: "orders", State: "refusing 8s"}}}}
	s := New(Config{Source: source, Process: "host/1"})
	testkit.Equal(t, "link without dead letters", problems(s, &source.report)[0].Link, "pipelines/orders#waits")
	source.health = healthy{}
	source.report.Pipelines[0].Relays = []admin.RelayReport{{Owner: "other/2/orders", Running: true, NotReady: "refusing", NotReadyClass: buffer.NotReadyRefusing, NotReadyKind: buffer.KindSome}}
	testkit.Equal(t, "link of another relay's", problems(s, &source.report)[0].Link, "pipelines/orders#waits")
	source.report.Pipelines[0].Dead = 1
	testkit.Equal(t, "link with dead letters", problems(s, &source.report)[0].Link, "dead?pipeline=orders")
}

// TestProblems_Gone: a relay that is gone is missed until another one has started.
func TestProblems_Gone(t *testing.T) {
	t.Parallel()
	dead := admin.RelayReport{Owner: "a/1/orders", SeenSeconds: 30, UptimeSeconds: 100}
	runs := admin.RelayReport{Owner: "b/2/orders", Running: true, SeenSeconds: 2, UptimeSeconds: 200}
	s := New(Config{Source: &oneSource{health: healthy{}}, Process: "c/3"})
	for name, c := range map[string]struct {
		relays []admin.RelayReport
		want   string
	}{
		"gone":       {[]admin.RelayReport{dead, runs}, "a relay is gone: relay a/1, which reported last 30s ago"},
		"of sinks":   {[]admin.RelayReport{dead, {Owner: "a/1/orders", Sink: "crm", SeenSeconds: 32, UptimeSeconds: 100}, runs}, "a relay is gone: relay a/1, which reported last 30s ago"},
		"none runs":  {[]admin.RelayReport{dead}, ""},
		"replaced":   {[]admin.RelayReport{dead, runs, {Owner: "d/4/orders", Running: true, SeenSeconds: 1, UptimeSeconds: 20}}, ""},
		"stopped":    {[]admin.RelayReport{{Owner: "a/1/orders", Stopped: true, SeenSeconds: 30}, runs}, ""},
		"long ago":   {[]admin.RelayReport{{Owner: "a/1/orders", SeenSeconds: 3700}, runs}, ""},
		"it is here": {[]admin.RelayReport{{Owner: "c/3/orders", SeenSeconds: 30}, runs}, ""},
		"one of two": {[]admin.RelayReport{dead, {Owner: "e/5/orders", SeenSeconds: 40, UptimeSeconds: 9}, {Owner: "d/4/orders", Running: true, UptimeSeconds: 20}}, "a relay is gone: relay e/5, which reported last 40s ago"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := problems(s, &admin.Report{Pipelines: []admin.PipelineReport{{Name: "orders", State: "idle", Relays: c.relays}}})
			got := ""
			for i := range all {
				says, _, _ := strings.Cut(all[i].Detail, ", did not stop in order")
				got += all[i].Title + ": " + says
			}
			testkit.Equal(t, "problem", got, c.want)
		})
	}
}

// TestProblems_LockElsewhere: a lock that another relay reported is over once this one has looked since. Before that it is named without what ends it, which may be of a
// transaction that is over.
func TestProblems_LockElsewhere(t *testing.T) {
	t.Parallel()
	report := admin.Report{Pipelines: []admin.PipelineReport{{Name: "orders", State: "idle", Relays: []admin.RelayReport{{
		Owner: "other/2/orders", Running: true, SeenSeconds: 9, NotReady: "table public.orders is locked: statements wait for pid 7. > SELECT pg_terminate_backend(7)",
		NotReadyClass: buffer.NotReadyDatabase, NotReadyKind: buffer.KindLocked,
	}}}}}
	s := New(Config{Source: &oneSource{health: healthy{}, report: report}, Process: "host/1"})
	all := problems(s, &report)
	testkit.Equal(t, "problems while this relay does not look", len(all), 1)
	if one := all[0]; strings.Contains(one.Detail, "pg_terminate_backend") || strings.HasSuffix(one.Do, ":") || !strings.Contains(one.Detail, "pid 7") || one.Link != "doctor" {
		t.Errorf("the problem is %+v", one)
	}
	report.Pipelines[0].LocksSeenAt = time.Now().Add(-time.Minute)
	testkit.Equal(t, "problems after an older look", len(problems(s, &report)), 1)
	report.Pipelines[0].LocksSeenAt = time.Now().Add(-time.Second)
	testkit.Equal(t, "problems after a later look", len(problems(s, &report)), 0)
}

// TestProblems_WriterWaits: a transaction that holds locks in the table of one pipeline, and waits for the lock of another one's table, does not make that a lock of its own table.
// The card of the locked table is the only one, if it is on the page.
func TestProblems_WriterWaits(t *testing.T) {
	t.Parallel()
	holder := buffer.VacuumBlocker{
		Kind: buffer.BlockedByTransaction, PID: 7, Age: time.Minute, Locks: []string{"public.emails"}, NoInserts: []string{"public.emails"}, Waiting: 1, Fix: "SELECT pg_terminate_backend(7)",
	}
	orders, emails := admin.PipelineReport{Name: "orders", State: "idle"}, admin.PipelineReport{Name: "emails", State: "idle"}
	orders.VacuumBlockedBy = admin.NewBlockerReport(holder)
	orders.SetLocker(holder, false)
	emails.SetTableLocker(&buffer.LockedError{Table: "public.emails", Holder: &holder, Text: "table public.emails is locked", Fix: holder.Fix})
	cards := func(report admin.Report) string {
		s := New(Config{Source: &namedSource{report: report}, Process: "host/1"})
		d := s.overviewOf(&report, problems(s, &report))
		var all []string
		for i := range d.Problems {
			all = append(all, d.Problems[i].Named()+": "+d.Problems[i].Title)
		}
		return strings.Join(append(all, d.Rows[0].State), "\n")
	}
	testkit.Equal(t, "page of orders", cards(admin.Report{Pipelines: []admin.PipelineReport{orders}}), "orders: a writer waits for another transaction\nidle, a writer waits")
	testkit.Equal(t, "overview", cards(admin.Report{Pipelines: []admin.PipelineReport{orders, emails}}), "emails: a transaction locks its table\nidle, a writer waits")
	oldest := 70.0
	orders.Pending, orders.OldestPendingSeconds = 3, &oldest
	testkit.Equal(t, "page of orders while its events wait", cards(admin.Report{Pipelines: []admin.PipelineReport{orders}}), "orders: a transaction blocks events: what holds locks in their table waits for it\nidle, rows locked")
}

// namedSource is a source of the pipelines of a report.
type namedSource struct{ report admin.Report }

func (s *namedSource) Report(context.Context, ...string) admin.Report { return s.report }
func (s *namedSource) Changed(string)                                 {}
func (s *namedSource) Pipelines() (all []admin.Pipeline) {
	for i := range s.report.Pipelines {
		all = append(all, admin.Pipeline{Name: s.report.Pipelines[i].Name, Health: healthy{}})
	}
	return all
}

// TestObserve_Transaction: the same problem of another transaction is a new one, however soon it comes; what is not known of a transaction makes no other one of it.
func TestObserve_Transaction(t *testing.T) {
	t.Parallel()
	began := time.Now()
	l := newLive()
	at := began
	look := func(of transaction) time.Time {
		t.Helper()
		all := []problem{{Pipeline: "orders", Title: titleLocked, Cause: causeLock, Of: of}}
		at = at.Add(time.Second)
		l.setSince(at, all)
		before := all[0].Since
		l.observe(at, all)
		l.setSince(at, all)
		testkit.Equal(t, "since, before and after the sampler saw it", before, all[0].Since)
		return all[0].Since
	}
	first := look(transaction{pid: 7, began: began})
	testkit.Equal(t, "the same one", look(transaction{pid: 7, began: began}), first)
	testkit.Equal(t, "the same one, as far as is known", look(transaction{pid: 7}), first)
	testkit.Equal(t, "nobody says which", look(transaction{}), first)
	second := look(transaction{pid: 7, began: began.Add(time.Second)})
	testkit.Equal(t, "the next one of its session", second, at)
	testkit.Equal(t, "the next one again", look(transaction{pid: 7, began: began.Add(time.Second)}), second)
	testkit.Equal(t, "another session", look(transaction{pid: 8}), at)
}
