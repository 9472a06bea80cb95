package admin

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Report is the status of all pipelines in `relay status --json` and GET /api/status.
type Report struct {
	Pipelines []PipelineReport `json:"pipelines"`
	// Errors has the pipelines whose status could not be read. The command prints
	// them on standard error instead.
	Errors []ReportError `json:"errors,omitempty"`
}

// PipelineReport is the status of one pipeline.
type PipelineReport struct {
	Name string `json:"name"`
	// Server is the database's, by which pipelines of one are told; "" if nobody asks.
	Server  string `json:"-"`
	Pending int64  `json:"pending"`
	// OldestPendingSeconds is the age of the oldest pending event: 0 if there is none, null if nothing says it.
	OldestPendingSeconds *float64 `json:"oldest_pending_seconds"`
	Batches              Batches  `json:"batches"`
	Dead                 int64    `json:"dead"`
	// Delayed are the events whose available_at has not come, which are not pending; nil if there are none.
	Delayed *DelayedReport `json:"delayed,omitempty"`
	// State says in words what the pipeline does: paused 3m, no relay, sink down 3m, sink full 3m, no access 3m, refusing 3m, db error 3m, table locked 3m, stalled 3m, some stuck 3m, asked to wait 28m, trying sink, sending, due, retries in 2m 3s, deleting, stands still 1m, waits for its schedule, idle; "" if there are several sinks, which
	// have their own.
	State string `json:"state,omitempty"`
	// Deliveries is how fast events are delivered; with several sinks an event counts once at each of them.
	Deliveries Deliveries `json:"deliveries"`
	// Relays are the processes that work on the pipeline, and those of the last day.
	Relays []RelayReport `json:"relays,omitempty"`
	// RelayProblems say that no relay runs, or why those that run make no progress.
	RelayProblems []string `json:"relay_problems,omitempty"`
	// Ended is what one of RelayProblems says of relays that did not stop in order.
	Ended Ended `json:"-"`
	// Notices are what else running relays say of themselves, although they may make progress: a slow sink, for example.
	Notices []string `json:"notices,omitempty"`
	// NothingSent is why nothing is sent although the buffer can be read: the projection of a custom table cannot be run, or the database takes no
	// writes.
	NothingSent string `json:"nothing_is_sent,omitempty"`
	// DiskFull says that the disk of the database is full, so that applications cannot commit, and what to do. Only relay status sets it; a running relay is not
	// ready then.
	DiskFull string `json:"disk_full,omitempty"`
	// Sinks are several sinks; nil for a single one. An event that several of them do not have is in Pending once.
	Sinks []SinkReport `json:"sinks,omitempty"`
	// Waits are why batches wait, the most frequent reasons first; nil if there are several sinks, which have their own.
	Waits []WaitReport `json:"waits,omitempty"`
	// Untried are batches that wait and were not tried yet; nil if there are none, or there are several sinks.
	Untried *WaitReport `json:"-"`
	// Pauses are what is paused, the pipeline first.
	Pauses []PauseReport `json:"pauses,omitempty"`
	// ClaimingStopped says that so many batches wait that no others are claimed.
	ClaimingStopped string `json:"claiming_stopped,omitempty"`
	// Hook is what waits for the dead-letter hook; nil if nothing does.
	Hook *HookReport `json:"dead_letter_hook,omitempty"`
	// Suspects are the batches that are sent one at a time, with nothing else in flight.
	Suspects *SuspectsReport `json:"suspects,omitempty"`
	// VacuumBlockedBy is the oldest transaction that blocks vacuum, if it is old enough for a warning.
	VacuumBlockedBy *BlockerReport `json:"vacuum_blocked_by,omitempty"`
	// LockedBy is RowsLockedBy while the pipeline stands still.
	LockedBy *BlockerReport `json:"locked_by,omitempty"`
	// RowsLockedBy is the oldest transaction that holds locks in the event table, or that one with such locks waits for, if it is [buffer.LockAge] old, whether the pipeline stands
	// still or not.
	RowsLockedBy *BlockerReport `json:"-"`
	// LocksSeenAt is when this process last looked for locks, by its clock; zero if it does not look, or could not.
	LocksSeenAt time.Time `json:"-"`
	// TableLockedBy is the transaction that has locked one of the pipeline's tables as a whole. The application cannot insert events, or the relay cannot claim or settle them.
	TableLockedBy *BlockerReport `json:"table_locked_by,omitempty"`
	// HiddenTransaction is open for some seconds at least, and the relay's role may not see since when: what it is, and the statement that lets the role
	// see it. Only relay status sets it; the running relay observes how long it is open.
	HiddenTransaction string `json:"hidden_transaction,omitempty"`
	// SinkProblems are what is wrong with the sinks that the events are routed to, each with what to do.
	SinkProblems []string `json:"sink_problems,omitempty"`
}

