package console

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// row is a line of the overview: a pipeline, or one of its several sinks.
type row struct {
	ID                  string // of its element
	Pipeline, Sink      string
	Link                string
	State               string
	Class               string // of the state: good, bad, or "" for idle
	Error               string // why its figures are unknown
	Unrouted            bool   // it is of events that have no sink yet
	Reading             bool   // they are, because they are being read
	Pending             int64
	Oldest              string
	PerSecond, P50, P99 string
	Dead                int64
	DeadLink            string
	Chart               template.HTML
	IsSink              bool
}

// renderedRow is a row and its HTML.
type renderedRow struct {
	row  row
	html string
}

// overviewData is what the overview shows.
type overviewData struct {
	Headline string
	Good     bool
	// Attention: a pipeline stands still, or many of its events die.
	Attention bool
	Problems  []problem // grouped
	Rows      []row
	Relays    []relayRow
	Unknown   bool // the database does not answer: Relays are those that reported before
	NoTables  bool // it answers, and has no tables
	// TableLocked: it answers, and a transaction keeps a table of it from being read.
	TableLocked bool
	At          time.Time
	Doctor      *doctorNote // what doctor found that is not fine; nil: nothing, or it was not asked
	Reading     int         // pipelines that are being read
	Starting    int         // pipelines that reach their database or sink for the first time
	each        []problem   // not grouped
}

// relayRow is a process that works on some pipelines.
type relayRow struct {
	Process   string
	Version   string
	This      bool
	Running   bool
	Stopped   bool // in order
	Unknown   bool // whether it runs
	Gone      bool // it neither runs nor stopped in order
	Seen      float64
	Pipelines []string
	NotReady  string
}

// maxProblems is how many problems the overview shows.
const maxProblems = 30

// overviewOf puts together what the overview shows; all are the problems of the report.
func (s *Console) overviewOf(report *admin.Report, all []problem) overviewData {
	now := time.Now()
	d := overviewData{At: now, Problems: all, Relays: s.relayRows(report)}
	has := func(title string) bool {
		return slices.ContainsFunc(all, func(p problem) bool { return p.Title == title })
	}
	d.Relays, d.Unknown = s.knownRelays(report, d.Relays, now)
	d.NoTables = d.Unknown && (has(titleNoTables) || has(titleNoSchema)) && !has(kindProblem["database"].title)
	d.TableLocked = d.Unknown && has(titleLocked) && !has(kindProblem["database"].title)
	s.live.setSince(now, d.Problems)
	bad := map[string]string{}     // the title
	attention := map[string]bool{} // pipelines that need it
	for i := range d.Problems {
		p := &d.Problems[i]
		if !p.Warning {
			bad[p.Pipeline], bad[p.Pipeline+"/"+p.Sink] = p.Title, p.Title
		}
		if !p.Warning || p.Deadly {
			attention[p.Pipeline] = true
		}
	}
	s.addRows(&d, report, bad, now)
	total := len(report.Pipelines) + len(report.Errors) + d.Reading
	switch {
	case len(attention) > 0:
		d.Attention = true
		d.Headline = fmt.Sprintf("%d of %d %s.", len(attention), total, map[bool]string{true: "pipelines need attention", false: "pipelines needs attention"}[len(attention) > 1])
		if total == 1 {
			d.Headline = "The pipeline needs attention."
		}
		d.Headline = strings.TrimSpace(d.Headline + " " + s.deathsText(report, d.Problems))
	case d.Reading > 0:
		d.Headline = fmt.Sprintf("Reading the status of %d %s …", d.Reading, map[bool]string{true: "pipelines", false: "pipeline"}[d.Reading > 1])
	case d.Starting > 0:
		d.Headline = fmt.Sprintf("%d of %d %s.", d.Starting, total, map[bool]string{true: "pipelines start", false: "pipelines starts"}[d.Starting > 1])
		if total == 1 {
			d.Headline = "The pipeline starts."
		}
	case len(d.Problems) > 0:
		d.Headline = cmp.Or(pausedText(d.Problems, total), "Everything moves, with warnings.")
	default:
		d.Headline, d.Good = "Everything works.", true
	}
	if note := s.doctor.note.Load(); note != nil && !note.Good && len(attention) == 0 {
		d.Doctor, d.Good = note, false
		if note.Errors && len(d.Problems) == 0 && d.Reading+d.Starting == 0 { // what it found may be over; it looks again within a minute
			d.Headline = "Everything moves. Doctor found problems before."
		}
	}
	d.each = d.Problems
	d.Problems = grouped(d.Problems)
	if len(d.Problems) > maxProblems {
		d.Problems = d.Problems[:maxProblems]
	}
	return d
}

