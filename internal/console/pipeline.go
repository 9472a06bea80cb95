package console

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/audit"
)

// pipelineData is what the page of a pipeline shows.
type pipelineData struct {
	Name     string
	Report   *admin.PipelineReport // nil: it cannot be read
	Error    string
	Problems []problem
	Rows     []row
	Sinks    []string // with a history of their own; "" is the pipeline's
	Waiting  int64    // batches
	Waits    []waitGroup
	Pauses   []pauseTarget
	Done     flash // what was done just now
}

func (s *Console) pipeline(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if _, err := s.selected(name); err != nil {
		s.fail(w, r, http.StatusNotFound, err)
		return
	}
	report := s.config.Source.Report(r.Context(), name)
	d := pipelineData{Name: name, Sinks: []string{""}, Done: s.flashes.take(r)}
	all := s.overviewOf(&report, problems(s, &report))
	for _, one := range all.each {
		if one.Pipeline == name {
			d.Problems = append(d.Problems, one)
		}
	}
	for _, one := range all.Rows {
		if one.Pipeline == name {
			d.Rows = append(d.Rows, one)
		}
	}
	for i := range report.Pipelines {
		if report.Pipelines[i].Name == name {
			d.Report = &report.Pipelines[i]
			d.Waiting, d.Waits = d.Report.Batches.Waiting, waitGroups(d.Report)
			d.Pauses = pauseTargets(d.Report)
			for _, sink := range d.Report.Sinks {
				d.Sinks = append(d.Sinks, sink.Name)
			}
		}
	}
	for _, e := range report.Errors {
		if e.Name == name {
			d.Error = e.Error
		}
	}
	s.render(w, r, http.StatusOK, "pipeline", "overview", name, &d)
}

// retryTimeout bounds how long a database may take to make batches due.
const retryTimeout = 10 * time.Second

// retryNow makes what waits due: first it asks, then it does it.
func (s *Console) retryNow(w http.ResponseWriter, r *http.Request) {
	selected, err := s.selected(r.PathValue("name"))
	if err != nil {
		s.fail(w, r, http.StatusNotFound, err)
		return
	}
	p := selected[0]
	r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
	if r.PostFormValue("confirmed") == "" {
		s.render(w, r, http.StatusOK, "retry_confirm", "overview", "Are you sure?", p.Name)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), retryTimeout)
	defer cancel()
	retried, err := p.RetryNow(ctx)
	s.changed(p.Name)
	s.config.Audit.Add(ctx, audit.Entry{Who: admin.ClosedBy(r, "console"), Action: "retry now", Pipeline: p.Name, Count: int64(retried.Due)})
	if err != nil {
		s.fail(w, r, http.StatusServiceUnavailable, err)
		return
	}
	text := retried.Text()
	redirect(w, "../"+url.PathEscape(p.Name)+"?"+s.flashes.put(strings.ToUpper(text[:1])+text[1:]+".", retried.Due == 0))
}

// number is null in JSON if it is unknown.
type number float32

// MarshalJSON implements json.Marshaler.
func (n number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) {
		return []byte("null"), nil
	}
	return fmt.Appendf(nil, "%.4g", n), nil
}

// pipelineHistory serves the points of a chart: ?sink= and ?span=hour|day.
func (s *Console) pipelineHistory(w http.ResponseWriter, r *http.Request) {
	key := seriesKey{r.PathValue("name"), r.URL.Query().Get("sink")}
	from, step, points := s.history.read(key, r.URL.Query().Get("span") == "day", time.Now())
	answer := struct {
		From      int64    `json:"from"` // seconds since 1970, of the first point
		Step      int64    `json:"step"` // seconds
		PerSecond []number `json:"per_second"`
		Pending   []number `json:"pending"`
		Oldest    []number `json:"oldest"`
		P50       []number `json:"p50"`
		P99       []number `json:"p99"`
		Dead      []number `json:"dead"`
	}{From: from.Unix(), Step: int64(step / time.Second)}
	for _, p := range points {
		answer.PerSecond, answer.Pending, answer.Oldest = append(answer.PerSecond, number(p.PerSecond)), append(answer.Pending, number(p.Pending)), append(answer.Oldest, number(p.Oldest))
		answer.P50, answer.P99, answer.Dead = append(answer.P50, number(p.P50)), append(answer.P99, number(p.P99)), append(answer.Dead, number(p.Dead))
	}
	text, err := json.Marshal(answer)
	if err != nil { // cannot happen
		s.fail(w, r, http.StatusInternalServerError, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if _, err := w.Write(text); err != nil {
		s.config.Log.Debug("writing a response failed", "error", err)
	}
}
