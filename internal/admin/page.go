package admin

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"net/http"
	"time"
)

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"count":   Count,
	"pending": Pending,
	"oldest":  func(pending int64, seconds *float64) string { return Oldest(pending, seconds, "–") },
	"age":     func(seconds float64) string { return Age(time.Duration(seconds * float64(time.Second))) },
	"css":     func() template.CSS { return template.CSS(pageCSS) }, //nolint:gosec // our own file
}).Parse(pageHTML))

// pagePolicy is a Content-Security-Policy that allows the page's own style only.
var pagePolicy = func() string {
	sum := sha256.Sum256([]byte(pageCSS))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

// page serves the status as HTML that reloads itself.
func (s *Server) page(w http.ResponseWriter, r *http.Request) {
	report := s.report(r.Context())
	type reason struct{ Name, Reason string }
	data := struct {
		Report
		Sinks    bool
		NotReady []reason
		At       string
	}{Report: report, At: time.Now().UTC().Format("2006-01-02 15:04:05 UTC")}
	for _, one := range s.snapshots {
		data.Sinks = data.Sinks || one.pipeline.Sinks != nil
		for _, n := range one.pipeline.notReady() {
			data.NotReady = append(data.NotReady, reason{n.name, s.config.Redact(n.err.Error())})
		}
	}
	var body bytes.Buffer
	if err := pageTemplate.Execute(&body, data); err != nil {
		s.config.Log.ErrorContext(r.Context(), "rendering the status page failed", "error", err)
		http.Error(w, "rendering the status page failed", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Security-Policy", pagePolicy)
	s.write(w, http.StatusOK, "text/html; charset=utf-8", body.Bytes())
}
