package console

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/audit"
)

// levelLasts is how long a log level that was set in the console lasts.
const levelLasts = 10 * time.Minute

// logLevel changes the level of the log for a while.
type logLevel struct {
	now *slog.LevelVar // nil: it is not the relay's to change

	mu         sync.Mutex
	configured slog.Level
	until      time.Time // zero: it is the configured one
}

func newLogLevel(now *slog.LevelVar) *logLevel {
	l := &logLevel{now: now}
	if now != nil {
		l.configured = now.Level()
	}
	return l
}

// set changes the level until levelLasts after now. The configured level stays.
func (l *logLevel) set(to slog.Level, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now.Set(to)
	l.until = now.Add(levelLasts)
	if to == l.configured {
		l.until = time.Time{}
	}
}

// restore goes back to the configured level when the time is over, and reports whether it did.
func (l *logLevel) restore(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.until.IsZero() || now.Before(l.until) {
		return false
	}
	l.now.Set(l.configured)
	l.until = time.Time{}
	return true
}

// levelData is what pages show of the level.
type levelData struct {
	Known      bool // the relay may change it
	Now        string
	Configured string
	Until      time.Time
	Choices    []string
	To         string // of a form that asks
}

func (l *logLevel) data() levelData {
	if l.now == nil {
		return levelData{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return levelData{
		Known: true, Now: levelName(l.now.Level()), Configured: levelName(l.configured), Until: l.until, Choices: []string{"debug", "info", "warn", "error"},
	}
}

func levelName(l slog.Level) string { return strings.ToLower(l.String()) }

// setLevel changes the level of the log for ten minutes: first it asks, then it does it.
func (s *Console) setLevel(w http.ResponseWriter, r *http.Request) {
	if s.level.now == nil {
		s.fail(w, r, http.StatusConflict, errors.New("the program that embeds this relay has the log; change its level there"))
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
	var to slog.Level
	if err := to.UnmarshalText([]byte(r.PostFormValue("level"))); err != nil || levelName(to) != r.PostFormValue("level") {
		s.fail(w, r, http.StatusBadRequest, fmt.Errorf("level is %q; expected debug, info, warn or error", r.PostFormValue("level")))
		return
	}
	if r.PostFormValue("confirmed") == "" {
		d := s.level.data()
		d.To = levelName(to)
		s.render(w, r, http.StatusOK, "level_confirm", "activity", "Are you sure?", d)
		return
	}
	// The line is written at the more talkative of the two levels.
	add := func() {
		s.config.Audit.Add(r.Context(), audit.Entry{Who: admin.ClosedBy(r, "console"), Action: "log level", Detail: levelName(to)})
	}
	if to > s.config.Level.Level() {
		add()
		s.level.set(to, time.Now())
	} else {
		s.level.set(to, time.Now())
		add()
	}
	redirect(w, "activity?"+s.flashes.put("The log level is "+levelName(to)+" now.", false))
}
