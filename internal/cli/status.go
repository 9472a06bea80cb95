package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/supervisor"
)

// statusTimeout is how long a database may take to respond.
const statusTimeout = 10 * time.Second

// watchEvery is how often --watch shows the status.
const watchEvery = 2 * time.Second

func (a *app) statusCommand() *cobra.Command {
	var (
		asJSON, watch bool
		pipeline      string
	)
	c := a.withoutSinks(&cobra.Command{
		Use:   "status",
		Short: "Show backlog, delivery rate, dead letters, and why nothing moves",
		Long: `Status reads the backlog of every pipeline from its database, which relays run, what
they delivered in the last minute, and why batches wait and until when, those of the
dead-letter hook too. It changes nothing and works without a running relay. If a
database cannot be reached, status prints the error, shows the other pipelines and
exits with 1.

The states: no relay (none runs), sending, due (a relay sends it next), retries in 2m,
trying sink (batches wait for the sink, which is tried every few seconds), deleting
(sent, the delete is repeated), idle. While no relay is ready, the state is the reason and
since when: sink down 3m, sink full 3m, no access 3m (the sink does not accept the
credentials), refusing 3m, db error 3m, table locked 3m (a transaction has locked a table
as a whole), stalled 3m.`,
		Example: "  relay status -c relay.yaml\n  relay status -c relay.yaml --watch\n  relay status -c relay.yaml --pipeline orders --json",
	}, func(c *cobra.Command, cfg *config.Config) error {
		if asJSON && watch {
			return usage("--watch is used together with --json; expected one of them")
		}
		if err := cfg.CheckSources(); err != nil {
			return err
		}
		selected, err := selectPipelines(cfg, pipeline)
		if err != nil {
			return err
		}
		s, err := openStatus(selected)
		if err != nil {
			return err
		}
		s.admin = cfg.Admin
		defer s.close()
		if watch {
			return a.watchStatus(c.Context(), s)
		}
		report, errs := s.read(c.Context(), a.redact)
		for _, err := range errs {
			a.fail(err)
		}
		if asJSON {
			return a.printJSON(report)
		}
		if len(report.Pipelines) == 0 {
			return nil
		}
		_, err = io.WriteString(a.stdout, a.forFile(statusTable(report, terminalWidth(a.stdout))))
		return err
	})
	c.Flags().StringVar(&pipeline, "pipeline", "", "only this pipeline")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show it again every 2 seconds, until Ctrl-C")
	return c
}

// watchStatus shows the status again and again: in place on a terminal, otherwise one below the other.
func (a *app) watchStatus(ctx context.Context, s *statusReader) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	before := ""
	for {
		report, errs := s.read(ctx, a.redact)
		if ctx.Err() != nil {
			return nil
		}
		text := before + time.Now().Format(time.DateTime) + "\n"
		if len(report.Pipelines) > 0 {
			text += a.forFile(statusTable(report, terminalWidth(a.stdout)))
		}
		for _, err := range errs {
			text += oneLine(a.redact(err.Error())) + "\n"
		}
		if isTerminal(a.stdout) {
			text = "\x1b[H\x1b[2J" + text
		} else {
			before = "\n"
		}
		if _, err := io.WriteString(a.stdout, text); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// statusReader reads the status of all pipelines.
type statusReader struct {
	pipelines []*config.Pipeline
	buffers   []buffer.Buffer
	admin     config.Admin
}

func openStatus(pipelines []*config.Pipeline) (*statusReader, error) {
	s := new(statusReader)
	for _, p := range pipelines {
		b, err := p.OpenBuffer("status")
		if err != nil {
			s.close()
			return nil, err
		}
		s.pipelines, s.buffers = append(s.pipelines, p), append(s.buffers, b)
	}
	return s, nil
}

func (s *statusReader) close() {
	for _, b := range s.buffers {
		_ = b.Close() // nothing was written
	}
}

// read reads the status of all pipelines concurrently. It leaves out those with an error.
func (s *statusReader) read(ctx context.Context, redact func(string) string) (admin.Report, []error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var (
		wait     sync.WaitGroup
		statuses = make([]buffer.Status, len(s.buffers))
		wrong    = make([]error, len(s.buffers))
		blockers = make([]blockers, len(s.buffers))
		failed   = make([]error, len(s.buffers))
		errs     []error
	)
	for i, b := range s.buffers {
		wait.Go(func() {
			statuses[i], blockers[i], failed[i] = status(ctx, s.pipelines[i], b)
			if failed[i] == nil {
				wrong[i] = admin.Unsendable(ctx, b)
			}
		})
	}
	wait.Wait()
	report := admin.Report{Pipelines: []admin.PipelineReport{}}
	for i, err := range failed {
		p := s.pipelines[i]
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p.Name, err))
			continue
		}
		one := admin.NewPipelineReport(p.Name, p.MaxWaiting, p.SinkNames(), deadLettersOf(p, s.buffers[i]).Notifies, statuses[i], redact)
		one.Server = p.Source.URL.String()
		if wrong[i] != nil {
			one.SetNothingSent(redact(wrong[i].Error()), errors.Is(wrong[i], buffer.ErrNoWrites))
		}
		if worst := blockers[i].worst; worst != nil {
			one.VacuumBlockedBy = admin.NewBlockerReport(*worst)
		}
		if locker := blockers[i].locker; locker != nil {
			one.SetLocker(*locker, blockers[i].holds)
		}
		if locked := blockers[i].locked; locked != nil {
			one.SetTableLocker(locked)
		}
		if p.Scheduled() {
			one.SetScheduled()
		}
		if full := blockers[i].full; full != nil && wrong[i] == nil {
			one.DiskFull = redact(full.Error()) + ": applications cannot commit. > free space on the disk of the database"
		}
		for _, f := range blockers[i].left {
			one.Notices = append(one.Notices, redact(f.Text+". > "+f.Fix))
		}
		for _, f := range blockers[i].hidden {
			one.HiddenTransaction = redact(f.Text + ". > " + f.Fix)
		}
		if !slices.ContainsFunc(one.Relays, func(r admin.RelayReport) bool { return r.Running }) {
			if says := localRelay(ctx, s.admin, p.Name); says != "" {
				one.RelayProblems = []string{redact(says)}
			}
		}
		report.Pipelines = append(report.Pipelines, one)
	}
	return report, errs
}

