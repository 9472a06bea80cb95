package config

import (
	"cmp"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// checkCustomTable rejects what a custom table does not support.
func (p *Pipeline) checkCustomTable(r *reader, e entry, present entries) {
	if !p.Source.Custom.Is() && p.Source.Preset == "" {
		return
	}
	if p.Order == "key" {
		r.errorf(r.at(e, present, "order"), `order is "key", which a custom table (source.project, source.preset) does not support; expected "none"`)
	}
	if p.Claim == string(buffer.ClaimRange) {
		r.errorf(r.at(e, present, "claim"), `claim is "range", which a custom table (source.project, source.preset) does not support; expected "auto" or "stamp"`)
	}
	if p.Wake == string(buffer.WakeNotify) {
		r.errorf(r.at(e, present, "wake"), `wake is "notify", which a custom table (source.project, source.preset) does not support; expected "auto" or "poll"`)
	}
}

// eventsPlaceholder stands for the rows of the batch in a projection.
const eventsPlaceholder = "{events}"

// parameters stand for the batch's group_id in a projection, by driver.
var parameters = map[string]string{"postgres": "$1", "sqlite": "?"}

// checkCustomTable fills in the preset and rejects keys that contradict each other.
func (s *Source) checkCustomTable(r *reader, e entry, present entries) {
	_, projects := present["project"]
	_, preset := present["preset"]
	for _, name := range []string{"id", "cursor", "created_at", "available_at", "where", "done", "mark"} {
		if _, given := present[name]; given && !projects && !preset {
			r.errorf(present[name].key, "%s.%s is used without a custom table; expected %s.project or %s.preset too", e.path, name, e.path, e.path)
		}
	}
	if projects && preset {
		r.exclusive(e, present, "preset", "project")
		return
	}
	if sign := parameters[s.Driver]; projects && s.Custom.Is() && !strings.Contains(s.Custom.Project, sign) && !strings.Contains(s.Custom.Project, eventsPlaceholder) {
		r.errorf(r.at(e, present, "project"), "%s.project does not select the rows of a batch; expected FROM {events} e, or WHERE group_id = %s", e.path, sign)
	}
	_, done := present["done"]
	if p, known := presets[s.Preset]; known && s.Driver != "" {
		own, fits := p.customTable(s.Driver, s.Custom.ID)
		if !fits {
			r.errorf(r.at(e, present, "preset"), "%s.preset is %q, which exists for PostgreSQL only; expected %s.project", e.path, s.Preset, e.path)
			return
		}
		if own.Mark != nil && !done {
			s.Done = "mark"
		}
		own.Cursor, own.CreatedAt, own.Where = s.Custom.Cursor, cmp.Or(s.Custom.CreatedAt, own.CreatedAt), cmp.Or(s.Custom.Where, own.Where)
		own.AvailableAt = s.Custom.AvailableAt
		if s.Custom.Mark != nil || s.Done != "mark" {
			own.Mark = s.Custom.Mark
		}
		s.Custom = own
	}
	s.checkDone(r, e, present)
	if s.Custom.Is() && s.Custom.ID == "" {
		s.Custom.ID = "id"
	}
}

// marks are what a row is marked with by default, by driver; unmarked is the condition that it makes false.
var marks = map[string]map[string]string{
	"postgres": {"processed_at": "now()"}, "sqlite": {"processed_at": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"},
}

const unmarked = "processed_at IS NULL"

// checkDone fills in what a row is marked with.
func (s *Source) checkDone(r *reader, e entry, present entries) {
	switch {
	case s.Done != "mark" && s.Custom.Mark != nil:
		if _, given := present["mark"]; given {
			r.errorf(present["mark"].key, "%s.mark is used without %s.done: mark; expected both", e.path, e.path)
		}
	case s.Done == "mark" && s.Custom.Mark == nil:
		s.Custom.Mark, s.Custom.Where = marks[s.Driver], cmp.Or(s.Custom.Where, unmarked)
	case s.Done == "mark" && s.Custom.Where == "":
		r.errorf(present["mark"].key, "%s.mark is used without %s.where; expected a condition that the mark makes false, because a marked row stays", e.path, e.path)
	}
}
