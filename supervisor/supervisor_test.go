package supervisor_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/supervisor"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// fakeSource is a source in a bubble, whose blockers age by the bubble's clock.
type fakeSource struct {
	t     *testing.T
	start time.Time

	mu      sync.Mutex
	on      []buffer.VacuumBlocker
	err     error // of Blockers
	missing []buffer.Finding
	polls   int
	asked   []int // the pids that were to be ended
	endErr  error
	stays   bool // terminated sessions stay
	oldest  map[buffer.BlockerKind]time.Duration
	log     testkit.Output
}

func (s *fakeSource) Blockers(context.Context) ([]buffer.VacuumBlocker, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.polls++
	all := slices.Clone(s.on)
	for i := range all {
		if !all[i].BeganAt.IsZero() {
			all[i].Age = time.Since(all[i].BeganAt)
		}
	}
	return all, s.err
}

func (s *fakeSource) Terminate(_ context.Context, h buffer.VacuumBlocker) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, h.PID)
	if s.oldest[h.Kind] < h.Age {
		s.t.Errorf("session %d, %v old, is terminated before its age is reported: %v", h.PID, h.Age, s.oldest[h.Kind])
	}
	if s.endErr != nil {
		return false, s.endErr
	}
	if !s.stays {
		s.on = slices.DeleteFunc(s.on, func(o buffer.VacuumBlocker) bool { return o.PID == h.PID })
	}
	return true, nil
}

func (s *fakeSource) MissingPrivileges(context.Context, buffer.SupervisorPolicy) ([]buffer.Finding, error) {
	missing := slices.Clone(s.missing)
	for i := range missing {
		missing[i].Level = buffer.LevelWarning
	}
	return missing, nil
}

func (s *fakeSource) Blocked(kind buffer.BlockerKind, age time.Duration) { s.oldest[kind] = age }

