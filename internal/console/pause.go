package console

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/audit"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// pauseTimeout bounds how long a database may take to pause or resume.
const pauseTimeout = 10 * time.Second

// pauseTarget is a pipeline, or one of its sinks, that can be paused or resumed.
type pauseTarget struct {
	Pipeline, Sink string
	Paused         bool
}

// Name names it.
func (t pauseTarget) Name() string {
	if t.Sink == "" {
		return t.Pipeline
	}
	return t.Pipeline + ", sink " + t.Sink
}

// pauseTargets are what the page of a pipeline pauses or resumes: the pipeline, and each of several sinks.
func pauseTargets(p *admin.PipelineReport) []pauseTarget {
	paused := map[string]bool{}
	for _, one := range p.Pauses {
		paused[one.Sink] = true
	}
	all := []pauseTarget{{p.Name, "", paused[""]}}
	for _, s := range p.Sinks {
		if s.Pausable {
			all = append(all, pauseTarget{p.Name, s.Name, paused[s.Name]})
		}
	}
	return all
}

// pauseConfirm is what is about to be paused or resumed.
type pauseConfirm struct {
	pauseTarget
	Resume bool
}

// pauseChange pauses or resumes a pipeline or a sink: first it asks, then it does it.
func (s *Console) pauseChange(resume bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		selected, err := s.selected(r.PathValue("name"))
		if err != nil {
			s.fail(w, r, http.StatusNotFound, err)
			return
		}
		p := selected[0]
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
		sink := r.PostFormValue("sink")
		switch {
		case p.Pauser == nil:
			s.fail(w, r, http.StatusNotFound, errors.New("this pipeline cannot be paused"))
			return
		case r.PostFormValue("confirmed") == "":
			s.render(w, r, http.StatusOK, "pause_confirm", "overview", "Are you sure?", &pauseConfirm{pauseTarget{Pipeline: p.Name, Sink: sink}, resume})
			return
		}
		reason, err := admin.ParseReason(r.PostFormValue("reason"))
		if err != nil {
			s.fail(w, r, http.StatusBadRequest, err)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), pauseTimeout)
		defer cancel()
		var (
			who     = admin.ClosedBy(r, "console")
			changed bool
			entry   = audit.Entry{Who: who, Action: "pause", Pipeline: p.Name, Detail: "pipeline", Reason: reason}
			done    = "Paused. Relays stop within seconds."
		)
		if sink != "" {
			entry.Detail = "sink " + sink
		}
		if resume {
			entry.Action, done = "resume", "Resumed. Relays go on within a second."
			changed, err = p.Pauser.Resume(ctx, sink)
		} else {
			changed, err = p.Pauser.Pause(ctx, sink, who, reason)
		}
		s.changed(p.Name)
		_, missing := errors.AsType[*buffer.NoSinkError](err)
		switch {
		case missing:
			s.fail(w, r, http.StatusNotFound, err)
			return
		case err != nil:
			s.fail(w, r, http.StatusServiceUnavailable, err)
			return
		case changed:
			s.config.Audit.Add(ctx, entry)
		case resume:
			done = "It was not paused: somebody resumed it meanwhile."
		default:
			done = "It was paused before."
		}
		redirect(w, "../"+url.PathEscape(p.Name)+"?"+s.flashes.put(done, !changed))
	}
}
