package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/audit"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// confirmData is what is about to be done.
type confirmData struct {
	Filter  deadFilter
	Action  admin.Action
	Changed []admin.Changed // what would be done, by pipeline
	Until   []string        // PIPELINE TIME: when the newest that is counted died
	Total   int64
	Back    string
	// List is the list that the user came from, and goes back to.
	List deadFilter
}

// Unnotified is how many wait until a hook was notified of them.
func (d *confirmData) Unnotified() (n int64) {
	for i := range d.Changed {
		n += d.Changed[i].Unnotified
	}
	return n
}

// deadChange replays or discards the dead letters that a form selects: first it asks, with the counts, then it does it. A form without a
// pipeline selects those of all pipelines.
func (s *Console) deadChange(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
	if err := r.ParseForm(); err != nil {
		s.fail(w, r, http.StatusBadRequest, err)
		return
	}
	act := admin.Action(r.PostForm.Get("action"))
	if act != admin.Replay && act != admin.Discard {
		s.fail(w, r, http.StatusBadRequest, fmt.Errorf("action is %q; expected replay or discard", act))
		return
	}
	d := confirmData{Filter: filterOf(r.PostForm), Action: act}
	d.List = deadFilter{Pipeline: d.Filter.Pipeline, Sink: d.Filter.Sink}
	if list, err := url.ParseQuery(r.PostForm.Get("list")); err == nil && r.PostForm.Has("list") {
		d.List = filterOf(list)
	}
	if chosen := r.PostForm["chosen"]; len(chosen) > 0 { // PIPELINE ID, of a list
		pipeline, ids, err := chosenOf(chosen)
		if err != nil {
			s.fail(w, r, http.StatusBadRequest, err)
			return
		}
		d.Filter = deadFilter{Pipeline: pipeline, ID: strings.Join(ids, ","), Sink: d.Filter.Sink}
	} else if r.PostForm.Get("some") != "" {
		s.fail(w, r, http.StatusBadRequest, fmt.Errorf("nothing is selected; select dead letters in the list, or choose all that match"))
		return
	}
	d.Filter.Closed = false
	d.Back = "../dead?" + d.List.Query()
	q, selected, ok := s.selection(w, r, d.Filter)
	if !ok {
		return
	}
	confirmed := r.PostForm.Get("confirmed") != ""
	q.ClosedBy = admin.ClosedBy(r, "console")
	var err error
	if q.ClosedReason, err = admin.ParseReason(r.PostForm.Get("reason")); err != nil {
		s.fail(w, r, http.StatusBadRequest, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), deadTimeout)
	defer cancel()
	var until map[string]time.Time
	if until, err = untilOf(r.PostForm["until"]); err != nil {
		s.fail(w, r, http.StatusBadRequest, err)
		return
	}
	for _, p := range selected {
		q := q
		if !confirmed {
			at, err := p.NewestDied(ctx, q)
			if err != nil {
				s.fail(w, r, http.StatusServiceUnavailable, fmt.Errorf("pipeline %s: %w", p.Name, err))
				return
			}
			if at.IsZero() {
				continue
			}
			d.Until = append(d.Until, p.Name+" "+at.UTC().Format(time.RFC3339Nano))
			q = admin.DiedUntil(q, at)
		} else if until != nil { // otherwise nobody was asked
			at, counted := until[p.Name]
			if !counted {
				continue
			}
			q = admin.DiedUntil(q, at)
		}
		changed, err := p.Change(ctx, act, q, !confirmed, nil)
		changed.Pipeline = p.Name
		changed.CleanReasons(s.config.Redact, s.config.HidePayloads)
		if confirmed {
			s.changed(p.Name)
		}
		if confirmed && (changed.Changed > 0 || d.Filter.Pipeline != "") {
			s.config.Audit.Add(ctx, audit.Entry{
				Who: q.ClosedBy, Action: string(act), Pipeline: p.Name, Count: changed.Changed, Detail: d.Filter.String(), Reason: q.ClosedReason,
			})
		}
		if err != nil {
			s.fail(w, r, http.StatusServiceUnavailable, fmt.Errorf("pipeline %s: %s changed %d dead letters, then failed; repeat it to continue: %w", p.Name, act, changed.Changed, err))
			return
		}
		d.Total += changed.Changed
		if changed.Changed+changed.Unnotified+changed.Skipped > 0 || len(changed.Dropped) > 0 {
			d.Changed = append(d.Changed, changed)
		}
	}
	if !confirmed {
		s.render(w, r, http.StatusOK, "dead_confirm", "dead", "Are you sure?", &d)
		return
	}
	redirect(w, "../dead?"+d.List.Query()+"&"+s.flashes.put(cmp.Or(s.closedText(ctx, act, selected, &d), doneText(act, &d)), d.Total == 0))
}