// BlockerReport is a transaction, prepared transaction or replication slot that blocks vacuum.
type BlockerReport struct {
	Kind        string  `json:"kind"`
	Name        string  `json:"name,omitempty"`
	PID         int     `json:"pid,omitempty"`
	Application string  `json:"application,omitempty"`
	User        string  `json:"user,omitempty"`
	Database    string  `json:"database,omitempty"`
	State       string  `json:"state,omitempty"`
	AgeSeconds  float64 `json:"age_seconds"`
	// QueryAgeSeconds is the time since its last query started, if known.
	QueryAgeSeconds float64 `json:"query_age_seconds,omitempty"`
	Behind          int64   `json:"behind"`
	// Locks are the tables in which it may hold locks on rows, as schema.table.
	Locks []string `json:"locks,omitempty"`
	// LocksBuffer: the pipeline's event table is one of them. WritersWait: it is not, and a transaction that may hold such locks in the event table waits for this one.
	LocksBuffer bool `json:"-"`
	WritersWait bool `json:"-"`
	// BeganAt is when the transaction began, by the database's clock; zero if that is not known. With the process it distinguishes one from those before.
	BeganAt time.Time `json:"-"`
	// Waiting is how many sessions wait for it, if it has locked a table as a whole.
	Waiting int `json:"waiting,omitempty"`
	// Text describes it in one line, and Fix is how to end it.
	Text string `json:"text"`
	Fix  string `json:"fix,omitempty"`
}

// NewBlockerReport returns the report of a vacuum blocker.
func NewBlockerReport(h buffer.VacuumBlocker) *BlockerReport {
	return &BlockerReport{
		Kind: string(h.Kind), Name: h.Name, PID: h.PID, Application: h.Application, User: h.User, Database: h.Database, State: h.State,
		AgeSeconds: h.Age.Round(time.Millisecond).Seconds(), QueryAgeSeconds: h.QueryAge.Round(time.Millisecond).Seconds(),
		Behind: h.Behind, Locks: h.Locks, BeganAt: h.BeganAt, Text: h.String(), Fix: h.Fix,
	}
}

// NewLockReport returns the report of a transaction that has locked a table as a whole.
func NewLockReport(e *buffer.LockedError) *BlockerReport {
	b := NewBlockerReport(*e.Holder)
	b.Text, b.Fix, b.Waiting = e.Text, e.Fix, e.Holder.Waiting
	return b
}

// SetTableLocker adds the transaction that has locked a table of the pipeline as a whole. What else it blocks is not said again.
func (p *PipelineReport) SetTableLocker(e *buffer.LockedError) {
	p.TableLockedBy = NewLockReport(e)
	for _, also := range []**BlockerReport{&p.LockedBy, &p.RowsLockedBy, &p.VacuumBlockedBy} {
		if b := *also; b != nil && b.Kind == p.TableLockedBy.Kind && b.PID == p.TableLockedBy.PID && b.Name == p.TableLockedBy.Name {
			*also = nil
		}
	}
}

// SetLocker adds the oldest transaction that holds locks in the event table, or that one with such locks waits for; holds: the former. See [buffer.Locker].
func (p *PipelineReport) SetLocker(h buffer.VacuumBlocker, holds bool) {
	if b := p.VacuumBlockedBy; b != nil && b.Kind == string(h.Kind) && b.PID == h.PID && b.Name == h.Name {
		b.LocksBuffer, b.WritersWait = holds, !holds
	}
	p.RowsLockedBy = NewBlockerReport(h)
	p.RowsLockedBy.LocksBuffer, p.RowsLockedBy.WritersWait = holds, !holds
	if p.standsStill() {
		p.LockedBy = p.RowsLockedBy
	}
}

// longWait is how old an event may be before a transaction that holds locks in the event table is said to keep it.
const longWait = time.Minute

// unclaimedWait is how old an event may be if no batch is live, which could have it, and a relay runs.
const unclaimedWait = 10 * time.Second

