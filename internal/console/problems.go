package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// problem is something that is wrong with a pipeline: what, since when, what happens by itself, and what to do.
type problem struct {
	// Pipeline is the pipeline's name, Sink that of one of its several sinks, or "".
	Pipeline, Sink string
	// Title says what is wrong in a few words, Detail quotes who said it.
	Title, Detail string
	// Alone is what the relay does about it by itself; Do is what a person can do.
	Alone, Do string
	// Fix is a command or statement to copy; "" if there is none.
	Fix string
	// Link leads to a page about it, from the overview, and LinkText says which; "" if none does.
	Link, LinkText string
	// Server is the one that is to blame, if there is one: problems of one server are one problem; see grouped.
	Server string
	// Others are the same problem of more pipelines, or sinks.
	Others []problem
	// Now is what happens at the moment; "" if the title says it.
	Now string
	// Said is the error alone, if Detail has more, and Refuses: the sink refuses some events, and accepts others. See merged.
	Said    string
	Refuses bool
	// Joined: problems of one server with this title and Fix are one, whatever their details are.
	Joined bool
	// OnlyVacuum: it blocks vacuum, and keeps no event, as far as is known.
	OnlyVacuum bool
	// Deadly: so many events become dead letters, or a transaction blocks some, that somebody should look now.
	Deadly bool
	// Key finds the problem in the next report if its title changes; such a problem has a page of its own and is never grouped.
	Key string
	// Cause finds it, too, if Key is "": a sink that refuses some events is called one thing and another from one second to the next.
	Cause string
	// Warning: nothing stands still because of it.
	Warning bool
	// Undated: its text says when it was, and each process would have seen it first at another time.
	Undated bool
	// Began is when it began, by the database; zero if only this process knows.
	Began time.Time
	// Since is Began, or when this process saw it first.
	Since time.Time
}

// key finds the same problem in the next report: what a server says may change each time.
func (p *problem) key() string {
	return p.Pipeline + "\x00" + p.Sink + "\x00" + cmp.Or(p.Key, p.Cause, p.Title)
}

// Name is the pipeline, with the sink if it has several.
func (p *problem) Name() string {
	if p.Sink == "" {
		return p.Pipeline
	}
	return p.Pipeline + "/" + p.Sink
}

const (
	titlePaused   = "paused"
	titleNoTables = "tables are missing"
	titleNoSchema = "its schema is missing"
	titleWaits    = "batches wait for a retry"
	titleLocked   = "a transaction locks its table"
	keyDead       = "dead letters"
	causeLock     = "lock"
)

// removeMany is how to remove a burst of bad events.
const removeMany = "To remove many (PostgreSQL): pause the pipeline, wait until nothing is leased, move the bad events into a table of your own in one transaction, and resume."