// blockers are what blocks vacuum in a database, and what is not sent from it.
type blockers struct {
	// worst is the oldest, if it is older than warn_after.
	worst *buffer.VacuumBlocker
	// locker is the oldest transaction with locks in the event table, or that one with such locks waits for; holds: the former.
	locker *buffer.VacuumBlocker
	holds  bool
	// locked is the transaction that has locked one of the pipeline's tables as a whole; nil if none has.
	locked *buffer.LockedError
	// hidden is a transaction whose age the role may not see.
	hidden []buffer.Finding
	// full is why the application cannot commit although the database can be read; nil if it can.
	full error
	// left are tables of the pipeline that it does not send from any more.
	left []buffer.Finding
}

// hiddenTransactions finds them; see postgres.Buffer.
type hiddenTransactions interface {
	HiddenTransactions(ctx context.Context, before []buffer.VacuumBlocker) ([]buffer.Finding, error)
}

// alsoOwned finds tables that a pipeline owned before; see postgres.Buffer.
type alsoOwned interface {
	AlsoOwned(ctx context.Context) ([]buffer.Finding, error)
}

// status returns the status of a buffer, what blocks vacuum, and what the pipeline left behind.
func status(ctx context.Context, p *config.Pipeline, b buffer.Buffer) (s buffer.Status, found blockers, err error) {
	s, err = b.Status(ctx)
	if err != nil {
		return s, found, err
	}
	if owner, ok := b.(alsoOwned); ok {
		if found.left, err = owner.AlsoOwned(ctx); err != nil {
			return s, found, err
		}
	}
	source, ok := b.(supervisor.Source)
	if !ok {
		return s, found, nil
	}
	if space, ok := b.(buffer.SpaceChecker); ok {
		found.full = space.CheckSpace(ctx)
	}
	all, err := source.Blockers(ctx)
	if err != nil {
		return s, found, err
	}
	if named, ok := b.(interface{ BufferTable() string }); ok {
		found.locker = buffer.Locker(all, named.BufferTable())
		found.holds = found.locker != nil && found.locker.Holds(named.BufferTable())
	}
	if named, ok := b.(interface{ LockableTables() []string }); ok {
		found.locked = buffer.TableLocker(all, named.LockableTables()...)
	}
	for i := range all {
		if root := buffer.Root(all, &all[i]); all[i].Beyond(p.Source.Supervisor.WarnAfter) && root != nil {
			found.worst = root
			return s, found, nil
		}
	}
	if hidden, ok := b.(hiddenTransactions); ok {
		found.hidden, err = hidden.HiddenTransactions(ctx, all)
	}
	return s, found, err
}