// supervise runs a supervisor of a fakeSource for as long as f takes.
func supervise(t *testing.T, f func(s *fakeSource, v *supervisor.Supervisor), policies ...buffer.SupervisorPolicy) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &fakeSource{t: t, start: time.Now(), oldest: map[buffer.BlockerKind]time.Duration{}}
		log := slog.New(slog.NewTextHandler(&s.log, nil))
		tables := []supervisor.Tables{
			{Names: func() []string { return []string{"public.outbox_events", "public.outbox_batches"} }, Log: log.With("pipeline", "orders")},
			{Names: func() []string { return nil }, Log: log.With("pipeline", "starting")},
		}
		v, err := supervisor.New(s, supervisor.Config{Policies: policies, Observer: s, Tables: tables, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		wait.Go(func() {
			if err := v.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		f(s, v)
		cancel()
		wait.Wait()
	})
}

// add adds blockers.
func (s *fakeSource) add(blockers ...buffer.VacuumBlocker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on = append(s.on, blockers...)
}

func (s *fakeSource) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// until waits for a time since the start, and for all that happens then.
func (s *fakeSource) until(d time.Duration) {
	<-time.After(time.Until(s.start.Add(d)))
	synctest.Wait()
}

// expectLogged checks the log since its last call, one line an entry, by its
// level, text and one attribute each.
func (s *fakeSource) expectLogged(want ...string) {
	s.t.Helper()
	lines := slices.Collect(strings.Lines(s.log.Take()))
	for i, line := range lines {
		if i >= len(want) {
			break
		}
		for part := range strings.SplitSeq(want[i], "|") {
			if !strings.Contains(line, part) {
				s.t.Errorf("got %q; want %q in it", line, part)
			}
		}
	}
	if len(lines) != len(want) {
		s.t.Errorf("got %q; want %d lines", lines, len(want))
	}
}

func client(pid int, began time.Time) buffer.VacuumBlocker {
	return buffer.VacuumBlocker{
		Kind: buffer.BlockedByTransaction, PID: pid, Database: "app", User: "reports", Application: "nightly", State: "idle in transaction",
		Backend: "client backend", StartedAt: began.Add(-time.Hour), BeganAt: began, Behind: 7, Horizon: 700,
	}
}

func TestSupervisor_WarnsAgainWhenAgeDoubles(t *testing.T) {
	t.Parallel()
	supervise(t, func(s *fakeSource, v *supervisor.Supervisor) {
		s.add(client(1, s.start))
		s.until(299 * time.Second)
		s.expectLogged()
		if _, ok := v.Worst(); ok {
			t.Error("there is a worst one already")
		}
		s.until(300 * time.Second)
		s.expectLogged(`level=WARN|vacuum blocked by long-running transaction|kind=transaction|pid=1|application=nightly|user=reports|state="idle in transaction"|age=5m0s|behind=7`)
		if h, ok := v.Worst(); !ok || h.PID != 1 || h.Age != 5*time.Minute {
			t.Errorf("the worst is %+v, %v", h, ok)
		}
		s.until(599 * time.Second)
		s.expectLogged()
		s.until(1199 * time.Second)
		s.expectLogged("level=WARN|age=10m0s")
		s.until(1201 * time.Second)
		s.expectLogged("level=WARN|age=20m0s")
		s.change(func() { s.on = nil })
		s.until(1230 * time.Second)
		s.expectLogged("level=INFO|vacuum no longer blocked|pid=1")
		if _, ok := v.Worst(); ok || len(s.asked) > 0 {
			t.Errorf("there is a worst one still, or one that was ended: %v", s.asked)
		}
		s.until(time.Hour)
		s.expectLogged()
	}, buffer.SupervisorPolicy{})
}

// A blocker that is old at the first poll is logged once, and again when its age has doubled.
func TestSupervisor_WarnsAtTheStart(t *testing.T) {
	t.Parallel()
	supervise(t, func(s *fakeSource, _ *supervisor.Supervisor) {
		s.add(client(1, s.start.Add(-time.Hour)))
		s.until(time.Second)
		s.expectLogged("level=WARN|age=1h0m0s")
		s.until(15 * time.Minute)
		s.expectLogged()
	}, buffer.SupervisorPolicy{WarnAfter: time.Minute})
}

// A reader has no snapshot between two of its statements; that says nothing.
func TestSupervisor_BlockerMissingForAMoment(t *testing.T) {
	t.Parallel()
	supervise(t, func(s *fakeSource, _ *supervisor.Supervisor) {
		reader := client(1, s.start)
		for at := 7 * time.Second; at < 100*time.Second; at += 10 * time.Second {
			s.add(reader)
			s.until(at)
			s.change(func() { s.on = nil })
			s.until(at + 5*time.Second)
		}
		s.until(2 * time.Minute)
		s.expectLogged("level=WARN|age=1m", "level=INFO|no longer blocked") // not each time
	}, buffer.SupervisorPolicy{WarnAfter: time.Minute})
}

// The age of slots, and of what the role may not see, is unknown: it counts from when
// it was seen, as long as it holds the same.
func TestSupervisor_UnknownAge(t *testing.T) {
	t.Parallel()
	supervise(t, func(s *fakeSource, _ *supervisor.Supervisor) {
		hidden := buffer.VacuumBlocker{Kind: buffer.BlockedByTransaction, PID: 5, User: "other", Behind: 3, Horizon: 90}
		unread := buffer.VacuumBlocker{Kind: buffer.BlockedBySlot, Name: "unread", State: "inactive", WAL: 1 << 30}
		current := buffer.VacuumBlocker{Kind: buffer.BlockedBySlot, Name: "current", State: "active", PID: 6, Horizon: 100}
		standby := buffer.VacuumBlocker{Kind: buffer.BlockedByTransaction, PID: 7, Backend: "walsender", Behind: 1}
		for s.add(hidden, unread, current); ; standby.Horizon++ {
			s.change(func() { s.on = append(s.on[:3:3], standby) })
			if standby.Horizon == 4 {
				break
			}
			s.until(time.Duration(standby.Horizon+1) * 50 * time.Second)
		}
		s.expectLogged(`level=WARN|kind=transaction|pid=5|user=other|observed_for=1m0s`, `level=WARN|kind="replication slot"|name=unread|observed_for=1m0s|wal_bytes=1073741824`,
			"observed_for=2m0s", "observed_for=2m0s")
		if s.oldest[buffer.BlockedBySlot] < 3*time.Minute {
			t.Errorf("observed %v", s.oldest)
		}
		if len(s.asked) > 0 {
			t.Errorf("%v were ended", s.asked)
		}
	}, buffer.SupervisorPolicy{WarnAfter: time.Minute, TerminateAfter: 90 * time.Second})
}

// Exactly those are ended that a watch names.
func TestSupervisor_TerminatesBySession(t *testing.T) {
	t.Parallel()
	old := func(pid int, change func(*buffer.VacuumBlocker)) buffer.VacuumBlocker {
		h := client(pid, time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC)) // the bubble begins a day later
		change(&h)
		return h
	}
	holders := []buffer.VacuumBlocker{
		old(1, func(*buffer.VacuumBlocker) {}),
		old(2, func(h *buffer.VacuumBlocker) { h.Application = "psql" }),
		old(3, func(h *buffer.VacuumBlocker) { h.User, h.Superuser = "postgres", true }),
		old(4, func(h *buffer.VacuumBlocker) { h.IsRelay = true }),
		old(5, func(h *buffer.VacuumBlocker) { h.Backend = "walsender" }),
		old(6, func(h *buffer.VacuumBlocker) { h.Backend = "autovacuum worker" }),
		old(7, func(h *buffer.VacuumBlocker) { h.Backend = "logical replication worker" }),
		old(8, func(h *buffer.VacuumBlocker) { h.Kind, h.Name = buffer.BlockedByPrepared, "gid" }),
		old(9, func(h *buffer.VacuumBlocker) { h.Kind, h.Name = buffer.BlockedBySlot, "slot" }),
		old(10, func(h *buffer.VacuumBlocker) { h.User, h.Backend, h.BeganAt = "", "", time.Time{} }),
		old(11, func(h *buffer.VacuumBlocker) { h.BeganAt = h.BeganAt.Add(24*time.Hour - time.Minute) }), // too young
	}
	const long, never = 5 * time.Minute, 0
	for name, c := range map[string]struct {
		watches []buffer.SupervisorPolicy
		want    []int
	}{
		"no match":        {[]buffer.SupervisorPolicy{{TerminateAfter: never, Users: []string{"reports"}}}, nil},
		"anybody":         {[]buffer.SupervisorPolicy{{TerminateAfter: long}}, []int{1, 2}},
		"users":           {[]buffer.SupervisorPolicy{{TerminateAfter: long, Users: []string{"somebody", "postgres"}}}, []int{3}},
		"applications":    {[]buffer.SupervisorPolicy{{TerminateAfter: long, Applications: []string{"psql"}}}, []int{2}},
		"both":            {[]buffer.SupervisorPolicy{{TerminateAfter: long, Users: []string{"postgres"}, Applications: []string{"psql"}}}, nil},
		"one of two":      {[]buffer.SupervisorPolicy{{TerminateAfter: never}, {TerminateAfter: long, Applications: []string{"psql"}}}, []int{2}},
		"either of two":   {[]buffer.SupervisorPolicy{{TerminateAfter: long, Users: []string{"postgres"}}, {TerminateAfter: long, Applications: []string{"psql"}}}, []int{2, 3}},
		"not old enough":  {[]buffer.SupervisorPolicy{{TerminateAfter: 25 * time.Hour}}, nil},
		"the shorter one": {[]buffer.SupervisorPolicy{{TerminateAfter: 25 * time.Hour}, {TerminateAfter: long, Applications: []string{"psql"}}}, []int{2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			watches := slices.Clone(c.watches)
			for i := range watches {
				watches[i].WarnAfter = 2 * time.Minute
			}
			supervise(t, func(s *fakeSource, _ *supervisor.Supervisor) {
				s.add(holders...)
				s.until(30 * time.Second)
				slices.Sort(s.asked)
				if !slices.Equal(s.asked, c.want) {
					t.Errorf("ended were %v, want %v", s.asked, c.want)
				}
				if got := strings.Count(s.log.Take(), `msg="session terminated"`); got != len(c.want) {
					t.Errorf("%d are in the log", got)
				}
			}, watches...)
		})
	}
}