// kindProblem says what the kind of a readiness error, or else its class, means.
var kindProblem = map[string]struct{ title, alone, do string }{
	"database": {
		"database does not work", "The relay tries again every second. Events are safe in their table or at their sink: nothing is lost. What was being sent may be sent again, under the same group_id.",
		"Check that the database runs, has disk space, and accepts writes, that user and password are right, and that this host is not overloaded. A relay reads secrets at its start: restart it after a change.",
	},
	buffer.KindLocked: {
		titleLocked, "Nothing ends it. The database works: whatever writes in this table waits, with the rest of its transaction, so the application stands still where it inserts events. The relay tries again every few seconds, and continues when that transaction ends.",
		"Find out whose it is, and end it:",
	},
	"sink": {
		"sink unavailable", "Events wait, none becomes a dead letter. The relay probes the sink about every second and continues when it answers.",
		"Check that the sink runs, that it answers within its timeout, and that its url, credentials and address (stream, subject, path) are right. A relay reads relay.yaml and secrets at its start: restart it after a change.",
	},
	buffer.KindAccess: {
		"sink does not accept the credentials", "Events wait, none becomes a dead letter. The relay tries again every few seconds.",
		"Find out whether the token, key or password was changed, has expired, or lost its rights. A relay reads relay.yaml and secrets at its start: correct them, then restart the relay.",
	},
	buffer.KindFull: {
		"sink is full", "Events wait, none becomes a dead letter. The relay tries again every few seconds, and continues when there is space.",
		"Make space at the sink: raise its limit (maxmemory, the limits of the stream, the disk), or find out why its consumers are behind or stopped.",
	},
	"refusing": {
		"sink refuses what it gets", "One batch at a time is tried, at most every 5 seconds: a fresh one, the newest and the oldest that waits in turn. With the first success everything that waits is due, and what was refused for good, as with 400 or 422, becomes dead letters within seconds. Until then only an event that is refused retry.max_attempts times does.",
		"Read what the sink says. A wrong key or path looks like this: correct relay.yaml and restart the relay. If these events are bad, a few become dead letters by themselves. " + removeMany,
	},
	buffer.KindSome: {
		"sink refuses some events", "The sink accepted others less than a minute ago. Each time it accepts one, events that it refused for good, as with 400 or 422, become dead letters within seconds, whatever retry.max_attempts is. Between two that it accepts, one batch at a time is tried.",
		"Read what the sink says, and see which topics and errors the dead letters have. Correct what makes these events, or the sink. If it is wrong about them, pause the pipeline: then no more become dead letters. " + removeMany,
	},
	"stalled": {
		"stands still", "The relay keeps trying.",
		"See what doctor finds.",
	},
	buffer.KindAsked: {
		"sink asked to wait", "Nothing is sent before that time, as the sink asked. Events wait, none becomes a dead letter.",
		"Nothing, unless you know better: Retry now (relay retry --now) tries it at once.",
	},
	buffer.KindAnswer: {
		"results does not expect the answer", "Events wait, none becomes a dead letter. Nobody knows what of a batch was accepted, so the same batch is sent again at each try, under the same idempotency key: a sink that ignores the key has these events several times.",
		"Read the answer. If it is right, as after a wrong key, correct the sink's settings; otherwise correct results: relay preview --answer FILE --status N shows what it makes of an answer. Restart the relay after a change.",
	},
	buffer.KindRequest: {
		"request fails", "Nothing is sent. Events wait, and are tried again.",
		"Correct request with the help of Try it or relay preview, and restart the relay; or correct the events.",
	},
	buffer.KindStuck: {
		"some batches are stuck", "Other events are sent. The relay tries these again; an event that fails retry.max_attempts times while others are accepted becomes a dead letter.",
		"Read the error: correct the event, or the setting or program that it names; Try it shows the request of an event.",
	},
}