// LockKeepsEvents reports whether a transaction holds locks in the event table and an event has waited for a minute or longer, or for some seconds and in no batch, although
// the pipeline may not stand still, and nothing waits for another reason.
func (p *PipelineReport) LockKeepsEvents() bool {
	if p.RowsLockedBy == nil || p.Pending == 0 || p.OldestPendingSeconds == nil {
		return false
	}
	if p.Waits != nil || p.Pauses != nil || slices.ContainsFunc(p.Sinks, func(s SinkReport) bool { return s.Waits != nil }) {
		return false
	}
	wait := longWait
	if p.Batches == (Batches{Delivered: p.Batches.Delivered}) && p.State != scheduled && slices.ContainsFunc(p.Relays, func(r RelayReport) bool { return r.Running }) {
		wait = unclaimedWait
	}
	return *p.OldestPendingSeconds >= wait.Seconds()
}

// RowLocksText says which events a transaction with locks in the event table keeps, although the pipeline does not stand still, and how to end it; "" if none, as far as is known.
func (p *PipelineReport) RowLocksText() string {
	b := p.RowsLockedBy
	switch n := p.Batches.Delivered; {
	case b == nil || p.LockedBy != nil:
		return ""
	case n == 1:
		return "1 batch was sent, and is deleted when no other transaction locks its rows: " + b.Text + ". > " + b.Fix
	case n > 1:
		return Count(n) + " batches were sent, and are deleted when no other transaction locks their rows: " + b.Text + ". > " + b.Fix
	case b.AgeSeconds > 0 && p.LockKeepsEvents(): // one of unknown age may have begun just now
		return "rows that are locked are not sent: " + b.Text + ". > " + b.Fix
	}
	return ""
}

// standsStill reports whether events wait and nothing is claimed, or a relay says so.
func (p *PipelineReport) standsStill() bool {
	still := func(state string) bool {
		return strings.HasPrefix(state, standsStill) || strings.HasPrefix(state, "stalled")
	}
	for _, s := range p.Sinks {
		if still(s.State) || s.Name == buffer.Unrouted && s.Pending > 0 && s.OldestPendingSeconds != nil && *s.OldestPendingSeconds >= buffer.LockAge.Seconds() {
			return true
		}
	}
	return still(p.State)
}

// scheduled is the state of a pipeline that claims at certain times only, while it does not.
const scheduled = "waits for its schedule"

// SetScheduled says that the pipeline claims at certain times only.
func (p *PipelineReport) SetScheduled() {
	for _, state := range append(p.sinkStates(), &p.State) {
		if strings.HasPrefix(*state, standsStill) {
			*state = scheduled
		}
	}
}

// WaitReport is a reason why batches wait.
type WaitReport struct {
	Error   string `json:"error"`
	Batches int64  `json:"batches"`
	Events  int64  `json:"events"`
	// DueInSeconds is until the first of them is due, LastDueInSeconds until the last is; 0 if they are due.
	DueInSeconds     float64 `json:"due_in_seconds"`
	LastDueInSeconds float64 `json:"last_due_in_seconds"`
	// Early reports whether a relay runs that tries the sink, or the address that they wait for, every few seconds, and sends them once it accepts
	// events: they are due at the latest.
	Early bool `json:"early,omitempty"`
}

// HookReport is the open dead letters that their dead-letter hook was not notified of, and why batches of them wait; none wait while they are
// on their way, or no relay runs.
type HookReport struct {
	Unnotified int64        `json:"unnotified"`
	Waits      []WaitReport `json:"waits"`
}

// Text describes the reason in one line.
func (w WaitReport) Text() string {
	seconds := func(s float64) string { return Age(time.Duration(s * float64(time.Second))) }
	due := "due now"
	if w.Early {
		due = "due once the sink takes events (tried every few seconds)"
	}
	switch first, last := seconds(w.DueInSeconds), seconds(w.LastDueInSeconds); {
	case w.LastDueInSeconds <= 0:
	case w.Early:
		due = "due once the sink takes events (tried every few seconds), in " + last + " at the latest"
	case w.DueInSeconds <= 0:
		due = "due within " + last
	case first == last:
		due = "due in " + last
	default:
		due = "due in " + first + " to " + last
	}
	batches := "1 batch waits"
	if w.Batches != 1 {
		batches = Count(w.Batches) + " batches wait"
	}
	events := "1 event"
	if w.Events != 1 {
		events = Count(w.Events) + " events"
	}
	return fmt.Sprintf("%s (%s), %s: %s", batches, events, due, w.Error)
}

// SuspectsReport is the batches that several owners in a row did not finish.
type SuspectsReport struct {
	Batches int64 `json:"batches"`
	// OldestSeconds is how long ago the first of them was claimed.
	OldestSeconds float64 `json:"oldest_seconds"`
}

