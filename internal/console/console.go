package console

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/outboxrelay/relay/internal/access"
	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/audit"
	"github.com/outboxrelay/relay/internal/diagnosis"
	"github.com/outboxrelay/relay/internal/preview"
)

// Source is what the console shows.
type Source interface {
	// Report is the status of all pipelines, or of those that are named, at most a second old.
	Report(ctx context.Context, names ...string) admin.Report
	// Changed says that a user changed a pipeline: the next report of it is read anew.
	Changed(pipeline string)
	// Pipelines are those of this process, in order.
	Pipelines() []admin.Pipeline
}

// Config of the console.
type Config struct {
	Source Source
	Guard  *access.Guard
	// Process names this one as the reports of relays do: host/pid.
	Process string
	Version string
	// HidePayloads leaves payload, headers and key of events out of all pages.
	HidePayloads bool
	// Previews prepare what is tried, one for each pipeline of this process.
	Previews []preview.Pipeline
	// Redact removes secrets from texts that may quote servers.
	Redact func(text string) string
	// ForFile names the configuration file in commands that users can paste; nil changes nothing.
	ForFile func(text string) string
	// Diagnose checks all databases and sinks of this process, as relay doctor does; every text goes through clean.
	Diagnose func(ctx context.Context, clean func(string) string) diagnosis.Report
	// Audit gets everything that somebody changes; required.
	Audit *audit.Log
	// Level is the log's, to change for a while; nil: it is not the relay's to change.
	Level *slog.LevelVar
	Log   *slog.Logger
}

// Console serves the pages. It is safe for concurrent use.
type Console struct {
	config  Config
	mux     *http.ServeMux
	history *history
	latest  *latest
	live    *live
	level   *logLevel
	doctor  *doctor
	inUse   atomic.Bool
	// lastRelays are for the overview while the database does not answer.
	lastRelays lastRelays
	flashes    flashes
	// servers are those of databases, by pipeline, and those of sinks, by PIPELINE/SINK, which is PIPELINE/ for a single one.
	servers map[string]string
	// deadCauses are for the overview.
	deadCauses    deadCauses
	refusedTopics refusedTopics
	// rendered are the rows of the overview as they were rendered last, by id: most of them are the same a second later. Run owns it.
	rendered map[string]renderedRow
}

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed assets
var assetFiles embed.FS

// New returns a console. [Console.Run] feeds it.
func New(c Config) *Console {
	if c.Redact == nil {
		c.Redact = func(text string) string { return text }
	}
	if c.ForFile == nil {
		c.ForFile = func(text string) string { return text }
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	s := &Console{config: c, mux: http.NewServeMux(), history: newHistory(), latest: newLatest(), deadCauses: deadCauses{all: map[string]deadCause{}}, live: newLive(), level: newLogLevel(c.Level), doctor: newDoctor()}
	if c.Source != nil {
		s.servers = serversOf(c.Source.Pipelines())
	}
	assets, err := fs.Sub(assetFiles, "assets")
	if err != nil { // cannot happen
		panic(err)
	}
	files := http.StripPrefix("/assets/", http.FileServerFS(assets))
	s.mux.HandleFunc("GET /assets/", func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/") {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Cache-Control", "public, max-age=3600")
		files.ServeHTTP(w, r)
	})
	s.mux.HandleFunc("GET /login", s.loginPage)
	s.mux.Handle("POST /login", sameSite(http.HandlerFunc(s.login)))
	s.mux.Handle("POST /logout", sameSite(http.HandlerFunc(s.logout)))
	s.page("GET /{$}", s.overview)
	s.page("GET /live", s.serveLive)
	s.page("GET /pipelines/{name}", s.pipeline)
	s.page("GET /pipelines/{name}/history", s.pipelineHistory)
	s.page("GET /batches", s.batches)
	s.page("GET /batches/{pipeline}/{group}", s.batchShow)
	s.page("GET /dead", s.deadList)
	s.page("GET /dead/{pipeline}/{id}", s.deadShow)
	s.page("GET /dead/{pipeline}/{id}/edit", s.deadEditForm)
	s.page("GET /doctor", s.doctorPage)
	s.page("GET /try", s.tryIt)
	s.mux.Handle("POST /pipelines/{name}/retry", s.config.Guard.ProtectChange(s.retryNow, s.denied()))
	s.mux.Handle("POST /pipelines/{name}/pause", s.config.Guard.ProtectChange(s.pauseChange(false), s.denied()))
	s.mux.Handle("POST /pipelines/{name}/resume", s.config.Guard.ProtectChange(s.pauseChange(true), s.denied()))
	s.page("GET /activity", s.activity)
	s.mux.Handle("POST /level", s.config.Guard.ProtectChange(s.setLevel, s.denied()))
	s.mux.Handle("POST /batches/{pipeline}/{group}/retry", s.config.Guard.ProtectChange(s.batchChange(false), s.denied()))
	s.mux.Handle("POST /batches/{pipeline}/{group}/divide", s.config.Guard.ProtectChange(s.batchChange(true), s.denied()))
	s.mux.Handle("POST /dead/{pipeline}/{id}/edit", s.config.Guard.ProtectChange(s.deadEdit, s.denied()))
	s.mux.Handle("POST /try", s.config.Guard.ProtectChange(s.tryIt, s.denied()))
	s.mux.Handle("POST /dead/change", s.config.Guard.ProtectChange(s.deadChange, s.denied()))
	return s
}