// problems returns what is wrong, the worst first. Since is not set.
func problems(s *Console, report *admin.Report) (all []problem) {
	notReady := map[string]bool{}
	starting := map[string]bool{}
	var reasons [][]admin.NotReadyReason
	databases := map[string]databaseError{} // why those of pipelines do not work
	locked := map[string]bool{}
	tableLocks := map[string]*admin.BlockerReport{} // of pipelines whose tables a transaction has locked as a whole
	for i := range report.Pipelines {
		p := &report.Pipelines[i]
		locked[p.Name] = p.LockedBy != nil
		if p.TableLockedBy != nil {
			tableLocks[p.Name] = p.TableLockedBy
		}
	}
	for i := range report.Errors {
		if b := report.Errors[i].TableLockedBy; b != nil {
			tableLocks[report.Errors[i].Name] = b
		}
	}
	for _, p := range s.config.Source.Pipelines() {
		of := p.NotReady()
		reasons = append(reasons, of)
		for i := range of {
			switch {
			case of[i].Kind == buffer.KindStarting: // no fault so far: the first check is under way
				starting[p.Name] = true
				notReady[p.Name+"/"+of[i].Sink] = true
			case of[i].Class == buffer.NotReadyDatabase:
				databases[p.Name] = s.databaseError(of[i].Err)
				if lock, ok := errors.AsType[*buffer.LockedError](of[i].Err); ok && tableLocks[p.Name] == nil {
					tableLocks[p.Name] = admin.NewLockReport(lock)
				}
			}
		}
	}
	for _, p := range s.config.Source.Pipelines() {
		if b := tableLocks[p.Name]; b != nil {
			all = append(all, s.lockProblem(p.Name, b))
		}
	}
	for _, e := range report.Errors {
		notReady[e.Name] = true
		if tableLocks[e.Name] != nil {
			continue
		}
		why := databases[e.Name]
		if starting[e.Name] && why.text == "" {
			continue
		}
		all = append(all, s.databaseProblem(e.Name, cmp.Or(why.text, e.Error), why)) // the former says more: which file has changed since the start
	}
	for _, of := range reasons {
		for _, n := range of {
			if n.Kind == buffer.KindStarting {
				continue
			}
			one := problemOf(n.Kind, n.Class)
			if notReady[n.Pipeline] && n.Class == "database" {
				continue
			}
			notReady[n.Pipeline+"/"+n.Sink] = true
			if n.Kind == buffer.NotReadyStalled && (locked[n.Pipeline] || tableLocks[n.Pipeline] != nil) {
				continue // the transaction is the cause
			}
			if n.Class == buffer.NotReadyDatabase && tableLocks[n.Pipeline] != nil && !errors.Is(n.Err, buffer.ErrNoWrites) {
				continue
			}
			found := problem{
				Pipeline: n.Pipeline, Sink: n.Sink, Server: s.servers[n.Pipeline+"/"+n.Sink], Title: one.title, Detail: s.config.Redact(n.Err.Error()), Alone: one.alone, Do: one.do,
				Link: pipelineLink(n.Pipeline) + waitsAnchor, LinkText: "what waits",
			}
			if n.Class == buffer.NotReadySink && s.othersDeliver(report, n.Pipeline, n.Sink) {
				found.Warning, found.Title = true, found.Title+", when this relay last sent; another one delivers"
				found.Alone = "Nothing waits. This relay has sent nothing since, and tries the sink with the next events that it gets. If the sink takes them, this ends."
				found.Do = "Nothing, if the cause is corrected. If this stays while this relay gets events, the two differ: a relay reads relay.yaml and secrets at its start, so restart this one."
			}
			if n.Class == buffer.NotReadyDatabase {
				if why := s.databaseError(n.Err); why.command != "" {
					all = append(all, s.databaseProblem(n.Pipeline, why.text, why))
					continue
				}
			}
			if n.Class == buffer.NotReadyDatabase || n.Class == buffer.NotReadyStalled {
				found.Link, found.LinkText = "doctor", "what doctor finds"
			}
			found.Cause = causeOf(n.Class)
			if n.Kind == buffer.KindSome {
				found.Refuses = true
				if hasDead(report, n.Pipeline, n.Sink) {
					found.Link, found.LinkText = deadLink(n.Pipeline, n.Sink), "which topics and errors"
				}
			}
			all = append(all, found)
		}
	}
	for i := range report.Pipelines {
		all = append(all, s.pipelineProblems(&report.Pipelines[i], notReady)...)
	}
	ends := map[string]bool{} // what ends a transaction that keeps events
	for i := range all {
		ends[all[i].Fix] = ends[all[i].Fix] || all[i].Fix != "" && !all[i].OnlyVacuum
	}
	all = slices.DeleteFunc(all, func(p problem) bool { return p.OnlyVacuum && ends[p.Fix] })
	all = merged(all)
	for i := range all {
		all[i].Detail = distinctLines(all[i].Detail)
	}
	slices.SortStableFunc(all, func(a, b problem) int { return a.rank() - b.rank() })
	return all
}

// lockProblem is that of a transaction that has locked a table of a pipeline as a whole.
func (s *Console) lockProblem(pipeline string, b *admin.BlockerReport) problem {
	of := kindProblem[buffer.KindLocked]
	one := problem{
		Pipeline: pipeline, Server: s.servers[pipeline], Title: of.title, Detail: s.config.Redact(b.Text), Alone: of.alone, Do: of.do, Fix: s.config.Redact(b.Fix), Joined: true,
		Link: "doctor", LinkText: "all open transactions",
	}
	switch {
	case b.Waiting == 1:
		one.Now = "1 session waits for it."
	case b.Waiting > 1:
		one.Now = admin.Count(int64(b.Waiting)) + " sessions wait for it."
	}
	return one
}