// Termination is retried with a growing interval, and each result is logged.
func TestSupervisor_RetriesTermination(t *testing.T) {
	t.Parallel()
	supervise(t, func(s *fakeSource, _ *supervisor.Supervisor) {
		s.change(func() { s.stays = true })
		s.add(client(1, s.start))
		s.until(89 * time.Second)
		s.expectLogged("level=WARN|vacuum blocked")
		s.until(90 * time.Second)
		s.expectLogged(`level=WARN|session terminated|pid=1|application=nightly|user=reports|age=1m30s`)
		s.until(119 * time.Second)
		s.expectLogged()
		s.change(func() { s.endErr = errors.New("permission denied") })
		s.until(150 * time.Second)
		s.expectLogged("vacuum blocked|age=2m0s", `level=WARN|terminating a session failed|pid=1|error="permission denied"`)
		s.until(269 * time.Second)
		s.expectLogged("vacuum blocked|age=4m0s")
		s.until(270 * time.Second)
		s.expectLogged("terminating a session failed")
	}, buffer.SupervisorPolicy{WarnAfter: time.Minute, TerminateAfter: 90 * time.Second})
}

// An unavailable database is logged once, and reports nothing meanwhile.
func TestSupervisor_DatabaseUnavailable(t *testing.T) {
	t.Parallel()
	supervise(t, func(s *fakeSource, v *supervisor.Supervisor) {
		s.change(func() { s.missing = []buffer.Finding{{Subject: "sessions", Text: "does not see", Fix: "GRANT x"}} })
		s.until(0)
		s.expectLogged("level=WARN|does not see|subject=sessions|GRANT x")
		s.add(client(1, s.start))
		s.until(61 * time.Second)
		s.expectLogged("vacuum blocked")
		s.change(func() { s.err = errors.New("no route") })
		s.until(300 * time.Second)
		s.expectLogged("level=WARN|asking for vacuum blockers failed|no route")
		if _, ok := v.Worst(); ok || s.oldest[buffer.BlockedByTransaction] >= 0 || s.oldest[buffer.BlockedBySlot] >= 0 {
			t.Errorf("something is known: %v", s.oldest)
		}
		s.change(func() { s.err = nil })
		s.until(310 * time.Second)
		s.expectLogged("vacuum blocked|age=5m5s")
		if s.oldest[buffer.BlockedByTransaction] < 5*time.Minute || s.oldest[buffer.BlockedBySlot] != 0 {
			t.Errorf("observed %v", s.oldest)
		}
		if s.polls != 63 {
			t.Errorf("%d polls in 310 s; want 63", s.polls)
		}
	}, buffer.SupervisorPolicy{WarnAfter: time.Minute})
}

