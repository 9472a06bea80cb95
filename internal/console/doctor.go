package console

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/diagnosis"
	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	// doctorKept is how long a diagnosis is shown before the next one is made, and doctorPause is how long users wait at least until they can have another one.
	doctorKept  = time.Minute
	doctorPause = 10 * time.Second
	// doctorFirst is how long an overview is open before the first diagnosis is made for it, and doctorEvery how often another one is while it is open.
	doctorFirst = 30 * time.Second
	doctorEvery = 15 * time.Minute
	// doctorErrors is how often it is while the last one found problems.
	doctorErrors = time.Minute
	// doctorTimeout bounds a diagnosis; a database or a sink that does not answer takes diagnosis.Timeout.
	doctorTimeout = 25 * time.Second
	// maxShownBlockers is how many vacuum blockers of a database are listed.
	maxShownBlockers = 50
)

// doctor keeps the latest diagnosis, which all users share: each costs the databases some dozens of queries. It is safe for concurrent use.
type doctor struct {
	// semaphore has one token; the goroutine that has it may make a diagnosis and owns latest.
	semaphore chan struct{}
	latest    *doctorData
	// note is what the overview says of latest; nil: there was no diagnosis.
	note atomic.Pointer[doctorNote]
}

// doctorNote is what the overview says of a diagnosis.
type doctorNote struct {
	Summary string
	Good    bool
	Errors  bool
	At      time.Time
	state   string // see doctorData
}

func newDoctor() *doctor {
	d := &doctor{semaphore: make(chan struct{}, 1)}
	d.semaphore <- struct{}{}
	return d
}

// doctorData is what the page shows.
type doctorData struct {
	Summary string
	Good    bool
	// Wrong are the findings that are not OK, the errors first; Fine are the others, by pipeline.
	Wrong     []doctorFinding
	Fine      []doctorBlock
	FineCount int64
	Databases []doctorDatabase
	At        time.Time
	Took      float64 // seconds
	// Wait: somebody asked for a new diagnosis too early.
	Wait bool
	// Pause is after how many seconds they can.
	Pause int
	// state are the problems of the overview when it began.
	state string
}

type doctorFinding struct {
	diagnosis.Finding
	// Of are the routes of the pipelines that it is about.
	Of    []string
	Error bool
	// Also is what relays that run say of the same fact.
	Also []string
}

type doctorBlock struct {
	Head     []string
	Findings []diagnosis.Finding
}

type doctorDatabase struct {
	Name, Error string
	Blockers    []blockerRow
	More        int
}

type blockerRow struct {
	What, Who, State, Age string
	Behind                int64
	WAL                   string
	Fix                   string
}

// doctorPage shows the latest diagnosis, and makes one if it is old, or ?again= asks for it and the latest is not of just now.
func (s *Console) doctorPage(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), doctorTimeout)
	defer cancel()
	select {
	case <-s.doctor.semaphore:
	case <-ctx.Done():
		s.fail(w, r, http.StatusServiceUnavailable, errors.New("the diagnosis that somebody else asked for takes long; try again"))
		return
	}
	d, again := s.doctor.latest, r.URL.Query().Get("again") != ""
	wait := false
	report, _ := s.report(ctx)
	if age, state := time.Since(at(d)), s.state(report); d == nil || age > doctorKept || (again || d.state != state) && age > doctorPause {
		d = s.newDiagnosis(ctx, state)
	} else {
		wait = again
	}
	s.doctor.semaphore <- struct{}{}
	shown := *d
	shown.Wait, shown.Pause = wait, int(doctorPause.Seconds())
	s.render(w, r, http.StatusOK, "doctor", "doctor", "Doctor", &shown)
}

// state is which problems the overview shows, in words of its own: a diagnosis of another state may be over.
func (s *Console) state(report *admin.Report) string {
	var keys []string
	for _, p := range problems(s, report) {
		if !p.Undated {
			keys = append(keys, p.key())
		}
	}
	slices.Sort(keys)
	return strings.Join(keys, "\n")
}

// newDiagnosis makes a diagnosis and keeps it. The caller has the token of the semaphore.
func (s *Console) newDiagnosis(ctx context.Context, state string) *doctorData {
	d := s.diagnose(ctx)
	d.state = state
	if ctx.Err() == nil { // otherwise the databases and sinks did not have the time to answer
		s.doctor.latest = d
		s.doctor.note.Store(&doctorNote{d.Summary, d.Good, len(d.Wrong) > 0 && d.Wrong[0].Error, d.At, state})
	}
	return d
}

// diagnosisDue reports whether the overview, which somebody has had open since a time, wants a new diagnosis.
func (s *Console) diagnosisDue(now, watched time.Time, state func() string) bool {
	if s.config.Diagnose == nil || watched.IsZero() || now.Sub(watched) < doctorFirst {
		return false
	}
	note := s.doctor.note.Load()
	switch {
	case note == nil:
		return true
	case note.Errors: // they may be of an outage that is over
		return now.Sub(note.At) >= doctorErrors || now.Sub(note.At) >= doctorKept && note.state != state()
	}
	return now.Sub(note.At) >= doctorEvery
}

// diagnoseAgain makes a diagnosis for the overview, unless somebody else does.
func (s *Console) diagnoseAgain(ctx context.Context) {
	select {
	case <-s.doctor.semaphore:
	default:
		return
	}
	defer func() { s.doctor.semaphore <- struct{}{} }()
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	report, _ := s.latest.shown()
	s.newDiagnosis(ctx, s.state(report))
}

func at(d *doctorData) time.Time {
	if d == nil {
		return time.Time{}
	}
	return d.At
}

