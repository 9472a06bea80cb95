package config

import (
	"log/slog"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/supervisor"
)

// SupervisorPolicy says which holders are worth a word, and which are ended.
func (s *Supervisor) Watch() buffer.SupervisorPolicy {
	return buffer.SupervisorPolicy{WarnAfter: s.WarnAfter, TerminateAfter: s.TerminateAfter, Users: s.Users, Applications: s.Applications}
}

// Supervise makes a supervisor for each database that has one, however many of the
// pipelines are on it; lines are those that Open returned. It asks by the first
// pipeline's role that is to end sessions, or else by the first one's. observer hears for
// the pipelines of these names what holds their database back. Nothing is connected to.
func (c *Config) Supervise(lines []*Opened, observer func(pipelines ...string) supervisor.Observer, log *slog.Logger) ([]*supervisor.Supervisor, error) {
	var (
		order []string
		on    = map[string][]int{} // the pipelines, by their database
	)
	for i := range c.Pipelines {
		if _, ok := lines[i].Buffer.(supervisor.Source); !ok {
			continue
		}
		database := c.Pipelines[i].Source.database()
		if on[database] == nil {
			order = append(order, database)
		}
		on[database] = append(on[database], i)
	}
	var all []*supervisor.Supervisor
	for _, database := range order {
		var (
			names   []string
			watches []buffer.SupervisorPolicy
		)
		for _, i := range on[database] {
			names = append(names, c.Pipelines[i].Name)
			watches = append(watches, c.Pipelines[i].Source.Supervisor.Watch())
		}
		asks := max(0, slices.IndexFunc(watches, func(w buffer.SupervisorPolicy) bool { return w.TerminateAfter > 0 }))
		source := lines[on[database][asks]].Buffer.(supervisor.Source)
		one, err := supervisor.New(source, supervisor.Config{
			Watches: watches, Observer: observer(names...), Log: log.With("pipeline", strings.Join(names, ",")),
		})
		if err != nil {
			return nil, err
		}
		for _, i := range on[database] {
			lines[i].supervisor = one
		}
		all = append(all, one)
	}
	return all, nil
}

// Worst returns what holds the pipeline's database furthest back and is worth a word, as
// its supervisor last saw it.
func (o *Opened) Worst() (buffer.VacuumBlocker, bool) {
	if o.supervisor == nil {
		return buffer.VacuumBlocker{}, false
	}
	return o.supervisor.Worst()
}