// hasDead reports whether a pipeline, or one of its several sinks, has open dead letters.
func hasDead(report *admin.Report, pipeline, sink string) bool {
	return slices.ContainsFunc(report.Pipelines, func(p admin.PipelineReport) bool {
		if p.Name != pipeline {
			return false
		}
		return sink == "" && p.Dead > 0 || slices.ContainsFunc(p.Sinks, func(of admin.SinkReport) bool { return of.Name == sink && of.Dead > 0 })
	})
}

// databaseError is why a database does not work.
type databaseError struct {
	text string
	// command makes what is missing; "" if something else is wrong. tables: whole tables are missing.
	command string
	tables  bool
}

func (s *Console) databaseError(err error) databaseError {
	e := databaseError{text: s.config.Redact(err.Error())}
	var missing interface {
		error
		Migrates() (command string, tables bool)
	}
	if errors.As(err, &missing) {
		e.command, e.tables = missing.Migrates()
	}
	return e
}

// databaseProblem is that of a database that does not work for a pipeline.
func (s *Console) databaseProblem(pipeline, text string, why databaseError) problem {
	of := kindProblem["database"]
	one := problem{Pipeline: pipeline, Server: s.servers[pipeline], Title: of.title, Detail: text, Alone: of.alone, Do: of.do}
	if why.command == "" {
		return one
	}
	one.Title, one.Joined = "tables are out of date", true
	if why.tables {
		one.Title = titleNoTables
	}
	one.Alone = "Nothing is sent. The relay looks every second, and begins when the tables are there. The database answers."
	one.Do, one.Fix = "Make them, with the configuration of this relay (after a restore: check first that this is the right database):", why.command
	if !strings.HasPrefix(why.command, "relay ") {
		one.Title = titleNoSchema
		one.Do = "Make the schema, as a role that may create one (after a restore: check first that this is the right database), then its tables with relay migrate -c relay.yaml:"
	}
	return one
}

// rank is where a problem stands: the lowest first.
func (p *problem) rank() int {
	switch {
	case !p.Warning:
		return 0
	case p.Deadly:
		return 1
	case p.Undated: // the relay continues
		return 3
	}
	return 2
}

// othersDeliver reports whether a relay of another process is ready to deliver to a sink, for which nothing waits.
func (s *Console) othersDeliver(report *admin.Report, pipeline, sink string) bool {
	for i := range report.Pipelines {
		p := &report.Pipelines[i]
		if p.Name != pipeline {
			continue
		}
		pending := p.Pending
		for k := range p.Sinks {
			if p.Sinks[k].Name == sink {
				pending = p.Sinks[k].Pending
			}
		}
		return pending == 0 && slices.ContainsFunc(p.Relays, func(r admin.RelayReport) bool {
			return r.Running && r.Sink == sink && r.NotReady == "" && !s.isThis(r.Owner)
		})
	}
	return false
}

// isThis reports whether an owner is of this process.
func (s *Console) isThis(owner string) bool { return strings.HasPrefix(owner, s.config.Process+"/") }

// merged makes one problem of a pipeline's dead letters and of what its sink says to the events that become some.
func merged(all []problem) []problem {
	at := map[string]int{}
	for i := range all {
		if all[i].Key == keyDead {
			at[all[i].Pipeline] = i
		}
	}
	isMerged := make([]bool, len(all))
	for i := range all {
		one := &all[i]
		k, found := at[one.Pipeline]
		if !found || i == k || all[k].Sink != "" && all[k].Sink != one.Sink {
			continue
		}
		dead := &all[k]
		switch {
		case one.Refuses:
			dead.Deadly = dead.Deadly || !one.Warning
			if said := causeOfText(one.Detail); dead.Said == "" || !strings.Contains(said, causeOfText(dead.Said)) {
				dead.Detail = strings.TrimSpace(dead.Detail + "\n" + one.Detail)
			}
			dead.Alone, dead.Do = aloneDying, doDying(one.Pipeline, one.Sink)
		case one.Title == titleWaits && dead.Said != "" && causeOfText(one.Said) == causeOfText(dead.Said):
			dead.Now = strings.TrimSpace(dead.Now + " " + strings.TrimSuffix(one.Detail, ": "+one.Said) + ".")
		default:
			continue
		}
		isMerged[i] = true
	}
	left := all[:0:0]
	for i := range all {
		if !isMerged[i] {
			left = append(left, all[i])
		}
	}
	return left
}