// diagnose makes a diagnosis.
func (s *Console) diagnose(ctx context.Context) *doctorData {
	begun := time.Now()
	clean := func(text string) string { return visible([]byte(s.config.Redact(s.config.ForFile(text)))) }
	report := s.config.Diagnose(ctx, clean)
	d := &doctorData{At: time.Now(), Took: time.Since(begun).Seconds()}
	var warnings, fails []doctorFinding
	for _, block := range report.Blocks() {
		fine := doctorBlock{Head: block.Head}
		for _, f := range block.Findings {
			switch f.Level {
			case buffer.LevelError.String():
				fails = addFinding(fails, doctorFinding{Finding: f, Of: routesOf(f.Subject, block.Head), Error: true})
			case buffer.LevelWarning.String():
				warnings = addFinding(warnings, doctorFinding{Finding: f, Of: routesOf(f.Subject, block.Head)})
			default:
				fine.Findings = append(fine.Findings, f)
			}
		}
		if d.FineCount += int64(len(fine.Findings)); fine.Findings != nil {
			d.Fine = append(d.Fine, fine)
		}
	}
	fails = withReports(fails)
	d.Wrong = append(fails, warnings...)
	d.Good = len(d.Wrong) == 0
	d.Summary = countText(len(fails), "problem") + ", " + countText(len(warnings), "warning")
	for _, database := range report.Databases {
		d.Databases = append(d.Databases, blockerRows(&database, clean))
	}
	return d
}

// routesOf are the routes that a finding is about: those of one sink, or all.
func routesOf(subject string, routes []string) []string {
	name, ok := strings.CutPrefix(subject, "sink ")
	if !ok {
		return routes
	}
	var of []string
	for _, route := range routes {
		if full, _, _ := strings.Cut(route, ": "); strings.HasSuffix(full, "/"+name) {
			of = append(of, route)
		}
	}
	if of == nil {
		return routes
	}
	return of
}

// addFinding adds a finding, to one of the same fact about other pipelines or sinks if there is one.
func addFinding(all []doctorFinding, one doctorFinding) []doctorFinding {
	fact := func(f *doctorFinding) [2]string {
		plain := func(text string) string {
			return strings.ReplaceAll(admin.WithoutAddress(urlPath.ReplaceAllString(text, "$1")), f.Subject, "sink")
		}
		return [2]string{plain(f.Text), plain(f.Fix)}
	}
	isSink := func(subject string) bool { return subject == "sink" || strings.HasPrefix(subject, "sink ") }
	for i := range all {
		other := &all[i]
		if isSink(one.Subject) && isSink(other.Subject) && fact(other) == fact(&one) || one.Subject == other.Subject && one.Text == other.Text && one.Fix == other.Fix {
			if other.Subject != one.Subject {
				other.Subject = "sink"
			}
			other.Of = slices.Concat(other.Of, one.Of)
			return all
		}
	}
	return append(all, one)
}

// withReports moves what relays say of a sink that doctor could not use either to the finding about that sink.
func withReports(all []doctorFinding) (left []doctorFinding) {
	isReport := func(f *doctorFinding) bool { return f.Subject == "relays" }
	for i := range all {
		one := &all[i]
		at := -1
		if isReport(one) {
			at = slices.IndexFunc(all, func(f doctorFinding) bool { return !isReport(&f) && strings.Contains(one.Text, f.Text) })
		}
		if at >= 0 {
			all[at].Also = append(all[at].Also, one.Text)
		}
	}
	for i := range all {
		one := &all[i]
		if !isReport(one) || !slices.ContainsFunc(all, func(f doctorFinding) bool { return slices.Contains(f.Also, one.Text) }) {
			left = append(left, *one)
		}
	}
	return left
}

func countText(n int, one string) string {
	switch n {
	case 0:
		return "no " + one + "s"
	case 1:
		return "1 " + one
	}
	return admin.Count(int64(n)) + " " + one + "s"
}

// blockerRows lists what blocks vacuum in a database, furthest behind first.
func blockerRows(of *diagnosis.Database, clean func(string) string) doctorDatabase {
	d := doctorDatabase{Name: of.Name, Error: of.Error}
	for i := range of.Blockers {
		b := &of.Blockers[i]
		if b.IsRelay { // it ends by itself
			continue
		}
		if len(d.Blockers) == maxShownBlockers {
			d.More++
			continue
		}
		row := blockerRow{What: string(b.Kind), State: b.State, Behind: b.Behind, Fix: clean(b.Fix), Age: "unknown"}
		switch {
		case b.Age > 0:
			row.Age = admin.Age(b.Age)
		case b.Hidden():
			row.Age, row.State = "hidden", "hidden: the relay's role has no pg_read_all_stats"
		}
		if b.Name != "" {
			row.What += " " + clean(b.Name)
		}
		var who []string
		for _, one := range []struct{ what, is string }{{"user", b.User}, {"application", b.Application}, {"database", b.Database}} {
			if one.is != "" {
				who = append(who, one.what+" "+clean(one.is))
			}
		}
		if b.PID != 0 {
			row.What += " (pid " + strconv.Itoa(b.PID) + ")"
		}
		row.Who = strings.Join(who, ", ")
		if b.WAL > 0 {
			row.WAL = admin.Count(b.WAL>>20) + " MB"
		}
		d.Blockers = append(d.Blockers, row)
	}
	return d
}

// command begins a fix that can be pasted: SQL, or a relay command.
var command = regexp.MustCompile(`^(relay [a-z]+ |[A-Z]{4,} )`)

// isCommand reports whether a fix is a command or statement to copy, and not a sentence.
func isCommand(fix string) bool { return command.MatchString(fix) }
