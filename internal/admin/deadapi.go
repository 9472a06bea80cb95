package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/access"
	"github.com/outboxrelay/relay/internal/audit"
	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	// The default and the maximum number of dead letters in a response.
	defaultPageSize, maxPageSize = 100, 1000
	maxRequestBytes              = 1 << 20
	// deadTimeout is how long listing a page, or a change, may take.
	deadTimeout = 25 * time.Second
)

// listDead serves GET /api/dead, ordered by pipeline, event id and group_id. The header
// Link of a full page has the next one; a page is full with limit dead letters, or a few megabytes.
func (s *Server) listDead(w http.ResponseWriter, r *http.Request) {
	q, err := parseDeadQuery(r.URL.Query())
	if err != nil {
		s.reject(w, http.StatusBadRequest, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), deadTimeout)
	defer cancel()
	dead := []DeadLetter{}
	found, size := false, 0
	var (
		hasSink bool
		noSink  []DeadLetters
	)
	for _, one := range s.snapshots {
		p := one.pipeline
		if q.pipeline != "" && p.Name != q.pipeline {
			continue
		}
		found = true
		if q.begin != "" && p.Name != q.begin { // on an earlier page
			continue
		}
		if q.filter.Sink != "" {
			has, err := p.HasSink(ctx, q.filter.Sink)
			if err != nil {
				s.reject(w, http.StatusServiceUnavailable, fmt.Errorf("%s: %w", p.Name, err))
				return
			}
			if !has {
				noSink = append(noSink, p.DeadLetters)
				continue
			}
			hasSink = true
		}
		for {
			events, err := p.Store.ListDead(ctx, q.filter, q.after, q.limit-len(dead))
			if err != nil {
				s.reject(w, http.StatusServiceUnavailable, fmt.Errorf("%s: %w", p.Name, err))
				return
			}
			q.begin, q.after = "", nil
			if len(events) == 0 { // a shorter page may be a large one
				break
			}
			for i := range events {
				e := &events[i]
				one := NewDeadLetter(e, s.config.Redact)
				if s.config.HidePayloads {
					one = one.WithoutPayload()
				}
				dead = append(dead, one)
				size += buffer.EventBytes(&e.Event)
				q.after = &buffer.DeadKey{EventID: e.ID, GroupID: e.GroupID}
			}
			if len(dead) == q.limit || size > buffer.MaxBytes/2 {
				w.Header().Set("Link", "<"+q.next(r.URL, dead[len(dead)-1])+`>; rel="next"`)
				s.writeJSON(w, http.StatusOK, dead)
				return
			}
		}
	}
	if !found {
		s.reject(w, http.StatusNotFound, fmt.Errorf("pipeline %q does not exist", q.pipeline))
		return
	}
	if noSink != nil && !hasSink {
		s.reject(w, http.StatusNotFound, NoSinkError(q.filter.Sink, noSink...))
		return
	}
	s.writeJSON(w, http.StatusOK, dead)
}

// deadQuery is the query of GET /api/dead.
type deadQuery struct {
	pipeline string
	filter   buffer.DeadFilter
	limit    int
	// The page starts in the pipeline begin, after the key after.
	begin string
	after *buffer.DeadKey
}

func parseDeadQuery(values url.Values) (deadQuery, error) {
	q := deadQuery{limit: defaultPageSize}
	var err error
	for name, all := range values {
		value := all[len(all)-1]
		switch name {
		case "pipeline":
			q.pipeline = value
		case "topic":
			q.filter.Topic = value
		case "sink":
			q.filter.Sink = value
		case "error":
			q.filter.Error = value
		case "older_than":
			q.filter.OlderThan, q.filter.Before, err = ParseDied(value)
		case "newer_than":
			q.filter.NewerThan, q.filter.From, err = ParseDied(value)
		case "id":
			q.filter.IDs, q.filter.UUIDs, err = ParseIDs(all)
		case "closed":
			q.filter.Closed, err = strconv.ParseBool(value)
		case "limit":
			q.limit, err = strconv.Atoi(value)
			if err == nil && (q.limit < 1 || q.limit > maxPageSize) {
				err = fmt.Errorf("expected 1 to %d", maxPageSize)
			}
		case "after":
			q.begin, q.after, err = parseAfter(value)
		default:
			err = errors.New("unknown parameter; expected pipeline, sink, topic, error, older_than, newer_than, id, closed, limit or after")
		}
		if err != nil {
			return q, fmt.Errorf("%s=%q: %w", name, value, err)
		}
	}
	return q, nil
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
	return "", nil, errors.New("expected the value in the header Link")
}

// next is the URL of the page after last.
func (q *deadQuery) next(current *url.URL, last DeadLetter) string {
	values := current.Query()
	values.Set("after", fmt.Sprintf("%s,%d,%s", last.Pipeline, last.EventID.id, last.GroupID))
	return current.Path + "?" + values.Encode()
}

