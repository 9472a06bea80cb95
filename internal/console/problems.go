package console

import (
	"slices"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// problems returns what is wrong, the worst first. Since is not set. The files problem_*.go have what each kind of cause says.
func problems(s *Console, report *admin.Report) []problem {
	f := newFinder(s, report)
	f.addTableLocks()
	f.addUnreadable()
	f.addNotReady()
	for i := range report.Pipelines {
		f.all = append(f.all, s.pipelineProblems(&report.Pipelines[i], f.notReady)...)
	}
	f.addGone()
	all := merged(withoutMinor(f.all))
	for i := range all {
		all[i].Detail = distinctLines(all[i].Detail)
	}
	slices.SortStableFunc(all, func(a, b problem) int { return a.rank() - b.rank() })
	return all
}

// finder finds the problems of a report: by itself those of all pipelines, and what this process knows without the report.
type finder struct {
	*Console
	report *admin.Report
	// reasons are why pipelines of this process are not ready, in their order.
	reasons []admin.NotReadyReason
	// databases are why those of pipelines do not work, and tableLocks the transactions that have locked a table of them as a whole, by pipeline.
	databases  map[string]databaseError
	tableLocks map[string]*admin.BlockerReport
	// starting are the pipelines of which the first check is under way: that is no fault so far.
	starting map[string]bool
	// notReady are the pipelines whose status cannot be read, and the sinks that are not ready in this process, as PIPELINE/SINK.
	notReady map[string]bool
	all      []problem
}

func newFinder(s *Console, report *admin.Report) *finder {
	f := &finder{
		Console: s, report: report, databases: map[string]databaseError{}, tableLocks: map[string]*admin.BlockerReport{}, starting: map[string]bool{}, notReady: map[string]bool{},
	}
	for i := range report.Pipelines {
		if p := &report.Pipelines[i]; p.TableLockedBy != nil {
			f.tableLocks[p.Name] = p.TableLockedBy
		}
	}
	for i := range report.Errors {
		if e := &report.Errors[i]; e.TableLockedBy != nil {
			f.tableLocks[e.Name] = e.TableLockedBy
		}
	}
	for _, p := range s.config.Source.Pipelines() {
		of := p.NotReady()
		f.reasons = append(f.reasons, of...)
		for i := range of {
			switch {
			case of[i].Kind == buffer.KindStarting:
				f.starting[p.Name] = true
				f.notReady[p.Name+"/"+of[i].Sink] = true
			case of[i].Class == buffer.NotReadyDatabase:
				f.addDatabase(p.Name, of[i].Err)
			}
		}
	}
	return f
}

// reportOf is the report of a pipeline; nil if its status could not be read.
func (f *finder) reportOf(pipeline string) *admin.PipelineReport {
	k := slices.IndexFunc(f.report.Pipelines, func(p admin.PipelineReport) bool { return p.Name == pipeline })
	if k < 0 {
		return nil
	}
	return &f.report.Pipelines[k]
}

// pipelineProblems are those that the database tells of. notReady names what is not ready in this process.
func (s *Console) pipelineProblems(p *admin.PipelineReport, notReady map[string]bool) []problem {
	f := &pipelineFinder{Console: s, p: p, notReady: notReady, elsewhere: map[string]int{}}
	f.addElsewhere()
	f.addPauses()
	f.addWaits()
	f.addSinks()
	f.addRowLocks()
	f.addVacuum()
	f.addHook()
	f.addDead()
	f.addNotices()
	return f.all
}

// pipelineFinder finds the problems of a pipeline.
type pipelineFinder struct {
	*Console
	p        *admin.PipelineReport
	notReady map[string]bool
	all      []problem
	// elsewhere is where in all a sink is that is not ready in another process.
	elsewhere map[string]int
}

func (f *pipelineFinder) add(one problem) {
	one.Pipeline = f.p.Name
	f.all = append(f.all, one)
}

// addNotices come last: the relay continues.
func (f *pipelineFinder) addNotices() {
	for _, text := range f.p.Notices {
		f.add(problem{Title: "worth a look", Detail: text, Alone: "The relay continues.", Warning: true, Undated: true})
	}
}
