package config

import (
	"strings"

	"github.com/outboxrelay/relay/outbox"
)

// The rules about a table of the user's own.

// checkOwn tells what such a table does not go with.
func (p *Pipeline) checkOwn(r *reader, e entry, there written) {
	if !p.Source.Own.Is() && p.Source.Preset == "" {
		return
	}
	if p.Order == "key" {
		r.say(r.at(e, there, "order"), "order is key, and events of a table of your own have no key before they are projected: none was expected")
	}
	if p.Claim == string(outbox.ClaimRange) || p.Claim == string(outbox.ClaimOptimistic) {
		r.say(r.at(e, there, "claim"), "claim is %s, and source.project finds events by their group_id: auto or stamp was expected", p.Claim)
	}
	if p.Wake == string(outbox.WakeNotify) {
		r.say(r.at(e, there, "wake"), "wake is notify, and migrate makes no trigger on a table of your own: auto or poll was expected")
	}
}

// parameters are how a projection names the batch's group_id, by driver.
var parameters = map[string]string{"postgres": "$1", "sqlite": "?"}

// checkOwn fills the preset in and keeps apart what contradicts itself.
func (s *Source) checkOwn(r *reader, e entry, there written) {
	_, projects := there["project"]
	_, preset := there["preset"]
	for _, name := range []string{"id", "cursor"} {
		if _, given := there[name]; given && !projects && !preset {
			r.say(there[name].key, "%s.%s stands alone, %s.project or %s.preset was expected beside it", e.path, name, e.path, e.path)
		}
	}
	if projects && preset {
		r.say(there["preset"].key, "%s.preset stands beside %s.project, one of them was expected", e.path, e.path)
		return
	}
	if sign := parameters[s.Driver]; projects && s.Own.Is() && !strings.Contains(s.Own.Project, sign) {
		r.say(r.at(e, there, "project"), "%s.project has no %s, which is the group_id of the batch that it is run for: WHERE group_id = %s was expected", e.path, sign, sign)
	}
	if p, known := presets[s.Preset]; known && s.Driver != "" && s.Table != "" {
		own, fits := p.own(s.Driver, s.Table, s.Own.ID)
		if !fits {
			r.say(r.at(e, there, "preset"), "%s.preset is %s, which is a table on PostgreSQL: %s.project was expected for %s", e.path, s.Preset, e.path, s.Driver)
			return
		}
		own.Cursor = s.Own.Cursor
		s.Own = own
	}
	if s.Own.Is() && s.Own.ID == "" {
		s.Own.ID = "id"
	}
}