// changeRequest is the body of POST /api/dead/replay and /api/dead/discard.
type changeRequest struct {
	Pipeline  string          `json:"pipeline"`
	IDs       json.RawMessage `json:"ids"`
	Sink      string          `json:"sink"`
	Topic     string          `json:"topic"`
	Error     string          `json:"error"`
	OlderThan string          `json:"older_than"`
	NewerThan string          `json:"newer_than"`
	Reason    string          `json:"reason"`
	DryRun    bool            `json:"dry_run"`
}

// filter selects the dead letters. All of them must be requested with "all".
func (o *changeRequest) filter() (f buffer.DeadFilter, err error) {
	f = buffer.DeadFilter{Sink: o.Sink, Topic: o.Topic, Error: o.Error}
	var errReason error
	f.ClosedReason, errReason = ParseReason(o.Reason)
	if err := errors.Join(SetDied(&f, o.OlderThan, o.NewerThan), errReason); err != nil {
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
		if f.IDs, f.UUIDs, err = ParseIDs(texts); err == nil {
			return f, nil
		}
		return f, fmt.Errorf("ids: %w", err)
	}
	return f, errors.New(`ids is missing or invalid; expected a list like ["17"], or "all"`)
}

// selection is the filter, for the audit.
func (o *changeRequest) selection() string {
	var all []string
	for _, one := range [][2]string{
		{"ids", string(o.IDs)},
		{"sink", o.Sink},
		{"topic", o.Topic},
		{"error", o.Error},
		{"older_than", o.OlderThan},
		{"newer_than", o.NewerThan},
	} {
		if one[1] != "" {
			all = append(all, one[0]+"="+one[1])
		}
	}
	return strings.Join(all, " ")
}

// changeDead serves POST /api/dead/replay and /api/dead/discard.
func (s *Server) changeDead(act Action) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var o changeRequest
		if code, err := readRequest(w, r, &o); err != nil {
			s.reject(w, code, err)
			return
		}
		f, err := o.filter()
		if err != nil {
			s.reject(w, http.StatusBadRequest, err)
			return
		}
		at := slices.IndexFunc(s.snapshots, func(one *snapshot) bool { return one.pipeline.Name == o.Pipeline })
		if at < 0 {
			s.reject(w, http.StatusNotFound, fmt.Errorf("pipeline %q does not exist", o.Pipeline))
			return
		}
		p := s.snapshots[at].pipeline
		f.ClosedBy = ClosedBy(r, "admin endpoint")
		ctx, cancel := context.WithTimeout(r.Context(), deadTimeout)
		defer cancel()
		if f.Sink != "" {
			has, err := p.HasSink(ctx, f.Sink)
			if err != nil {
				s.reject(w, http.StatusServiceUnavailable, err)
				return
			}
			if !has {
				s.reject(w, http.StatusNotFound, NoSinkError(f.Sink, p.DeadLetters))
				return
			}
		}
		changed, err := p.Change(ctx, act, f, o.DryRun, nil)
		changed.Pipeline = p.Name
		changed.CleanReasons(s.config.Redact, s.config.HidePayloads)
		if !o.DryRun {
			s.config.Audit.Add(ctx, audit.Entry{
				Who: f.ClosedBy, Action: string(act), Pipeline: p.Name, Count: changed.Changed, Detail: o.selection(), Reason: f.ClosedReason,
			})
		}
		if err != nil {
			// The response says what was done; repeating the request continues.
			s.writeJSON(w, http.StatusServiceUnavailable, struct {
				Changed
				Error string `json:"error"`
			}{changed, s.config.Redact(err.Error())})
			return
		}
		s.writeJSON(w, http.StatusOK, changed)
	}
}

// ClosedBy is who sent a request that closes dead letters: the name of the person or the token, through what, and the address of the connection's
// other end, which may be a proxy.
func ClosedBy(r *http.Request, through string) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	text := through + ", " + host
	if name := access.UserOf(r.Context()).String(); name != "" {
		text = name + ", " + text
	}
	return text
}

// readRequest reads a small JSON body without unknown fields.
func readRequest(w http.ResponseWriter, r *http.Request, into *changeRequest) (code int, err error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return http.StatusUnsupportedMediaType, errors.New("Content-Type is missing or wrong; expected application/json")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequestBytes))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return http.StatusRequestEntityTooLarge, fmt.Errorf("the body is too large; expected at most %d bytes", maxRequestBytes)
	}
	if err != nil {
		return http.StatusBadRequest, err
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return http.StatusBadRequest, fmt.Errorf(`the body is invalid; expected {"pipeline": "...", "ids": ["17"]}: %w`, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return http.StatusBadRequest, errors.New("the body has more than one JSON value; expected one object")
	}
	return 0, nil
}

// reject responds with an error as JSON.
func (s *Server) reject(w http.ResponseWriter, code int, err error) {
	s.writeJSON(w, code, struct {
		Error string `json:"error"`
	}{s.config.Redact(err.Error())})
}
