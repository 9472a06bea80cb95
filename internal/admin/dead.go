package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	// most dead letters of one answer; the next page is behind its last.
	deadPage, deadMost = 100, 1000
	// most bytes of an order.
	orderBytes = 1 << 20
	// patienceDead is how long listing a page may take, and changing all that is meant.
	patienceDead = 25 * time.Second
)

// listDead answers GET /api/dead: by pipeline, event id and group_id. Where the page is
// full, the header Link names the next.
func (s *Server) listDead(w http.ResponseWriter, r *http.Request) {
	q, err := parseDeadQuery(r.URL.Query())
	if err != nil {
		s.refuse(w, http.StatusBadRequest, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), patienceDead)
	defer cancel()
	letters := []DeadLetter{}
	found := false
	for _, one := range s.snapshots {
		p := one.pipeline
		if q.pipeline != "" && p.Name() != q.pipeline {
			continue
		}
		found = true
		if q.begin != "" && p.Name() != q.begin { // an earlier page had this one
			continue
		}
		events, err := p.ListDead(ctx, q.filter, q.after, q.limit-len(letters))
		if err != nil {
			s.refuse(w, http.StatusServiceUnavailable, fmt.Errorf("%s: %w", p.Name(), err))
			return
		}
		q.begin, q.after = "", nil
		for i := range events {
			letters = append(letters, NewDeadLetter(&events[i], s.config.Redact))
		}
		if len(letters) == q.limit {
			w.Header().Set("Link", "<"+q.next(r.URL, letters[q.limit-1])+`>; rel="next"`)
			break
		}
	}
	if !found {
		s.refuse(w, http.StatusNotFound, fmt.Errorf("there is no pipeline %q", q.pipeline))
		return
	}
	s.writeJSON(w, http.StatusOK, letters)
}

// deadQuery is what GET /api/dead asks for.
type deadQuery struct {
	pipeline string
	filter   buffer.DeadFilter
	limit    int
	// A page begins in the pipeline begin, behind after.
	begin string
	after *buffer.DeadKey
}

func parseDeadQuery(values url.Values) (deadQuery, error) {
	q := deadQuery{limit: deadPage}
	var err error
	for name, all := range values {
		value := all[len(all)-1]
		switch name {
		case "pipeline":
			q.pipeline = value
		case "topic":
			q.filter.Topic = value
		case "error":
			q.filter.Error = value
		case "older_than":
			q.filter.OlderThan, err = age(name, value)
		case "newer_than":
			q.filter.NewerThan, err = age(name, value)
		case "id":
			q.filter.IDs, q.filter.UUIDs, err = Named(all)
		case "closed":
			q.filter.Closed, err = strconv.ParseBool(value)
		case "limit":
			q.limit, err = strconv.Atoi(value)
			if err == nil && (q.limit < 1 || q.limit > deadMost) {
				err = fmt.Errorf("1 to %d was expected", deadMost)
			}
		case "after":
			q.begin, q.after, err = parseAfter(value)
		default:
			err = errors.New("pipeline, topic, error, older_than, newer_than, id, closed, limit or after was expected")
		}
		if err != nil {
			return q, fmt.Errorf("%s=%q: %w", name, value, err)
		}
	}
	return q, nil
}

func age(name, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 { // 0 is any time, to a filter
		return 0, fmt.Errorf("%s: a time like 1h was expected", name)
	}
	return d, nil
}

// parseAfter reads PIPELINE,ID,GROUP_ID.
func parseAfter(text string) (pipeline string, key *buffer.DeadKey, err error) {
	parts := strings.Split(text, ",")
	if len(parts) == 3 {
		id, errID := strconv.ParseInt(parts[1], 10, 64)
		group, errGroup := uuid.Parse(parts[2])
		if errID == nil && errGroup == nil {
			return parts[0], &buffer.DeadKey{EventID: id, GroupID: group}, nil
		}
	}
	return "", nil, errors.New("what the header Link names was expected")
}