// deathsText says of which pipeline, or sink, the largest share becomes dead letters; "" of none.
func (s *Console) deathsText(report *admin.Report, all []problem) string {
	sinks := make(map[string][]admin.SinkReport, len(report.Pipelines))
	for i := range report.Pipelines {
		sinks[report.Pipelines[i].Name] = report.Pipelines[i].Sinks
	}
	var (
		worst tally
		name  string
		more  int
	)
	for i := range all {
		p := &all[i]
		if p.Key != keyDead {
			continue
		}
		for _, of := range s.history.deathsAt(p.Pipeline, sinks[p.Pipeline]) {
			if !of.many() {
				continue
			}
			if name != "" {
				more++
			}
			if name == "" || of.share() > worst.share() {
				worst, name = of.tally, of.name(p.Pipeline)
			}
		}
	}
	switch {
	case name == "":
		return ""
	case more > 0:
		return fmt.Sprintf("In the last minute, %s of %s became dead letters, and some of %d more.", worst.percent(), name, more)
	}
	return fmt.Sprintf("In the last minute, %s of %s became dead letters.", worst.percent(), name)
}

// pausedText says how many of all pipelines are paused, or else how many sinks; "" if none is.
func pausedText(all []problem, total int) string {
	pipelines, sinks := 0, 0
	for i := range all {
		switch p := &all[i]; {
		case p.Title != titlePaused:
		case p.Sink == "":
			pipelines++
		default:
			sinks++
		}
	}
	is := func(n int) string { return map[bool]string{true: "is", false: "are"}[n == 1] }
	switch {
	case pipelines > 0 && total == 1:
		return "The pipeline is paused."
	case pipelines > 0:
		return fmt.Sprintf("%d of %d pipelines %s paused.", pipelines, total, is(pipelines))
	case sinks > 0:
		return fmt.Sprintf("%d %s %s paused.", sinks, map[bool]string{true: "sink", false: "sinks"}[sinks == 1], is(sinks))
	}
	return ""
}

