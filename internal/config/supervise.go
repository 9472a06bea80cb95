package config

import (
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/supervisor"
)

// Policy says which vacuum blockers are logged, and which sessions are terminated.
func (s *Supervisor) Policy() buffer.SupervisorPolicy {
	return buffer.SupervisorPolicy{WarnAfter: s.WarnAfter, TerminateAfter: s.TerminateAfter, Users: s.Users, Applications: s.Applications}
}

// Supervise returns one supervisor for each database of the pipelines, which Open returned. It uses the role of the first
// pipeline that terminates sessions, otherwise of the first pipeline. observer returns the Observer for the pipelines
// with these names. Supervise connects to nothing.
func (c *Config) Supervise(pipelines []*Runtime, observer func(pipelines ...string) supervisor.Observer, log *slog.Logger) ([]*supervisor.Supervisor, error) {
	var (
		order []string
		on    = map[string][]int{} // the pipelines, by their database
	)
	for i := range c.Pipelines {
		if _, ok := pipelines[i].Buffer.(supervisor.Source); !ok {
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
			names    []string
			policies []buffer.SupervisorPolicy
			tables   []supervisor.Tables
		)
		for _, i := range on[database] {
			names = append(names, c.Pipelines[i].Name)
			policies = append(policies, c.Pipelines[i].Source.Supervisor.Policy())
			if b, ok := pipelines[i].Buffer.(lockable); ok {
				tables = append(tables, supervisor.Tables{Names: b.LockableTables, Log: log.With("pipeline", c.Pipelines[i].Name)})
			}
		}
		asks := max(0, slices.IndexFunc(policies, func(p buffer.SupervisorPolicy) bool { return p.TerminateAfter > 0 }))
		source := pipelines[on[database][asks]].Buffer.(supervisor.Source)
		one, err := supervisor.New(source, supervisor.Config{
			Policies: policies, Observer: observer(names...), Tables: tables, Log: log.With("pipeline", strings.Join(names, ",")),
		})
		if err != nil {
			return nil, err
		}
		for _, i := range on[database] {
			pipelines[i].supervisor = one
		}
		all = append(all, one)
	}
	return all, nil
}

// Worst returns the worst vacuum blocker of the pipeline's database that is older than
// warn_after, as the supervisor last saw it.
func (o *Runtime) Worst() (buffer.VacuumBlocker, bool) {
	if o.supervisor == nil {
		return buffer.VacuumBlocker{}, false
	}
	return o.supervisor.Worst()
}

// Locker returns the oldest transaction that holds locks in the pipeline's event table for some seconds at least, or that one with such locks waits for, as the supervisor last
// saw it. holds reports the former.
func (o *Runtime) Locker() (h buffer.VacuumBlocker, holds, ok bool) {
	b, can := o.Buffer.(interface{ BufferTable() string })
	if !can || o.supervisor == nil {
		return h, false, false
	}
	h, ok = o.supervisor.Locker(b.BufferTable())
	return h, h.Holds(b.BufferTable()), ok
}

// LocksSeenAt is when the supervisor last looked for locks, by this process's clock; zero if it does not, or if it could not.
func (o *Runtime) LocksSeenAt() time.Time {
	if o.supervisor == nil {
		return time.Time{}
	}
	return o.supervisor.SeenAt()
}

// TableLocker returns the oldest transaction that has locked one of the pipeline's tables as a whole for some seconds at least, as the supervisor last saw it; nil if
// none has.
func (o *Runtime) TableLocker() *buffer.LockedError {
	b, can := o.Buffer.(lockable)
	if !can || o.supervisor == nil {
		return nil
	}
	return o.supervisor.TableLocker(b.LockableTables()...)
}

// lockable is a buffer whose tables a transaction can lock as a whole; see [supervisor.Tables].
type lockable interface{ LockableTables() []string }

// LocksKnown reports whether TableLocker knows all locks: the supervisor's last look at the database succeeded, or there is none, as on SQLite.
func (o *Runtime) LocksKnown() bool { return o.supervisor == nil || !o.supervisor.SeenAt().IsZero() }
