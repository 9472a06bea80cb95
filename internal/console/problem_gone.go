package console

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
)

// goneFor is for how long a relay that is gone is missed.
const goneFor = time.Hour

// goneRelay is a process that is gone from some pipelines.
type goneRelay struct {
	name      string
	seen      float64 // seconds ago, in any of them
	pipelines []string
}

// addGone says which relays did not stop in order: each is one problem of all its pipelines, once its last report from each pipeline of a database is overdue.
func (f *finder) addGone() {
	type place struct{ server, name string }
	runs := map[place]bool{} // in any pipeline of a database
	for i := range f.report.Pipelines {
		p := &f.report.Pipelines[i]
		for k := range p.Relays {
			if r := &p.Relays[k]; r.Running && f.servers[p.Name] != "" {
				runs[place{f.servers[p.Name], process(r.Owner)}] = true
			}
		}
	}
	var all []goneRelay
	for i := range f.report.Pipelines {
		p := &f.report.Pipelines[i]
		for _, one := range f.gone(p) {
			if runs[place{f.servers[p.Name], one.name}] {
				continue
			}
			k := slices.IndexFunc(all, func(g goneRelay) bool { return g.name == one.name })
			if k < 0 {
				k = len(all)
				all = append(all, one)
			}
			all[k].seen = min(all[k].seen, one.seen)
			all[k].pipelines = append(all[k].pipelines, p.Name)
		}
	}
	slices.SortFunc(all, func(a, b goneRelay) int { return cmp.Compare(a.name, b.name) })
	for i := range all {
		f.addGoneRelay(&all[i])
	}
}

func (f *finder) addGoneRelay(one *goneRelay) {
	for _, pipeline := range one.pipelines {
		f.all = append(f.all, problem{
			Pipeline: pipeline, Title: "a relay is gone", Cause: "gone " + one.name, JoinedBy: one.name, Warning: true,
			Detail: fmt.Sprintf("relay %s, which reported last %s ago, did not stop in order: it was killed, hangs, or cannot reach the database, and no other relay has started since.",
				one.name, admin.Age(time.Duration(one.seen*float64(time.Second)))),
			Alone: "The others do its work, and take its batches over when their leases end.", Do: "Find out why it ended: its log, memory limits, a crash of the host. Start it again.",
		})
	}
}

// gone are the processes that worked on a pipeline, neither run nor stopped in order, and after whose last report no other one started, while another one runs.
func (s *Console) gone(p *admin.PipelineReport) (gone []goneRelay) {
	type run struct {
		name          string
		seen, started float64 // seconds ago
		runs, stopped bool
	}
	var all []run
	for i := range p.Relays {
		r := &p.Relays[i]
		k := slices.IndexFunc(all, func(one run) bool { return one.name == process(r.Owner) })
		if k < 0 {
			k = len(all)
			all = append(all, run{name: process(r.Owner), seen: r.SeenSeconds})
		}
		one := &all[k]
		one.seen, one.started = min(one.seen, r.SeenSeconds), max(one.started, r.SeenSeconds+r.UptimeSeconds)
		one.runs, one.stopped = one.runs || r.Running || s.isThis(r.Owner), one.stopped || r.Stopped
	}
	if !slices.ContainsFunc(all, func(one run) bool { return one.runs }) {
		return nil
	}
	slices.SortFunc(all, func(a, b run) int { return cmp.Compare(a.name, b.name) }) // the same ones are replaced each time
	used := map[string]bool{}                                                       // a new process replaces one
	for i := range all {
		one := &all[i]
		if one.runs || one.stopped || one.seen > goneFor.Seconds() {
			continue
		}
		k := slices.IndexFunc(all, func(other run) bool { return other.runs && other.started < one.seen && !used[other.name] })
		if k >= 0 {
			used[all[k].name] = true
			continue
		}
		gone = append(gone, goneRelay{name: one.name, seen: one.seen})
	}
	return gone
}