// addRows adds the rows of all pipelines, in their order. Those of this process that the report lacks are being read.
func (s *Console) addRows(d *overviewData, report *admin.Report, bad map[string]string, now time.Time) {
	of := make(map[string][]row, len(report.Pipelines)+len(report.Errors))
	var order []string
	reading := map[string][]row{}
	starting := map[string]bool{}
	for _, p := range s.config.Source.Pipelines() {
		starting[p.Name] = slices.ContainsFunc(p.NotReady(), func(n admin.NotReadyReason) bool { return n.Kind == buffer.KindStarting })
		order = append(order, p.Name)
		of[p.Name] = nil
		reading[p.Name] = []row{{ID: "row-" + p.Name, Pipeline: p.Name, Link: pipelineLink(p.Name), Reading: true}}
		for _, sink := range p.Sinks {
			reading[p.Name] = append(reading[p.Name], row{ID: "row-" + p.Name + "/" + sink.Name, Pipeline: p.Name, Sink: sink.Name, Reading: true, IsSink: true})
		}
	}
	add := func(name string, rows []row) {
		if _, known := of[name]; !known {
			order = append(order, name)
		}
		of[name] = rows
	}
	for i := range report.Pipelines {
		p := &report.Pipelines[i]
		rows := s.rowsOf(p, bad, now)
		if starting[p.Name] && bad[p.Name] == "" {
			d.Starting++
			for k := range rows {
				rows[k].State, rows[k].Class = "starting", ""
			}
		}
		switch {
		case p.TableLockedBy != nil && !strings.HasPrefix(rows[0].State, tableLocked):
			rows[0].State, rows[0].Class = rows[0].State+", "+tableLocked, "bad"
		case p.LockedBy == nil && p.LockKeepsEvents():
			rows[0].State, rows[0].Class = rows[0].State+", rows locked", "bad"
		case p.RowsLockedBy != nil && p.RowsLockedBy.WritersWait && rows[0].Class != "bad": // nobody else says why it is idle
			rows[0].State, rows[0].Class = rows[0].State+", a writer waits", "warn"
		}
		add(p.Name, rows)
	}
	for _, e := range report.Errors {
		if starting[e.Name] && bad[e.Name] == "" {
			continue // as if it were being read
		}
		one := row{ID: "row-" + e.Name, Pipeline: e.Name, Link: pipelineLink(e.Name), State: "unknown", Class: "bad", Error: "its database does not work: see above"}
		switch bad[e.Name] {
		case titleNoTables:
			one.Error = "its tables are missing: see above"
		case titleNoSchema:
			one.Error = "its schema is missing: see above"
		case titleLocked:
			one.State, one.Error = tableLocked, "a transaction locks its table: see above"
		}
		add(e.Name, []row{one})
	}
	for _, name := range order {
		rows := of[name]
		if rows == nil {
			d.Reading++
			rows = reading[name]
		}
		d.Rows = append(d.Rows, rows...)
	}
}

// downStates are how the states of a sink begin while none of its relays is ready; see package admin.
var downStates = []string{"sink down", "sink full", "no access", "refusing", "db error", tableLocked, "stalled"}

// tableLocked is the state of a pipeline whose table a transaction has locked as a whole.
const tableLocked = "table locked"

// rowsOf are the rows of a pipeline. bad has the titles of the problems of pipelines and sinks that stand still.
func (s *Console) rowsOf(p *admin.PipelineReport, bad map[string]string, now time.Time) []row {
	state := func(text, key string) (string, string) {
		switch {
		case bad[key] != "":
			return text, "bad"
		case text == "sending":
			return "moving", "good"
		case text == "no relay", strings.HasPrefix(text, "retries"), strings.HasPrefix(text, "paused"), strings.HasPrefix(text, "stands still"), text == "trying sink":
			return text, "warn"
		case slices.ContainsFunc(downStates, func(down string) bool { return strings.HasPrefix(text, down) }):
			return text, "bad"
		}
		return text, ""
	}
	one := row{
		ID: "row-" + p.Name, Pipeline: p.Name, Link: pipelineLink(p.Name), Pending: p.Pending, Oldest: admin.Oldest(p.Pending, p.OldestPendingSeconds, "–"),
		Dead: p.Dead, DeadLink: deadLink(p.Name, ""),
	}
	one.State, one.Class = state(p.State, p.Name+"/")
	s.addFigures(&one, seriesKey{pipeline: p.Name}, now)
	rows := []row{one}
	for i := range p.Sinks {
		of := &p.Sinks[i]
		one := row{
			ID: "row-" + p.Name + "/" + of.Name, Pipeline: p.Name, Sink: of.Name, Link: pipelineLink(p.Name), Pending: of.Pending, Oldest: admin.Oldest(of.Pending, of.OldestPendingSeconds, "–"),
			Dead: of.Dead, DeadLink: deadLink(p.Name, of.Name), IsSink: true, Unrouted: of.Name == buffer.Unrouted,
		}
		one.State, one.Class = state(of.State, p.Name+"/"+of.Name)
		s.addFigures(&one, seriesKey{p.Name, of.Name}, now)
		rows = append(rows, one)
	}
	if p.State == "" {
		rows[0].State, rows[0].Class = sinksState(rows[1:])
	}
	for _, of := range s.history.deathsAt(p.Name, p.Sinks) { // of several sinks, the pipeline has the share of the worst
		for i := range rows {
			if of.many() && rows[i].Class != "bad" && (rows[i].Sink == of.sink || rows[i].Sink == "") {
				at := ""
				if rows[i].Sink != of.sink {
					at = " at " + of.sink
				}
				rows[i].State, rows[i].Class = rows[i].State+", "+of.percent()+" died"+at, "bad"
			}
		}
	}
	return rows
}