// statusTable formats a report for people. The lines of the table are cut at maxWidth characters, 0 for no limit.
func statusTable(r admin.Report, maxWidth int) string {
	deleting := slices.ContainsFunc(r.Pipelines, func(p admin.PipelineReport) bool { return p.Batches.Delivered > 0 })
	head := []string{"PIPELINE", "PENDING", "OLDEST", "LEASED", "WAITING", "DEAD", "PER MIN", "LAST"}
	if deleting {
		head = slices.Insert(head, 5, "DELETING")
	}
	rows, states := [][]string{head}, []string{"STATE"}
	row := func(name string, pending int64, oldestSeconds *float64, batches admin.Batches, dead int64, delivered admin.Deliveries, state string) {
		cells := []string{
			name, admin.Pending(pending), admin.Oldest(pending, oldestSeconds, "-"), admin.Count(batches.Leased), admin.Count(batches.Waiting),
			admin.Count(dead), admin.Count(delivered.LastMinute), delivered.Ago(),
		}
		if deleting {
			cells = slices.Insert(cells, 5, admin.Count(batches.Delivered))
		}
		rows, states = append(rows, cells), append(states, state)
	}
	for i := range r.Pipelines {
		p := &r.Pipelines[i]
		row(p.Name, p.Pending, p.OldestPendingSeconds, p.Batches, p.Dead, p.Deliveries, p.State)
		for _, s := range p.Sinks {
			row("  "+s.Name, s.Pending, s.OldestPendingSeconds, s.Batches, s.Dead, s.Deliveries, s.State)
		}
	}
	rows = alignRight(rows)
	for i := range rows {
		rows[i] = append(rows[i], states[i])
	}
	text := columns(rows, maxWidth)
	ended, said := saidTogether(r.Pipelines, func(p *admin.PipelineReport) (key, text string) {
		if !slices.Contains(p.RelayProblems, p.Ended.Text) {
			return "", ""
		}
		return p.Ended.Names, p.Ended.Text
	})
	open, openSaid := saidTogether(r.Pipelines, openTransaction)
	full, fullSaid := saidTogether(r.Pipelines, func(p *admin.PipelineReport) (key, text string) {
		if p.DiskFull == "" {
			return "", ""
		}
		return p.Server, p.DiskFull
	})
	for i := range r.Pipelines {
		p := &r.Pipelines[i]
		for _, why := range reasons(p, said[p.Name], openSaid[p.Name], fullSaid[p.Name]) {
			text += why + "\n"
		}
	}
	return text + ended + open + full
}

// openTransaction says which transaction blocks vacuum, or is open and cannot be seen. The key is the same for pipelines of one server.
func openTransaction(p *admin.PipelineReport) (key, text string) {
	switch b := p.VacuumBlockedBy; {
	case b != nil && p.LockedBy == nil && (!b.LocksBuffer && !b.WritersWait || p.RowLocksText() == ""):
		return fmt.Sprint(p.Server, b.Kind, b.PID, b.Name), "vacuum is blocked: " + b.Text + ". > relay doctor -c relay.yaml"
	case p.HiddenTransaction != "":
		return p.Server + p.HiddenTransaction, p.HiddenTransaction
	}
	return "", ""
}

// saidTogether returns a line for each text that several pipelines have, those with the same key, and which pipelines these are. text is "" for a pipeline
// that has none.
func saidTogether(pipelines []admin.PipelineReport, text func(*admin.PipelineReport) (key, text string)) (lines string, said map[string]bool) {
	said = map[string]bool{}
	for i := range pipelines {
		key, of := text(&pipelines[i])
		var names []string
		for j := range pipelines {
			if other, _ := text(&pipelines[j]); key != "" && other == key {
				names = append(names, pipelines[j].Name)
			}
		}
		if len(names) < 2 || said[pipelines[i].Name] {
			continue
		}
		for _, name := range names {
			said[name] = true
		}
		together := strings.Join(names, ", ")
		if len(names) == len(pipelines) {
			together = "all pipelines"
		}
		lines += together + ": " + oneLine(of) + "\n"
	}
	return lines, said
}

// reasons say why events of a pipeline wait, a line each. endedSaid, openSaid and fullSaid report whether other lines tell of relays that did not stop in order,
// of an open transaction, and of a full disk.
func reasons(p *admin.PipelineReport, endedSaid, openSaid, fullSaid bool) (lines []string) {
	add := func(text string) { lines = append(lines, p.Name+": "+oneLine(text)) }
	for i := range p.Pauses {
		add(p.Pauses[i].Text(p.Name))
	}
	for _, problem := range p.RelayProblems {
		if problem != p.Ended.Text || !endedSaid {
			add(problem)
		}
	}
	if p.NothingSent != "" {
		add("nothing is sent: " + p.NothingSent)
	}
	if p.DiskFull != "" && !fullSaid {
		add(p.DiskFull)
	}
	if p.ClaimingStopped != "" {
		add(p.ClaimingStopped)
	}
	for _, notice := range p.Notices {
		add(notice)
	}
	for _, w := range p.Waits {
		add(w.Text())
	}
	for _, s := range p.Sinks {
		for _, w := range s.Waits {
			lines = append(lines, p.Name+"/"+s.Name+": "+oneLine(w.Text()))
		}
	}
	if p.Hook != nil {
		if n := p.Hook.Unnotified; n > 0 {
			add(plural(n, "dead letter", "dead letters") + " the hook was not notified of yet; replay and discard wait for that")
		}
		for _, w := range p.Hook.Waits {
			add("dead-letter hook: " + w.Text())
		}
	}
	if p.Suspects != nil {
		add(p.Suspects.Text())
	}
	for _, problem := range p.SinkProblems {
		add(problem)
	}
	if b := p.TableLockedBy; b != nil {
		add(b.Text + ". > " + b.Fix)
	}
	if p.LockedBy != nil {
		add("stands still: " + p.LockedBy.Text + ". > " + p.LockedBy.Fix)
	} else if text := p.RowLocksText(); text != "" {
		add(text)
	}
	if _, text := openTransaction(p); text != "" && !openSaid {
		add(text)
	}
	if p.Delayed != nil {
		add(p.Delayed.Text())
	}
	if p.Dead > 0 {
		add(plural(p.Dead, "dead letter", "dead letters") + ". > relay dead list -c relay.yaml")
	}
	return lines
}