// The advice while events die is the same whichever relay or report says that they do.
const (
	doDead     = "See which errors and topics they have, correct the cause"
	replayThen = ", then replay them."
	aloneDying = "They stay until somebody replays or discards them. Each time the sink accepts an event, others that it refused for good, as with 400 or 422, become dead letters within seconds, whatever retry.max_attempts is."
)

// doDying is what to do while events become dead letters at a sink; "" is the only one of its pipeline.
func doDying(pipeline, sink string) string {
	what, button := "the pipeline", "Pause the pipeline"
	if sink != "" {
		what, button = "sink "+sink, "Pause sink "+sink
	}
	return fmt.Sprintf("%s: what makes these events, or the sink. Until then, or if the sink is wrong about them, pause %s (%s, on the page of %s): then no more become dead letters, and nothing else stops. Then replay them. %s", doDead, what, button, pipeline, removeMany)
}

// deadSink is the sink of all of a pipeline's dead letters; "" if they are of several, or there is a single one.
func deadSink(p *admin.PipelineReport) (name string) {
	for i := range p.Sinks {
		if one := &p.Sinks[i]; one.Dead > 0 {
			if name != "" || one.Name == buffer.Unrouted {
				return ""
			}
			name = one.Name
		}
	}
	return name
}

// problemOf is what a reason of a kind, or else of its class, means.
func problemOf(kind, class string) (p struct{ title, alone, do string }) {
	if p, ok := kindProblem[kind]; ok {
		return p
	}
	return kindProblem[class]
}

// causeOf is the Cause of a problem with such a class of a reason.
func causeOf(class string) string {
	if class == buffer.NotReadyRefusing || class == buffer.NotReadyStalled {
		return class
	}
	return ""
}

// blockerTitle says what blocks vacuum.
func blockerTitle(b *admin.BlockerReport) string {
	switch b.Kind {
	case string(buffer.BlockedByTransaction):
		return "a forgotten transaction blocks vacuum"
	case string(buffer.BlockedBySlot):
		return "a replication slot blocks vacuum"
	}
	return "a " + b.Kind + " blocks vacuum"
}

// lockAlone is what a transaction with locks in the event table does, for as long as it is open.
const lockAlone = "Nothing ends it. Rows that it has locked are not sent, or not deleted after they were sent, and with order: key no later event of their keys is sent. All other events are. The database's tables grow."

// canLockAlone is what one does that keeps no event, as far as is known.
func canLockAlone(p *admin.PipelineReport) string {
	const grows = " The database's tables grow."
	switch n := p.Batches.Delivered; {
	case n == 1:
		return "Nothing ends it. 1 batch was sent, and is not sent again; its events are deleted when that transaction ends. Nothing else waits for it." + grows
	case n > 1:
		return "Nothing ends it. " + admin.Count(n) + " batches were sent, and are not sent again; their events are deleted when that transaction ends. Nothing else waits for it." + grows
	}
	return "Nothing ends it. No event waits for it now, as far as is known. Rows that it has locked are not sent, or not deleted after they were sent." + grows
}

// waitsAnchor is where the page of a pipeline says what waits.
const waitsAnchor = "#waits"

func pipelineLink(name string) string { return "pipelines/" + url.PathEscape(name) }