// sinksState is the state of a pipeline of several sinks: that of the sink that is worst off.
func sinksState(sinks []row) (text, class string) {
	rank := func(r *row) int {
		return map[string]int{"bad": 3, "warn": 2, "good": 1}[r.Class]
	}
	var worst *row
	same, total := 0, 0 // how many are as bad; of how many, without what has no sink yet
	for i := range sinks {
		if !sinks[i].Unrouted {
			total++
		}
	}
	for i := range sinks {
		switch one := &sinks[i]; {
		case one.Unrouted && worst != nil && rank(one) == rank(worst):
		case worst != nil && worst.Unrouted && rank(one) == rank(worst):
			worst = one
		case worst == nil || rank(one) > rank(worst):
			worst, same = one, 1
		case rank(one) == rank(worst):
			same++
		}
	}
	switch {
	case worst == nil:
		return "", ""
	case worst.Class == "good" || worst.Class == "" && !worst.Unrouted && same == total:
		return worst.State, worst.Class
	case same > 1:
		return fmt.Sprintf("%d of %d sinks %s", same, total, map[bool]string{true: "stand still", false: "wait"}[worst.Class == "bad"]), worst.Class
	case worst.Unrouted:
		return worst.State, worst.Class
	}
	return worst.Sink + ": " + worst.State, worst.Class
}

// addFigures adds what the history knows.
func (s *Console) addFigures(r *row, key seriesKey, now time.Time) {
	r.PerSecond, r.P50, r.P99 = "–", "–", "–"
	if p, ok := s.history.now(key); ok {
		if !math.IsNaN(float64(p.PerSecond)) {
			r.PerSecond = rateText(float64(p.PerSecond))
		}
		r.P50, r.P99 = latencyText(p.P50), latencyText(p.P99)
	}
	r.Chart = s.history.sparkline(key, now)
}

func latencyText(seconds float32) string {
	if math.IsNaN(float64(seconds)) {
		return "–"
	}
	return admin.Age(time.Duration(float64(seconds) * float64(time.Second)))
}

// sparkPoints is how many points a sparkline has: each is the maximum of several of the history.
const sparkPoints = 60

// sparkline draws values as a line of SVG, 120 by 24. Unknown values leave a gap.
func sparkline(values []float32) template.HTML {
	var (
		points [sparkPoints]float32
		top    float32
		known  bool
	)
	for i := range points {
		points[i] = float32(math.NaN())
		for _, v := range values[i*len(values)/sparkPoints : (i+1)*len(values)/sparkPoints] {
			if !math.IsNaN(float64(v)) && (math.IsNaN(float64(points[i])) || v > points[i]) {
				points[i], known = v, true
			}
		}
		top = max(top, points[i])
		if math.IsNaN(float64(top)) {
			top = 0
			for _, p := range points[:i+1] {
				if p > top {
					top = p
				}
			}
		}
	}
	var path strings.Builder
	down := false
	for i, v := range points {
		if math.IsNaN(float64(v)) {
			down = false
			continue
		}
		y := 22.0
		if top > 0 {
			y = 22 - 20*float64(v/top)
		}
		command := "L"
		if !down {
			command, down = "M", true
		}
		fmt.Fprintf(&path, "%s%d %.0f", command, i*2, y)
	}
	if !known {
		return ""
	}
	return template.HTML(`<svg viewBox="0 0 120 24" aria-hidden="true"><path d="` + path.String() + `"/></svg>`) //nolint:gosec // numbers only
}

