// Package supervisor watches a database for vacuum blockers: old transactions, prepared
// transactions and replication slots, because of which vacuum cannot remove dead rows.
//
// It logs which tables of the relay a transaction has locked as a whole, too: the application cannot insert, or the relay cannot go on.
//
// It asks every few seconds. A blocker goes through these states:
//
//	observed ──warn_after──▶ warned ──age doubles──▶ warned again ... ──▶ gone, logged
//	                           └──terminate_after, and a policy matches──▶ terminated
//
// It terminates sessions only if a [buffer.SupervisorPolicy] says so, and only those of clients. If the role
// may not see how old a blocker is (slots, other roles' sessions without pg_read_all_stats), its age is the
// time since the supervisor first saw it hold the same transaction id.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Source is what a supervisor asks of a database.
type Source interface {
	// Blockers are the vacuum blockers of now, the worst first.
	Blockers(ctx context.Context) ([]buffer.VacuumBlocker, error)
	// Terminate ends a transaction's session, if it is still the one that Blockers
	// returned, and reports whether it did.
	Terminate(ctx context.Context, b buffer.VacuumBlocker) (terminated bool, err error)
	// MissingPrivileges are what the role would need for a policy and does not have.
	MissingPrivileges(ctx context.Context, p buffer.SupervisorPolicy) ([]buffer.Finding, error)
}

// Observer receives the result of each poll.
type Observer interface {
	// Blocked: the oldest blocker of that kind is so old; 0 if there is none, negative if
	// the database could not be asked.
	Blocked(kind buffer.BlockerKind, age time.Duration)
}

// Config of a supervisor.
type Config struct {
	// Policies are those of all pipelines on the database, at least one. The shortest WarnAfter
	// holds; a session is terminated if one of them says so.
	Policies []buffer.SupervisorPolicy
	// Every is the time between two polls; 5 s when 0.
	Every time.Duration
	// Observer may be nil.
	Observer Observer
	// Tables are watched for transactions that lock one of them as a whole; one entry a pipeline. There may be none.
	Tables []Tables
	// Log may be nil: slog.Default.
	Log *slog.Logger
}

// queryTimeout is how long a database may take to answer.
const queryTimeout = 10 * time.Second