// Text describes them in one line.
func (s SuspectsReport) Text() string {
	batches, them := "1 batch is", "it"
	if s.Batches != 1 {
		batches, them = Count(s.Batches)+" batches are", "them"
	}
	return fmt.Sprintf("%s sent one at a time, with nothing else in flight, because two or more owners in a row did not finish %s; the oldest was claimed %s ago",
		batches, them, Age(time.Duration(s.OldestSeconds*float64(time.Second))))
}

// Batches are the live batches by state.
type Batches struct {
	Leased    int64 `json:"leased"`
	Waiting   int64 `json:"waiting"`
	Delivered int64 `json:"delivered"`
}

// ReportError says why the status of a pipeline could not be read.
type ReportError struct {
	Name  string `json:"name"`
	Error string `json:"error"`
	// TableLockedBy is the transaction that has locked a table as a whole, if that is why.
	TableLockedBy *BlockerReport `json:"table_locked_by,omitempty"`
}

// NewPipelineReport returns the report of a pipeline, without the secrets that redact removes. sinks are the names of several configured
// sinks; nil for a single one. notifies reports whether a sink's dead letters have a hook.
func NewPipelineReport(
	name string, maxWaiting int, sinks []string, notifies func(sink string) bool, s buffer.Status, redact func(string) string,
) PipelineReport {
	var hook *HookReport
	unnotified := unnotified(&s, notifies)
	if waits := waitReports(s.HookWaits, slices.ContainsFunc(s.Relays, func(r buffer.Relay) bool { return r.Runs() }), redact); len(waits) > 0 || unnotified > 0 {
		hook = &HookReport{Unnotified: unnotified, Waits: append([]WaitReport{}, waits...)}
	}
	var suspects *SuspectsReport
	if s.Suspects > 0 {
		suspects = &SuspectsReport{Batches: s.Suspects, OldestSeconds: s.OldestSuspect.Round(time.Millisecond).Seconds()}
	}
	var problems []string
	for _, f := range append(Unserved(&s, sinks), s.SinkFindings...) {
		problems = append(problems, redact(f.Subject+": "+f.Text+". "+f.Fix))
	}
	relayProblems, ended := relayProblems(&s, sinks, redact)
	state := ""
	if sinks == nil {
		state = cmp.Or(pausedState(s.Pauses, ""), pipelineState(&s))
	}
	return PipelineReport{
		SinkProblems: problems, State: state, Deliveries: deliveries(s.Relays, func(string) bool { return true }),
		Relays: relayReports(s.Relays, redact), RelayProblems: relayProblems, Ended: ended, Notices: relayNotices(s.Relays, sinks, redact),
		Pauses: NewPauseReports(s.Pauses, redact),
		Sinks:  sinkReports(sinks, s.Sinks, &s, redact), Waits: waitReports(s.Waits, tries(s.Relays, ""), redact), Untried: untried(s.Waits), ClaimingStopped: claimingStopped(maxWaiting, sinks, &s), Hook: hook, Suspects: suspects,
		Name: name, Pending: s.Pending,
		OldestPendingSeconds: oldestSeconds(s.OldestPending, s.AgeUnknown),
		Batches:              Batches{Leased: s.Leased, Waiting: s.Waiting, Delivered: s.Delivered},
		Dead:                 s.Dead,
		Delayed:              delayedReport(&s, time.Now()),
	}
}

// DelayedReport says how many events are delayed.
type DelayedReport struct {
	Events int64 `json:"events"`
	// NextAt is when the next of them becomes available; zero if that is more than a year away.
	NextAt time.Time `json:"next_at,omitzero"`
}

// farAway is how far ahead a delayed event is looked at: buffers count more as a year.
const farAway = 365 * 24 * time.Hour

func delayedReport(s *buffer.Status, now time.Time) *DelayedReport {
	if s.Delayed == 0 {
		return nil
	}
	report := &DelayedReport{Events: s.Delayed}
	if s.NextDelayed < farAway {
		report.NextAt = now.Add(s.NextDelayed).UTC().Truncate(time.Millisecond)
	}
	return report
}

// Text is a line for people.
func (d *DelayedReport) Text() string {
	if d.NextAt.IsZero() {
		return "delayed: " + Pending(d.Events) + ", next in more than a year"
	}
	return "delayed: " + Pending(d.Events) + ", next at " + d.NextAt.Format(time.RFC3339)
}