// relayRows are the processes that work on the pipelines, those that run first, and in an order that stays; a process once.
func (s *Console) relayRows(report *admin.Report) []relayRow {
	var (
		rows []relayRow
		at   = map[string]int{}
	)
	for i := range report.Pipelines {
		p := &report.Pipelines[i]
		for _, r := range p.Relays {
			name := process(r.Owner)
			k, known := at[name]
			if !known {
				k = len(rows)
				at[name] = k
				rows = append(rows, relayRow{Process: name, Version: r.Version, This: name == s.config.Process, Seen: r.SeenSeconds})
			}
			one := &rows[k]
			one.Running = one.Running || r.Running || one.This // it serves this page, whatever it could report
			one.Stopped = one.Stopped || r.Stopped
			one.Seen = min(one.Seen, r.SeenSeconds)
			if len(one.Pipelines) == 0 || one.Pipelines[len(one.Pipelines)-1] != p.Name {
				one.Pipelines = append(one.Pipelines, p.Name)
			}
			if r.Running && one.NotReady == "" {
				one.NotReady = r.NotReady
			}
		}
	}
	for i := range rows {
		rows[i].Gone = !rows[i].Running && !rows[i].Stopped
	}
	slices.SortFunc(rows, func(a, b relayRow) int {
		return cmp.Or(first(a.Running, b.Running), first(a.This, b.This), cmp.Compare(a.Process, b.Process))
	})
	return rows
}

// first sorts true before false.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// lastRelays are the processes that reported last.
type lastRelays struct {
	mu   sync.Mutex
	rows []relayRow
	at   time.Time
}

// knownRelays are those of a report, or those that reported before if it says of no pipeline which ones there are. unknown reports the latter.
func (s *Console) knownRelays(report *admin.Report, rows []relayRow, now time.Time) (known []relayRow, unknown bool) {
	l := &s.lastRelays
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(rows) > 0 || len(report.Errors) == 0 {
		if len(rows) > 0 {
			l.rows, l.at = rows, now
		}
		return rows, false
	}
	known = slices.Clone(l.rows)
	for i := range known {
		if known[i].Seen += now.Sub(l.at).Seconds(); !known[i].This {
			known[i].NotReady, known[i].Running, known[i].Gone, known[i].Unknown = "", false, false, true
		}
	}
	return known, true
}

// overview serves the first page.
func (s *Console) overview(w http.ResponseWriter, r *http.Request) {
	report, at := s.report(r.Context())
	d := s.overviewOf(report, problems(s, report))
	d.At = at
	s.render(w, r, http.StatusOK, "overview", "overview", "Overview", d)
}

// overviewParts renders the elements of the overview that change, by id. Only Run calls it.
func (s *Console) overviewParts(ctx context.Context, report *admin.Report, all []problem) map[string]string {
	d := s.overviewOf(report, all)
	parts := map[string]string{}
	t := layouts["overview"]
	add := func(id, name string, data any) {
		var b bytes.Buffer
		if err := t.ExecuteTemplate(&b, name, data); err != nil {
			s.config.Log.ErrorContext(ctx, "rendering a part of the overview failed", "part", name, "error", err)
			return
		}
		parts[id] = b.String()
	}
	add("problems", "problems", &d)
	add("relays", "relays", &d)
	rendered := make(map[string]renderedRow, len(d.Rows))
	for i := range d.Rows {
		r := &d.Rows[i]
		if before, ok := s.rendered[r.ID]; ok && before.row == *r {
			parts[r.ID] = before.html
		} else {
			add(r.ID, "row", r)
		}
		rendered[r.ID] = renderedRow{*r, parts[r.ID]}
	}
	s.rendered = rendered
	return parts
}
