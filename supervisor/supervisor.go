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
	// Blockers are what holds it back now, the worst first.
	Blockers(ctx context.Context) ([]buffer.VacuumBlocker, error)
	// End ends a transaction's session, if it is still the one that Blockers saw, and
	// tells whether it did.
	Terminate(ctx context.Context, h buffer.VacuumBlocker) (ended bool, err error)
	// MissingPrivileges are what the role would need for a SupervisorPolicy and does not have.
	MissingPrivileges(ctx context.Context, w buffer.SupervisorPolicy) ([]buffer.Finding, error)
}

// Observer hears what a look saw.
type Observer interface {
	// Held: the oldest holder of that kind is so old; 0 when there is none, less than 0
	// when the database could not be asked.
	Held(kind buffer.BlockerKind, age time.Duration)
}

// Config of a supervisor.
type Config struct {
	// Watches are those of all pipelines on the database, at least one. The shortest
	// WarnAfter holds; a session is ended when one of them says so.
	Watches []buffer.SupervisorPolicy
	// Every is the time from one look to the next; 5 s when 0.
	Every time.Duration
	// Observer may be nil.
	Observer Observer
	// Log may be nil: slog.Default.
	Log *slog.Logger
}

// patience is how long a database may take to answer.
const patience = 10 * time.Second

func (c Config) withDefaults() Config {
	watches := make([]buffer.SupervisorPolicy, len(c.Watches))
	for i, w := range c.Watches {
		watches[i] = w.WithDefaults()
	}
	c.Watches = watches
	if c.Every == 0 {
		c.Every = 5 * time.Second
	}
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

func (c Config) validate() error {
	if len(c.Watches) == 0 {
		return errors.New("supervisor: a watch is required")
	}
	if c.Every < 0 {
		return fmt.Errorf("supervisor: looks every %v, a time above 0 was expected", c.Every)
	}
	for _, w := range c.Watches {
		if w.WarnAfter < 0 || w.TerminateAfter < 0 {
			return fmt.Errorf("supervisor: warns after %v and ends after %v, no negative time was expected", w.WarnAfter, w.TerminateAfter)
		}
		if w.TerminateAfter != 0 && w.TerminateAfter <= w.WarnAfter {
			return fmt.Errorf("supervisor: ends after %v, a time longer than warn_after was expected, which is %v", w.TerminateAfter, w.WarnAfter)
		}
	}
	return nil
}

type nobody struct{}

func (nobody) Held(buffer.BlockerKind, time.Duration) {}

// Supervisor watches one database. Make one with New.
type Supervisor struct {
	config    Config
	source    Source
	warnAfter time.Duration
	worst     atomic.Pointer[buffer.VacuumBlocker]

	// Run's own.
	seen     map[identity]*sighting
	entitled bool // the role's rights were looked at
	away     bool // the last look failed
}

// New makes the supervisor of a database; source stays the caller's to close, after
// Run.
func New(source Source, c Config) (*Supervisor, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	s := &Supervisor{config: c, source: source, warnAfter: c.Watches[0].WarnAfter, seen: map[identity]*sighting{}}
	for _, w := range c.Watches {
		s.warnAfter = min(s.warnAfter, w.WarnAfter)
	}
	return s, nil
}

// Worst returns what holds the database furthest back of all that was worth a word at
// the last look. Safe for concurrent use.
func (s *Supervisor) Worst() (buffer.VacuumBlocker, bool) {
	if h := s.worst.Load(); h != nil {
		return *h, true
	}
	return buffer.VacuumBlocker{}, false
}

// Run looks until ctx is done. It returns nil: a database that is away is asked again.
func (s *Supervisor) Run(ctx context.Context) error {
	for _, kind := range buffer.BlockerKinds() {
		s.config.Observer.Held(kind, -1)
	}
	tick := time.NewTicker(s.config.Every)
	defer tick.Stop()
	for {
		s.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (s *Supervisor) look(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	holders, err := s.source.Blockers(asking)
	if err != nil {
		s.unseen(ctx, err)
		return
	}
	s.away = false
	s.rights(asking)
	now := time.Now()
	var (
		oldest = map[buffer.BlockerKind]time.Duration{}
		worst  *buffer.VacuumBlocker
	)
	for i := range holders {
		h := &holders[i]
		one := s.sight(h, now)
		oldest[h.Kind] = max(oldest[h.Kind], h.Age)
		if h.Age < s.warnAfter {
			continue
		}
		if worst == nil {
			worst = h
		}
		s.warn(ctx, one)
		s.end(ctx, one, now)
	}
	s.worst.Store(worst)
	for _, kind := range buffer.BlockerKinds() {
		s.config.Observer.Held(kind, oldest[kind])
	}
	s.forget(ctx, now)
}

// unseen: whoever was seen before may be there still, but nobody knows.
func (s *Supervisor) unseen(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	s.worst.Store(nil)
	for _, kind := range buffer.BlockerKinds() {
		s.config.Observer.Held(kind, -1)
	}
	level := slog.LevelDebug
	if !s.away { // the pipelines tell of an outage as well
		level = slog.LevelWarn
	}
	s.away = true
	s.config.Log.Log(ctx, level, "cannot look at what holds the database back", "error", err)
}

// rights tells once what the role is not allowed.
func (s *Supervisor) rights(ctx context.Context) {
	if s.entitled {
		return
	}
	told := map[string]bool{}
	for _, w := range s.config.Watches {
		missing, err := s.source.MissingPrivileges(ctx, w)
		if err != nil {
			return // at the next look again
		}
		for _, f := range missing {
			if told[f.Text] {
				continue
			}
			told[f.Text] = true
			s.config.Log.WarnContext(ctx, f.Text, "about", strings.ReplaceAll(f.Subject, " ", "_"), "mend", f.Fix)
		}
	}
	s.entitled = true
}
