package admin

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/outboxrelay/relay/internal/access"
	"github.com/outboxrelay/relay/internal/audit"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Config of the endpoint.
type Config struct {
	// Guard lets in those who may use / and /api; nil leaves them open.
	Guard *access.Guard
	// HidePayloads leaves payload, headers and key of events out of /api/dead.
	HidePayloads bool
	// TLS has the certificate of [Server.Run]; nil serves plain HTTP.
	TLS *tls.Config
	// Exemplars lets /metrics answer in the format OpenMetrics, which has exemplars: the trace of a batch, beside the buckets of histograms.
	Exemplars bool
	// Audit gets everything that somebody changes; nil means one that only logs.
	Audit *audit.Log
	// Redact removes secrets from error texts; nil changes nothing.
	Redact func(text string) string
	// Log receives warnings; nil means slog.Default.
	Log *slog.Logger
}

// Server is the admin endpoint.
type Server struct {
	config    Config
	metrics   *Metrics
	snapshots snapshots
	console   http.Handler
}

// New returns the endpoint of pipelines. It registers their status with m, so it must
// be called once for each Metrics.
func New(pipelines []Pipeline, m *Metrics, c Config) *Server {
	if c.Redact == nil {
		c.Redact = func(text string) string { return text }
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Guard == nil {
		c.Guard = access.New()
	}
	if c.Audit == nil {
		c.Audit = audit.New(c.Log)
	}
	s := &Server{config: c, metrics: m}
	for _, p := range pipelines {
		s.snapshots = append(s.snapshots, newSnapshot(p))
	}
	m.registry.MustRegister(gauges{s.snapshots})
	return s
}

// SetConsole has the console serve everything that is not the endpoint's own. It must be called before Handler and Run.
func (s *Server) SetConsole(h http.Handler) { s.console = h }

// Pipelines are those of the endpoint, in order.
func (s *Server) Pipelines() []Pipeline {
	all := make([]Pipeline, len(s.snapshots))
	for i, one := range s.snapshots {
		all[i] = one.pipeline
	}
	return all
}

// Listen opens the address, host:port, for [Server.Run].
func Listen(ctx context.Context, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("admin.listen is %s, which is in use, maybe by another relay; choose another port, or \"\" to disable the endpoint: %w", address, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listening on admin.listen (%s): %w", address, err)
	}
	return l, nil
}

// drainTimeout is how long requests in flight may take when the server stops.
const drainTimeout = 2 * time.Second

// Run serves on l until ctx ends, then finishes requests in flight and closes l.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.config.Log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan error, 1)
	serving, end := context.WithCancel(ctx)
	go func() {
		<-serving.Done()
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		err := server.Shutdown(drain)
		if errors.Is(err, context.DeadlineExceeded) {
			err = server.Close() // slow clients lose their response
		}
		stopped <- err
	}()
	serve := func() error { return server.Serve(l) }
	if s.config.TLS != nil {
		server.TLSConfig = s.config.TLS
		serve = func() error { return server.ServeTLS(l, "", "") }
	}
	err := serve()
	end()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return errors.Join(err, <-stopped)
}

// Handler returns the handler for all paths.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { s.write(w, http.StatusOK, "text/plain", []byte("ok\n")) })
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(prometheus.GathererFunc(s.metrics.gather), promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(s.config.Log.Handler(), slog.LevelWarn), EnableOpenMetrics: s.config.Exemplars,
	}))
	guard, denied := s.config.Guard, s.denied()
	mux.Handle("GET /api/status", guard.Protect(s.status, denied))
	mux.Handle("GET /api/dead", guard.Protect(s.listDead, denied))
	mux.Handle("POST /api/dead/replay", guard.ProtectChange(s.changeDead(Replay), denied))
	mux.Handle("POST /api/dead/discard", guard.ProtectChange(s.changeDead(Discard), denied))
	if s.console != nil {
		mux.Handle("/", s.console)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	})
}