// untilOf reads the times of a confirmed form, by pipeline: what died later was not in the counts that somebody confirmed. It is nil without any.
func untilOf(all []string) (until map[string]time.Time, err error) {
	for _, one := range all {
		name, text, _ := strings.Cut(one, " ")
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return nil, fmt.Errorf("until is %q; expected PIPELINE TIME", one)
		}
		if until == nil {
			until = map[string]time.Time{}
		}
		until[name] = at
	}
	return until, nil
}

// doneText says what was done.
func doneText(act admin.Action, d *confirmData) string {
	verb := map[admin.Action]string{admin.Replay: "replayed", admin.Discard: "discarded"}[act]
	text := fmt.Sprintf("%s %s.", admin.Count(d.Total), verb)
	var (
		skipped, closed, refused, unnotified int64
		refusals                             []admin.Refusal
	)
	for _, c := range d.Changed {
		skipped, closed, refused, unnotified = skipped+c.Skipped, closed+c.ClosedMeanwhile, refused+c.Refused, unnotified+c.Unnotified
		refusals = append(refusals, c.Refusals...)
	}
	if d.Total == 0 && closed == 0 && skipped == 0 && unnotified == 0 {
		return "Nothing was " + verb + ": somebody else closed them meanwhile, or none matches."
	}
	if closed > 0 {
		text += fmt.Sprintf(" %s had been closed by somebody else meanwhile.", admin.Count(closed))
	}
	if skipped > closed+refused {
		text += fmt.Sprintf(" %s were skipped: their id is in the buffer again, or another dead letter of the event was replayed.", admin.Count(skipped-closed-refused))
	}
	if refused > 0 {
		text += fmt.Sprintf(" The table refuses the rows of %s%s.", admin.Count(refused), refusedBecause(refusals))
	}
	if unnotified > 0 {
		text += fmt.Sprintf(" %s wait until the dead-letter hook was notified of them.", admin.Count(unnotified))
	}
	return text
}

// closedText says who closed the dead letter that somebody wanted to change; "" if it is not only that one, or nobody did.
func (s *Console) closedText(ctx context.Context, act admin.Action, selected []admin.Pipeline, d *confirmData) string {
	if d.Total > 0 || len(d.Changed) > 0 || len(selected) != 1 || d.Filter.ID == "" || strings.Contains(d.Filter.ID, ",") {
		return ""
	}
	closed := lastClosed(ctx, selected[0], d.Filter.ID, d.Filter.Sink)
	if closed == "" {
		return ""
	}
	return fmt.Sprintf("Nothing was %s: %s", map[admin.Action]string{admin.Replay: "replayed", admin.Discard: "discarded"}[act], closed)
}

// lastClosed says who closed the dead letter of an event, or of one of several sinks, last; "" if that is not known.
func lastClosed(ctx context.Context, p admin.Pipeline, id, sink string) (text string) {
	q, err := deadFilter{ID: id, Sink: sink, Closed: true}.parse()
	if err != nil {
		return ""
	}
	var at time.Time
	err = p.Each(ctx, q, func(e *buffer.DeadEvent) (bool, error) {
		if e.ClosedAs != "" && !e.ClosedAt.Before(at) {
			at = e.ClosedAt
			text = fmt.Sprintf("event %s was %s", e.Identity(), e.ClosedAs)
			if e.ClosedBy != "" {
				text += " by " + visible([]byte(e.ClosedBy))
			}
			text += " at " + e.ClosedAt.UTC().Format("2006-01-02 15:04:05") + " UTC."
		}
		return true, nil
	})
	if err != nil {
		return "" // who closed it is not known
	}
	return text
}

// refusedBecause says why rows are refused, behind a colon; "" if that is hidden.
func refusedBecause(all []admin.Refusal) string {
	if text := admin.RefusalsText(all); text != "" {
		return ": " + visible([]byte(text))
	}
	return ""
}

// chosenOf splits what was selected in a list, which must be of one pipeline.
func chosenOf(chosen []string) (pipeline string, ids []string, err error) {
	for _, one := range chosen {
		name, id, _ := strings.Cut(one, " ")
		if name == "" || id == "" {
			return "", nil, fmt.Errorf("chosen is %q; expected PIPELINE ID", one)
		}
		if pipeline != "" && name != pipeline {
			return "", nil, fmt.Errorf("the selection has dead letters of %s and %s; expected those of one pipeline: filter the list by pipeline", pipeline, name)
		}
		pipeline, ids = name, append(ids, id)
	}
	return pipeline, ids, nil
}