// next is the same question for what is behind last.
func (q *deadQuery) next(asked *url.URL, last DeadLetter) string {
	values := asked.Query()
	values.Set("after", fmt.Sprintf("%s,%d,%s", last.Pipeline, last.EventID.id, last.GroupID))
	return asked.Path + "?" + values.Encode()
}

// order is the body of POST /api/dead/replay and /api/dead/discard.
type order struct {
	Pipeline  string          `json:"pipeline"`
	IDs       json.RawMessage `json:"ids"`
	Topic     string          `json:"topic"`
	Error     string          `json:"error"`
	OlderThan string          `json:"older_than"`
	NewerThan string          `json:"newer_than"`
	DryRun    bool            `json:"dry_run"`
}

// filter reads what is meant; "all" has to be said.
func (o *order) filter() (f buffer.DeadFilter, err error) {
	f = buffer.DeadFilter{Topic: o.Topic, Error: o.Error}
	var errAge, errAge2 error
	f.OlderThan, errAge = age("older_than", o.OlderThan)
	f.NewerThan, errAge2 = age("newer_than", o.NewerThan)
	if err := errors.Join(errAge, errAge2); err != nil {
		return f, err
	}
	var (
		word  string
		texts []string
	)
	switch {
	case json.Unmarshal(o.IDs, &word) == nil && word == "all":
		return f, nil
	case json.Unmarshal(o.IDs, &texts) == nil && len(texts) > 0:
		if f.IDs, f.UUIDs, err = Named(texts); err == nil {
			return f, nil
		}
		return f, fmt.Errorf("ids: %w", err)
	}
	return f, errors.New(`ids: a list like ["17"], or "all", was expected`)
}

// changeDead answers POST /api/dead/replay and /api/dead/discard.
func (s *Server) changeDead(act func(Pipeline) Act) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var o order
		if code, err := readOrder(w, r, &o); err != nil {
			s.refuse(w, code, err)
			return
		}
		f, err := o.filter()
		if err != nil {
			s.refuse(w, http.StatusBadRequest, err)
			return
		}
		at := slices.IndexFunc(s.snapshots, func(one *snapshot) bool { return one.pipeline.Name() == o.Pipeline })
		if at < 0 {
			s.refuse(w, http.StatusNotFound, fmt.Errorf("there is no pipeline %q", o.Pipeline))
			return
		}
		p := s.snapshots[at].pipeline
		ctx, cancel := context.WithTimeout(r.Context(), patienceDead)
		defer cancel()
		changed, err := Change(ctx, p, act(p), f, o.DryRun, nil)
		changed.Pipeline = p.Name()
		if err != nil {
			// What was done before is not forgotten: the same order goes on with the rest.
			s.writeJSON(w, http.StatusServiceUnavailable, struct {
				Changed
				Error string `json:"error"`
			}{changed, s.config.Redact(err.Error())})
			return
		}
		s.config.Log.InfoContext(ctx, "dead letters were changed", "pipeline", changed.Pipeline, "path", r.URL.Path,
			"changed", changed.Changed, "untold", changed.Untold, "dry_run", changed.DryRun)
		s.writeJSON(w, http.StatusOK, changed)
	}
}

// readOrder reads a body that is JSON, known to the last field, and small.
func readOrder(w http.ResponseWriter, r *http.Request, into *order) (code int, err error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return http.StatusUnsupportedMediaType, errors.New("Content-Type: application/json was expected")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, orderBytes))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return http.StatusRequestEntityTooLarge, fmt.Errorf("at most %d bytes were expected", orderBytes)
	}
	if err != nil {
		return http.StatusBadRequest, err
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return http.StatusBadRequest, fmt.Errorf(`{"pipeline": "...", "ids": ["17"]} was expected: %w`, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return http.StatusBadRequest, errors.New("one JSON object was expected")
	}
	return 0, nil
}

// refuse answers with an error, as JSON.
func (s *Server) refuse(w http.ResponseWriter, code int, err error) {
	s.writeJSON(w, code, struct {
		Error string `json:"error"`
	}{s.config.Redact(err.Error())})
}