// readyz reports which pipelines are not ready. The reason may quote events, so it is for requests with the
// token; all others get its class.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	type state struct {
		Name   string `json:"name"`
		Ready  bool   `json:"ready"`
		Class  string `json:"class,omitempty"`
		Reason string `json:"reason,omitempty"`
	}
	type pipeline struct {
		state
		Sinks []state `json:"sinks,omitempty"`
	}
	response := struct {
		Ready     bool       `json:"ready"`
		Pipelines []pipeline `json:"pipelines"`
	}{Ready: true}
	code := http.StatusOK
	stateOf := func(name string, of Readiness) state {
		err := of.Ready()
		if err == nil {
			return state{Name: name, Ready: true}
		}
		response.Ready, code = false, http.StatusServiceUnavailable
		one := state{Name: name, Class: classOf(err)}
		if _, ok := s.config.Guard.ByToken(r); ok {
			one.Reason = s.config.Redact(err.Error())
		}
		return one
	}
	for _, one := range s.snapshots {
		p := pipeline{state: stateOf(one.pipeline.Name, one.pipeline.Health)}
		for _, sink := range one.pipeline.Sinks {
			p.Sinks = append(p.Sinks, stateOf(sink.Name, sink.Health))
		}
		response.Pipelines = append(response.Pipelines, p)
	}
	s.writeJSON(w, code, response)
}

func (s *Server) status(w http.ResponseWriter, r *http.Request) {
	report := s.Report(r.Context())
	code := http.StatusOK
	if len(report.Errors) > 0 {
		code = http.StatusServiceUnavailable
	}
	s.writeJSON(w, code, report)
}

// Report reads the status of all pipelines, or of those that are named. It is at most a second old, and takes at most three.
func (s *Server) Report(ctx context.Context, names ...string) Report {
	report := Report{Pipelines: []PipelineReport{}}
	s.snapshots.named(names).each(ctx, func(p Pipeline, status buffer.Status, unsendable, err error) {
		if err != nil {
			one := ReportError{Name: p.Name, Error: s.config.Redact(err.Error())}
			locked, isLocked := errors.AsType[*buffer.LockedError](err)
			if seen := p.TableLocker(); seen != nil && (isLocked || errors.Is(err, context.DeadlineExceeded)) { // it knows what waits
				locked = seen
			}
			if locked != nil {
				one.TableLockedBy, one.Error = NewLockReport(locked), s.config.Redact(locked.Error())
			}
			report.Errors = append(report.Errors, one)
			return
		}
		one := NewPipelineReport(p.Name, p.MaxWaiting, p.sinkNames(), p.Notifies, status, s.config.Redact)
		if unsendable != nil {
			one.SetNothingSent(s.config.Redact(unsendable.Error()), errors.Is(unsendable, buffer.ErrNoWrites))
		}
		if h, ok := p.Health.Worst(); ok {
			one.VacuumBlockedBy = NewBlockerReport(h)
		}
		if h, holds, ok := p.Locker(); ok {
			one.SetLocker(h, holds)
		}
		one.LocksSeenAt = p.LocksSeenAt()
		if locked := p.TableLocker(); locked != nil {
			one.SetTableLocker(locked)
		}
		if p.Scheduled {
			one.SetScheduled()
		}
		report.Pipelines = append(report.Pipelines, one)
	})
	return report
}

// Changed says that a user changed a pipeline: the next report of it is read anew.
func (s *Server) Changed(pipeline string) {
	for _, one := range s.snapshots {
		if one.pipeline.Name == pipeline {
			one.changed.Store(true)
		}
	}
}

func (s *Server) writeJSON(w http.ResponseWriter, code int, v any) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil { // cannot happen: all values are valid JSON
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	s.write(w, code, "application/json", text.Bytes())
}

func (s *Server) write(w http.ResponseWriter, code int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(code)
	if _, err := w.Write(body); err != nil {
		s.config.Log.Debug("writing a response failed", "error", err)
	}
}