func (c Config) withDefaults() Config {
	policies := make([]buffer.SupervisorPolicy, len(c.Policies))
	for i, p := range c.Policies {
		policies[i] = p.WithDefaults()
	}
	c.Policies = policies
	if c.Every == 0 {
		c.Every = 5 * time.Second
	}
	if c.Observer == nil {
		c.Observer = noObserver{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

func (c Config) validate() error {
	if len(c.Policies) == 0 {
		return errors.New("supervisor: there is no policy; expected one or more")
	}
	if c.Every < 0 {
		return fmt.Errorf("supervisor: the interval is %v; expected a time above 0", c.Every)
	}
	for _, p := range c.Policies {
		if p.WarnAfter < 0 || p.TerminateAfter < 0 {
			return fmt.Errorf("supervisor: warn_after is %v and terminate_after is %v; expected no negative time", p.WarnAfter, p.TerminateAfter)
		}
		if p.TerminateAfter != 0 && p.TerminateAfter <= p.WarnAfter {
			return fmt.Errorf("supervisor: terminate_after is %v; expected a time longer than warn_after, which is %v", p.TerminateAfter, p.WarnAfter)
		}
	}
	return nil
}

type noObserver struct{}

func (noObserver) Blocked(buffer.BlockerKind, time.Duration) {}

// Supervisor watches one database. Make one with New.
type Supervisor struct {
	config    Config
	source    Source
	warnAfter time.Duration
	worst     atomic.Pointer[buffer.VacuumBlocker]
	last      atomic.Pointer[poll] // nil if the last one failed

	// Owned by Run.
	observed          map[identity]*observation
	tables            []*watchedTables
	privilegesChecked bool
	pollFailed        bool
}

// poll is what one poll found.
type poll struct {
	at       time.Time // when it was asked for
	blockers []buffer.VacuumBlocker
}

// New makes the supervisor of a database; source stays the caller's to close, after Run.
func New(source Source, c Config) (*Supervisor, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	s := &Supervisor{config: c, source: source, warnAfter: c.Policies[0].WarnAfter, observed: map[identity]*observation{}}
	for _, p := range c.Policies {
		s.warnAfter = min(s.warnAfter, p.WarnAfter)
	}
	for _, t := range c.Tables {
		s.tables = append(s.tables, &watchedTables{Tables: t})
	}
	return s, nil
}

// Worst returns the worst blocker of the last poll that is older than warn_after. Safe for concurrent use.
func (s *Supervisor) Worst() (buffer.VacuumBlocker, bool) {
	if b := s.worst.Load(); b != nil {
		return *b, true
	}
	return buffer.VacuumBlocker{}, false
}

// Locker returns the oldest transaction of the last poll that holds locks in a table; see [buffer.Locker]. Safe for concurrent use.
func (s *Supervisor) Locker(table string) (buffer.VacuumBlocker, bool) {
	if last := s.last.Load(); last != nil {
		if b := buffer.Locker(last.blockers, table); b != nil {
			return *b, true
		}
	}
	return buffer.VacuumBlocker{}, false
}

// TableLocker returns the oldest transaction of the last poll that keeps others from inserting into one of these tables; nil if there is none. See [buffer.TableLocker]. Safe
// for concurrent use.
func (s *Supervisor) TableLocker(tables ...string) *buffer.LockedError {
	if last := s.last.Load(); last != nil {
		return buffer.TableLocker(last.blockers, tables...)
	}
	return nil
}

// SeenAt is when what the last poll found was asked for; zero if it failed, or there was none. Safe for concurrent use.
func (s *Supervisor) SeenAt() (at time.Time) {
	if last := s.last.Load(); last != nil {
		at = last.at
	}
	return at
}

// Run polls until ctx is done. It returns nil: a database that is unavailable is asked again.
func (s *Supervisor) Run(ctx context.Context) error {
	s.report(nil, -1)
	tick := time.NewTicker(s.config.Every)
	defer tick.Stop()
	for {
		s.poll(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// report reports the oldest age of each kind, or otherwise if there is none.
func (s *Supervisor) report(oldest map[buffer.BlockerKind]time.Duration, otherwise time.Duration) {
	for _, kind := range buffer.BlockerKinds() {
		age, ok := oldest[kind]
		if !ok {
			age = otherwise
		}
		s.config.Observer.Blocked(kind, age)
	}
}

func (s *Supervisor) poll(ctx context.Context) {
	queryCtx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	asked := time.Now()
	blockers, err := s.source.Blockers(queryCtx)
	if err != nil {
		s.onPollFailed(ctx, err)
		return
	}
	s.pollFailed = false
	s.checkPrivileges(queryCtx)
	now := time.Now()
	var (
		oldest = map[buffer.BlockerKind]time.Duration{}
		worst  *buffer.VacuumBlocker
		old    []*observation
	)
	for i := range blockers {
		b := &blockers[i]
		o := s.observe(b, now)
		if b.OnlyLocks() {
			continue
		}
		oldest[b.Kind] = max(oldest[b.Kind], b.Age)
		if b.Age < s.warnAfter {
			continue
		}
		old = append(old, o)
	}
	for _, o := range old { // the observations know all ages by now
		if root := buffer.Root(blockers, &o.blocker); root != nil && root.Age >= s.warnAfter {
			worst = root
			break
		}
	}
	// Metrics and status are set first: who reads the warning may look at them at once.
	s.worst.Store(worst)
	s.last.Store(&poll{asked, blockers})
	s.report(oldest, 0)
	s.logLocks(ctx, blockers, now)
	for _, o := range old {
		s.warn(ctx, o)
		s.terminate(ctx, o, now)
	}
	s.forget(ctx, now)
}

// onPollFailed reports that nothing is known: the blockers of the last poll may still be there.
func (s *Supervisor) onPollFailed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	s.worst.Store(nil)
	s.last.Store(nil)
	s.report(nil, -1)
	level := slog.LevelDebug
	if !s.pollFailed { // the pipelines report an outage as well
		level = slog.LevelWarn
	}
	s.pollFailed = true
	s.config.Log.Log(ctx, level, "asking for vacuum blockers failed", "error", err)
}

// checkPrivileges logs once what the role is not allowed.
func (s *Supervisor) checkPrivileges(ctx context.Context) {
	if s.privilegesChecked {
		return
	}
	logged := map[string]bool{}
	for _, p := range s.config.Policies {
		missing, err := s.source.MissingPrivileges(ctx, p)
		if err != nil {
			return // the next poll tries again
		}
		for _, f := range missing {
			if logged[f.Text] {
				continue
			}
			logged[f.Text] = true
			level := slog.LevelWarn
			if f.Level == buffer.LevelOK {
				level = slog.LevelInfo
			}
			s.config.Log.Log(ctx, level, f.Text, "subject", strings.ReplaceAll(f.Subject, " ", "_"), "fix", f.Fix)
		}
	}
	s.privilegesChecked = true
}