func TestNew_InvalidConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config supervisor.Config
		says   string
	}{
		{supervisor.Config{}, "there is no policy"},
		{supervisor.Config{Policies: []buffer.SupervisorPolicy{{}}, Every: -1}, "above 0"},
		{supervisor.Config{Policies: []buffer.SupervisorPolicy{{}, {WarnAfter: -1}}}, "no negative time"},
		{supervisor.Config{Policies: []buffer.SupervisorPolicy{{TerminateAfter: 5 * time.Minute}}}, "expected a time longer than warn_after, which is 5m0s"},
	} {
		if _, err := supervisor.New(nil, c.config); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v; want %q", c.config, err, c.says)
		}
	}
}

// TestSupervisor_Waiting: what waits for another transaction is not terminated, and what it waits for is called the worst, though it blocks no vacuum itself.
func TestSupervisor_Waiting(t *testing.T) {
	t.Parallel()
	supervise(t, func(s *fakeSource, v *supervisor.Supervisor) {
		at := func(pid int) buffer.VacuumBlocker {
			return buffer.VacuumBlocker{Kind: buffer.BlockedByTransaction, PID: pid, Backend: "client backend", User: "shop", Behind: 1, BeganAt: s.start}
		}
		victim, holder := at(1), at(2)
		victim.Horizon, victim.Waits, victim.WaitsFor, victim.Locks = 7, true, 2, []string{"public.bills"}
		holder.Behind, holder.NoInserts = 0, []string{"public.outbox_events"}
		s.add(victim, holder)
		s.until(2 * time.Second)
		s.until(11 * time.Second)
		if got := v.TableLocker("public.outbox_events"); got == nil || got.Holder.PID != 2 {
			t.Errorf("the table is locked by %+v", got)
		}
		if got := v.TableLocker(); got != nil {
			t.Errorf("no table is locked by %+v", got)
		}
		s.until(10 * time.Minute)
		if worst, ok := v.Worst(); !ok || worst.PID != 2 {
			t.Errorf("the worst is %+v", worst)
		}
		if got, ok := v.Locker("public.bills"); !ok || got.PID != 2 {
			t.Errorf("the other table is blocked by %+v", got)
		}
		s.change(func() {
			testkit.Equal(t, "sessions that were terminated", len(s.asked), 0)
			s.on = s.on[1:]
		})
		s.until(11 * time.Minute)
		if worst, ok := v.Worst(); ok {
			t.Errorf("what blocks no vacuum is reported as %+v", worst)
		}
		if oldest := s.oldest[buffer.BlockedByTransaction]; oldest != 0 {
			t.Errorf("what blocks no vacuum is measured as %v", oldest)
		}
	}, buffer.SupervisorPolicy{WarnAfter: time.Minute, TerminateAfter: 2 * time.Minute})
}

// TestSupervisor_TableLocked: one line when a table is locked, one when none is any more; a poll that fails says nothing of it.
func TestSupervisor_TableLocked(t *testing.T) {
	t.Parallel()
	supervise(t, func(s *fakeSource, _ *supervisor.Supervisor) {
		holder := client(2, s.start.Add(time.Second))
		holder.NoInserts, holder.Fix = []string{"public.outbox_batches"}, "SELECT pg_terminate_backend(2)"
		s.until(time.Second)
		s.add(holder)
		s.until(11 * time.Second)
		s.expectLogged(`level=WARN|msg="table locked by another transaction"|pipeline=orders|table=public.outbox_batches|pid=2|user=reports|age=9s|fix="SELECT pg_terminate_backend(2)"`)
		s.change(func() { s.err = errors.New("connection refused") })
		s.until(31 * time.Second)
		s.expectLogged("level=WARN|asking for vacuum blockers failed")
		s.change(func() { s.err = nil })
		s.until(2 * time.Minute)
		s.expectLogged()
		s.change(func() { s.on = nil })
		s.until(3 * time.Minute)
		s.expectLogged(`level=INFO|msg="table no longer locked"|pipeline=orders|table=public.outbox_batches|after=1m55s`)
	}, buffer.SupervisorPolicy{})
}