// unnotified counts the open dead letters that a hook is to be notified of.
func unnotified(s *buffer.Status, notifies func(sink string) bool) (n int64) {
	if s.Sinks == nil {
		if notifies("") {
			n = s.Unnotified
		}
		return n
	}
	for i := range s.Sinks {
		if notifies(s.Sinks[i].Name) {
			n += s.Sinks[i].Unnotified
		}
	}
	return n
}

// SetNothingSent sets why nothing is sent. Relays that are not ready for that reason need not say it again. If the database takes no writes,
// those that run cannot say that they do.
func (p *PipelineReport) SetNothingSent(text string, noWrites bool) {
	p.NothingSent = text
	p.RelayProblems = slices.DeleteFunc(p.RelayProblems, func(problem string) bool { return strings.Contains(problem, text) })
	if !noWrites || slices.ContainsFunc(p.Relays, func(r RelayReport) bool { return r.Running }) {
		return
	}
	p.RelayProblems = nil // that no relay runs
	for _, state := range append(p.sinkStates(), &p.State) {
		if *state == noRelay {
			*state = states[buffer.NotReadyDatabase]
		}
	}
}

func (p *PipelineReport) sinkStates() (all []*string) {
	for i := range p.Sinks {
		all = append(all, &p.Sinks[i].State)
	}
	return all
}

// oldestSeconds returns the age of the oldest pending event; nil if it is unknown.
func oldestSeconds(age time.Duration, unknown bool) *float64 {
	if unknown {
		return nil
	}
	seconds := age.Round(time.Millisecond).Seconds()
	return &seconds
}

// Oldest is the age of the oldest of pending events, for people.
func Oldest(pending int64, seconds *float64, none string) string {
	switch {
	case pending == 0:
		return none
	case seconds == nil:
		return "unknown"
	}
	return Age(time.Duration(*seconds * float64(time.Second)))
}

// waitReports returns the reports of reasons; tried reports whether a relay tries the sink.
func waitReports(all []buffer.Wait, tried bool, redact func(string) string) (reports []WaitReport) {
	known := map[string]int{}
	for _, w := range all {
		if w.Error == "" { // it is only due soon
			continue
		}
		cause := causeOf(w.Error)
		if k, ok := known[cause]; ok && reports[k].Early == (tried && w.Early) {
			reports[k].add(w)
			continue
		}
		known[cause] = len(reports)
		reports = append(reports, WaitReport{
			Error: redact(w.Error), Batches: w.Batches, Events: w.Events,
			DueInSeconds: max(0, w.First).Round(time.Millisecond).Seconds(), LastDueInSeconds: max(0, w.Last).Round(time.Millisecond).Seconds(),
			Early: tried && w.Early,
		})
	}
	slices.SortStableFunc(reports, func(a, b WaitReport) int { return cmp.Compare(b.Batches, a.Batches) })
	return reports[:min(len(reports), maxWaits)]
}

// maxWaits is how many reasons a report has, once those of one cause are one.
const maxWaits = 3

// untried are the batches that wait without that anything was said of them: they were claimed, and then no relay could send them.
func untried(all []buffer.Wait) *WaitReport {
	for _, w := range all {
		if w.Error == "" {
			return &WaitReport{Batches: w.Batches, Events: w.Events}
		}
	}
	return nil
}

// CauseOf is what errors of the same cause have in common: numbers, ids, addresses at the sink and the position in the batch make no difference.
func CauseOf(text string) string { return causeOf(text) }

// causeOf is what errors of the same cause have in common: that a batch was deferred for it, numbers and ids, the address at the sink, and which event met it, make no difference.
func causeOf(text string) string {
	return generalized(WithoutAddress(strings.TrimPrefix(text, "deferred: ")))
}

// WithoutAddress is an error without the address at the sink, such as a stream or subject, and without which event of the batch met it.
func WithoutAddress(text string) string { return addressText.ReplaceAllString(text, "") }

// addressText is an address at a sink, and which event of a batch met an error.
var addressText = regexp.MustCompile(`\b(?:redis (?:stream|list|publish|channel|sidekiq|asynq)|subject|queue) "(?:[^"\\]|\\.)*"| \(at event \d+ of \d+\)`)

// add counts batches that wait for the same cause.
func (w *WaitReport) add(other buffer.Wait) {
	w.Batches += other.Batches
	w.Events += other.Events
	w.DueInSeconds = min(w.DueInSeconds, max(0, other.First).Round(time.Millisecond).Seconds())
	w.LastDueInSeconds = max(w.LastDueInSeconds, max(0, other.Last).Round(time.Millisecond).Seconds())
}