// pipelineProblems are those that the database tells of. notReady names what is not ready in this process.
func (s *Console) pipelineProblems(p *admin.PipelineReport, notReady map[string]bool) (all []problem) {
	add := func(one problem) {
		one.Pipeline = p.Name
		all = append(all, one)
	}
	elsewhere := map[string]int{} // where a sink that is not ready in another process is
	for _, r := range p.Relays {
		if !r.Running || r.NotReady == "" || s.isThis(r.Owner) || notReady[p.Name+"/"+r.Sink] || p.LockedBy != nil && r.NotReadyKind == buffer.NotReadyStalled {
			continue
		}
		if p.TableLockedBy != nil && (r.NotReadyClass == buffer.NotReadyDatabase || r.NotReadyKind == buffer.NotReadyStalled) {
			continue
		}
		of := problemOf(r.NotReadyKind, r.NotReadyClass)
		one := problem{
			Sink: r.Sink, Server: s.servers[p.Name+"/"+r.Sink], Title: of.title, Detail: process(r.Owner) + ": " + r.NotReady, Cause: causeOf(r.NotReadyClass), Alone: of.alone, Do: of.do, Warning: true,
		}
		if r.NotReadyKind == buffer.KindSome { // it makes progress with the others: the same is true of the sink whichever relay says so
			one.Refuses = true
			one.Link, one.LinkText = pipelineLink(p.Name)+waitsAnchor, "what waits"
			if hasDead(&admin.Report{Pipelines: []admin.PipelineReport{*p}}, p.Name, r.Sink) {
				one.Link, one.LinkText = deadLink(p.Name, r.Sink), "which topics and errors"
			}
		} else {
			one.Title = "another relay makes no progress: " + cmp.Or(of.title, "see its log")
			one.Alone, one.Do = strings.TrimSpace("This relay does its work, as far as it can. "+of.alone), cmp.Or(of.do, "Look at the log of that process.")
		}
		if k, known := elsewhere[r.Sink]; known {
			if all[k].Title == one.Title {
				all[k].Detail = process(r.Owner) + ", " + all[k].Detail
				continue
			}
		} else {
			elsewhere[r.Sink] = len(all)
		}
		add(one)
	}
	paused := map[string]bool{} // by sink
	for i := range p.Pauses {
		one := &p.Pauses[i]
		paused[one.Sink] = true
		what, command, _ := strings.Cut(one.Text(p.Name), ". > ")
		add(problem{
			Sink: one.Sink, Title: titlePaused, Detail: what, Warning: true,
			Alone: "Nothing: it stays paused until somebody resumes it. Events wait.", Do: "Resume it here, or run " + command + ".", Link: pipelineLink(p.Name), LinkText: "resume",
		})
	}
	if p.ClaimingStopped != "" {
		add(problem{
			Title: "claiming stopped", Detail: p.ClaimingStopped, Alone: "Claiming continues when fewer batches wait. New events stay in the table.",
			Do: "Find out why the batches wait.", Link: pipelineLink(p.Name) + waitsAnchor, LinkText: "what waits",
		})
	}
	waits := func(sink string, waits []admin.WaitReport) {
		if notReady[p.Name+"/"+sink] || paused[""] || paused[sink] { // what waits is not tried while it is paused
			return
		}
		if k, known := elsewhere[sink]; known && !all[k].Refuses { // for that reason
			return
		}
		for _, w := range waits {
			add(problem{
				Sink: sink, Server: s.servers[p.Name+"/"+sink], Title: titleWaits, Detail: w.Text(), Warning: true, Cause: buffer.NotReadyRefusing, Said: w.Error,
				Alone: "They are sent again by themselves.", Do: "Read the error: the sink said so, or a program or projection of yours failed.", Link: pipelineLink(p.Name) + waitsAnchor, LinkText: "what waits",
			})
			return
		}
	}
	waits("", p.Waits)
	for _, one := range p.Sinks {
		waits(one.Name, one.Waits)
	}
	if p.Suspects != nil {
		add(problem{
			Title: "suspects", Detail: p.Suspects.Text(), Warning: true,
			Alone: "They are sent one at a time. An event that was alone in flight when a relay died, five times, becomes a dead letter.",
			Do:    "Find out why relays died: memory limits, a crash of the host.",
		})
	}
	for _, text := range p.SinkProblems {
		add(problem{Title: "sinks", Detail: text, Warning: true})
	}
	if b := p.LockedBy; b != nil {
		add(problem{
			Title: "stands still: a transaction holds locks in its table", Detail: b.Text, Cause: buffer.NotReadyStalled,
			Alone: "Nothing ends it. The relay does not claim rows that are locked, and with order: key no later event of their keys. It continues when that transaction ends.",
			Do:    "Find out whose it is, and end it:", Fix: b.Fix, Link: "doctor", LinkText: "all open transactions",
		})
	}
	if b := p.RowsLockedBy; b != nil && p.LockedBy == nil && p.LockKeepsEvents() {
		add(problem{
			Title: "a transaction blocks events: it holds locks in their table", Detail: b.Text, Warning: true, Deadly: true, Cause: causeLock,
			Now:   fmt.Sprintf("%s; the oldest waits for %s.", pendingText(p.Pending), admin.Oldest(p.Pending, p.OldestPendingSeconds, "")),
			Alone: lockAlone, Do: "Find out whose it is, and end it:", Fix: b.Fix, Link: "doctor", LinkText: "all open transactions",
		})
	}
	if b := p.VacuumBlockedBy; b != nil && (p.LockedBy == nil || p.LockedBy.Fix != b.Fix) && (p.RowsLockedBy == nil || p.RowsLockedBy.Fix != b.Fix || !p.LockKeepsEvents()) {
		one := problem{
			Title: blockerTitle(b), Detail: b.Text, Warning: true,
			Alone: "Nothing ends it. It keeps no event from being sent, but the database's tables grow.",
			Do:    "Find out whose it is, and end it:", Fix: b.Fix, Link: "doctor", LinkText: "all that block vacuum", OnlyVacuum: true,
		}
		if b.LocksBuffer {
			one.Title, one.Alone = "a transaction can block events: it holds locks in their table", canLockAlone(p)
			if p.Pending > 0 {
				one.Alone = lockAlone
			}
		}
		add(one)
	}
	if names := s.gone(p); names != nil {
		add(problem{
			Title: map[bool]string{true: "a relay is gone", false: "relays are gone"}[len(names) == 1], Warning: true,
			Detail: strings.Join(names, ", ") + " did not stop in order: it was killed, hangs, or cannot reach the database, and no other relay has started since.",
			Alone:  "The others do its work, and take its batches over when their leases end.", Do: "Find out why it ended: its log, memory limits, a crash of the host. Start it again.",
		})
	}
	if p.Hook != nil {
		for _, w := range p.Hook.Waits {
			add(problem{
				Title: "the dead-letter hook fails", Detail: w.Text(), Warning: true,
				Alone: "It is notified again until it answers; nothing is lost.", Do: "Check dead_letter.hook.",
			})
		}
	}
	if p.Dead > 0 {
		deaths := s.history.deathsAt(p.Name, p.Sinks)
		cause := s.deadCauses.get(p.Name)
		one := problem{
			Sink: deadSink(p), Title: fmt.Sprintf("%s dead letter%s", admin.Count(p.Dead), map[bool]string{true: "", false: "s"}[p.Dead == 1]), Warning: true,
			Key: keyDead, Detail: cause.text, Said: cause.error, Began: cause.began,
			Alone: "Nothing: they stay until somebody replays or discards them.", Do: doDead + replayThen, LinkText: "errors and topics",
		}
		one.Link = deadLink(p.Name, one.Sink)
		for _, of := range deaths {
			one.Deadly = one.Deadly || of.many()
			one.Now = strings.TrimSpace(one.Now + " " + of.text(of.name(p.Name)))
		}
		if deaths != nil {
			one.Alone, one.Do = aloneDying, doDying(p.Name, deaths[0].sink)
		}
		add(one)
	}
	for _, text := range p.Notices { // last: the relay continues
		add(problem{Title: "worth a look", Detail: text, Alone: "The relay continues.", Warning: true, Undated: true})
	}
	return all
}

// goneFor is for how long a relay that is gone is missed.
const goneFor = time.Hour

// gone are the processes that worked on a pipeline, neither run nor stopped in order, and after whose last report no other one started, while another one runs.
func (s *Console) gone(p *admin.PipelineReport) (names []string) {
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
	used := map[string]bool{} // a new process replaces one
	runs := false
	for i := range all {
		runs = runs || all[i].runs
	}
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
		names = append(names, fmt.Sprintf("relay %s, which reported last %s ago", one.name, admin.Age(time.Duration(one.seen*float64(time.Second)))))
	}
	if !runs {
		return nil
	}
	return names
}

// process is an owner without its pipeline: host/pid.
func process(owner string) string {
	if parts := strings.SplitN(owner, "/", 3); len(parts) == 3 {
		return parts[0] + "/" + parts[1]
	}
	return owner
}
