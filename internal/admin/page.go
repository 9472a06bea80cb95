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
	"age":     func(seconds float64) string { return Age(time.Duration(seconds * float64(time.Second))) },
	"css":     func() template.CSS { return template.CSS(pageCSS) }, //nolint:gosec // our own file
}).Parse(pageHTML))

// pagePolicy lets the page use its own style and nothing else.
var pagePolicy = func() string {
	sum := sha256.Sum256([]byte(pageCSS))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

// page is the status for people. It reloads itself.
func (s *Server) page(w http.ResponseWriter, r *http.Request) {
	report := s.report(r.Context())
	type notReady struct{ Name, Reason string }
	data := struct {
		Report
		NotReady []notReady
		At       string
	}{Report: report, At: time.Now().UTC().Format("2006-01-02 15:04:05 UTC")}
	for _, one := range s.snapshots {
		if err := one.pipeline.Ready(); err != nil {
			data.NotReady = append(data.NotReady, notReady{one.pipeline.Name(), s.config.Redact(err.Error())})
		}
	}
	var body bytes.Buffer
	if err := pageTemplate.Execute(&body, data); err != nil {
		s.config.Log.ErrorContext(r.Context(), "cannot make the page", "error", err)
		http.Error(w, "the page could not be made", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Security-Policy", pagePolicy)
	s.write(w, http.StatusOK, "text/html; charset=utf-8", body.Bytes())
}