func serversOf(pipelines []admin.Pipeline) map[string]string {
	all := map[string]string{}
	for i := range pipelines {
		p := &pipelines[i]
		all[p.Name], all[p.Name+"/"] = p.Database, p.Server
		for _, sink := range p.Sinks {
			all[p.Name+"/"+sink.Name] = sink.Server
		}
	}
	return all
}

// Use says that somebody may see the console: until then Run reads nothing.
func (s *Console) Use() { s.inUse.Store(true) }

// page adds a page for users.
func (s *Console) page(pattern string, serve http.HandlerFunc) {
	s.mux.Handle(pattern, s.config.Guard.Protect(serve, s.denied()))
}

// sameSite rejects requests from other sites.
func sameSite(next http.Handler) http.Handler { return http.NewCrossOriginProtection().Handler(next) }

// policy allows the console's own files. Its style is a file too.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// ServeHTTP implements http.Handler.
func (s *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Security-Policy", policy)
	s.mux.ServeHTTP(w, r)
}

// denied answers requests that are not let in.
func (s *Console) denied() access.Denied {
	show := func(code int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { s.fail(w, r, code, errors.New(text)) }
	}
	return access.Denied{
		Unknown: func(w http.ResponseWriter, r *http.Request) {
			switch {
			case s.config.Guard.Open():
				show(http.StatusForbidden, "the Host header is unknown; expected localhost or an IP address (or set admin.token)")(w, r)
			case r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html"):
				redirect(w, root(r)+s.loginLink(r))
			case r.Method == http.MethodPost && strings.Contains(r.Header.Get("Accept"), "text/html"):
				s.loginFor(w, r)
			default:
				w.Header().Set("WWW-Authenticate", `Bearer realm="relay"`)
				show(http.StatusUnauthorized, "not logged in, or the session is over; log in again")(w, r)
			}
		},
		ReadOnly:  show(http.StatusForbidden, "this token is read-only; log in with one that may change something"),
		OtherSite: show(http.StatusForbidden, "a request from another site was rejected"),
	}
}

// root is the relative path from a request's page to the overview.
func root(r *http.Request) string {
	depth := strings.Count(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	if depth == 0 {
		return "./"
	}
	return strings.Repeat("../", depth)
}

// page is what every template gets.
type page struct {
	Root    string
	Title   string
	Section string // overview, batches, dead, doctor, try or activity
	User    access.User
	Session bool // somebody is logged in
	Known   bool // somebody is, or nobody has to be
	Version string
	Data    any
}

// layouts are the templates of the pages: the layout with the content of one file each.
var layouts = func() map[string]*template.Template {
	base := template.Must(template.New("layout.html").Funcs(functions).ParseFS(templateFiles, "templates/layout.html", "templates/parts.html"))
	all := map[string]*template.Template{}
	for _, name := range []string{
		"overview", "pipeline", "batches", "batch", "batch_confirm", "dead", "dead_show", "dead_edit", "dead_edit_confirm", "dead_edit_lost", "dead_confirm", "try", "doctor",
		"retry_confirm", "pause_confirm", "activity", "level_confirm", "login", "login_continue", "error",
	} {
		all[name] = template.Must(template.Must(base.Clone()).ParseFS(templateFiles, "templates/"+name+".html"))
	}
	return all
}()

var functions = template.FuncMap{
	"count":   admin.Count,
	"pending": admin.Pending, "pendingText": pendingText,
	"age":     func(seconds float64) string { return admin.Age(time.Duration(seconds * float64(time.Second))) },
	"rate":    rateText,
	"utc":     func(at time.Time) string { return at.UTC().Format(time.RFC3339) },
	"rest":    func(total int64, shown int) int64 { return total - int64(shown) },
	"command": isCommand,
	"asset":   asset,
	"visible": func(text string) string { return visible([]byte(text)) },
	"clock":   func(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05 UTC") },
	"plural": func(n any, one, many string) string {
		if fmt.Sprint(n) == "1" {
			return one
		}
		return many
	},
}

// assetVersion changes with the files, which browsers keep for an hour: a new relay's pages must not meet the script of the one before.
var assetVersion = func() string {
	sum := sha256.New()
	err := fs.WalkDir(assetFiles, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := assetFiles.ReadFile(path)
		sum.Write(text) // a hash never fails
		return err
	})
	if err != nil { // cannot happen
		panic(err)
	}
	return hex.EncodeToString(sum.Sum(nil)[:6])
}()

// asset is the path of one of the console's files, from the root.
func asset(name string) string { return "assets/" + name + "?v=" + assetVersion }

// rateText formats events per second, or milliseconds.
func rateText(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 10:
		return fmt.Sprintf("%.1f", v)
	}
	return admin.Count(int64(v + .5))
}

// render writes a page.
func (s *Console) render(w http.ResponseWriter, r *http.Request, code int, name, section, title string, data any) {
	p := page{
		Root: root(r), Title: title, Section: section, User: access.UserOf(r.Context()), Version: s.config.Version, Data: data,
	}
	p.Session = !s.config.Guard.Open() && p.User.Name != ""
	p.Known = p.Session || s.config.Guard.Open()
	var body bytes.Buffer
	if err := layouts[name].ExecuteTemplate(&body, "layout.html", p); err != nil {
		s.config.Log.ErrorContext(r.Context(), "rendering a page of the console failed", "page", name, "error", err)
		http.Error(w, "rendering the page failed", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	if _, err := w.Write(body.Bytes()); err != nil {
		s.config.Log.Debug("writing a response failed", "error", err)
	}
}

// fail writes a page with an error.
func (s *Console) fail(w http.ResponseWriter, r *http.Request, code int, err error) {
	s.render(w, r, code, "error", "", http.StatusText(code), s.config.Redact(err.Error()))
}
