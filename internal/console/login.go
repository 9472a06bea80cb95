package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// loginData is what the page of the login, and the one after it, show.
type loginData struct {
	Problem string
	// Ended: there was a session.
	Ended bool
	// To is where the user wanted to go, from the root; "" is the overview.
	To string
	// Kept is the form that the user sent without a session, encoded; "": none. Lost: it was too long.
	Kept string
	Lost bool
}

// maxKept is how long an encoded form may be that a login keeps.
const maxKept = maxTried / 2

// notKept are fields that a login does not keep: what was confirmed is asked again.
var notKept = []string{"confirmed", "until", "token"}

// Fields are those of Kept.
func (d *loginData) Fields() (all []field) {
	form, err := url.ParseQuery(d.Kept)
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(form))
	for name := range form {
		if !slices.Contains(notKept, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		for _, value := range form[name] {
			all = append(all, field{name, strings.ReplaceAll(value, "\r\n", "\n")}) // browsers send the line ends of a textarea so
		}
	}
	return all
}

// Written are the fields of Kept that somebody has written at length.
func (d *loginData) Written() (all []field) {
	for _, f := range d.Fields() {
		if slices.Contains([]string{"text", "headers", "pasted", "body", "reason"}, f.Name) && f.Value != "" {
			all = append(all, f)
		}
	}
	return all
}

// localPath returns a path with its query, from the root, if it leads to a page of the console; otherwise "".
func localPath(to string) string {
	u, err := url.Parse(to)
	if err != nil || u.IsAbs() || u.Host != "" || u.Opaque != "" || strings.HasPrefix(to, "/") || strings.ContainsAny(to, "\\") || strings.Contains(u.Path, "..") {
		return ""
	}
	return to
}

// loginLink is the page of the login, from the root, that leads back to what a request asked for.
func (s *Console) loginLink(r *http.Request) string {
	q := url.Values{}
	if to := strings.TrimPrefix(r.URL.EscapedPath(), "/"); to != "" || r.URL.RawQuery != "" {
		if r.URL.RawQuery != "" {
			to += "?" + r.URL.RawQuery
		}
		q.Set("to", to)
	}
	if s.config.Guard.Ended(r) {
		q.Set("ended", "1")
	}
	return strings.TrimSuffix("login?"+q.Encode(), "?")
}

// loginPage asks for a token.
func (s *Console) loginPage(w http.ResponseWriter, r *http.Request) {
	if s.config.Guard.Open() {
		redirect(w, root(r))
		return
	}
	q := r.URL.Query()
	s.render(w, r, http.StatusOK, "login", "", "Log in", &loginData{Ended: q.Get("ended") != "" || s.config.Guard.Ended(r), To: localPath(q.Get("to"))})
}

// loginFor asks for a token where somebody sent a form without a session. The form comes back after the login: nothing is stored.
func (s *Console) loginFor(w http.ResponseWriter, r *http.Request) {
	d := loginData{Ended: true, To: strings.TrimPrefix(r.URL.EscapedPath(), "/")}
	r.Body = http.MaxBytesReader(w, r.Body, maxTried)
	if err := r.ParseForm(); err != nil || len(r.PostForm.Encode()) > maxKept {
		d.Lost = true
	} else {
		d.Kept = r.PostForm.Encode()
	}
	s.render(w, r, http.StatusUnauthorized, "login", "", "Log in", &d)
}

// login begins a session.
func (s *Console) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxTried)
	u, ok := s.config.Guard.Login(strings.TrimSpace(r.PostFormValue("token"))) // as it was pasted
	d := loginData{To: localPath(r.PostFormValue("to")), Kept: r.PostFormValue("kept")}
	if !ok {
		s.config.Log.WarnContext(r.Context(), "a login to the console failed", "from", r.RemoteAddr)
		d.Problem = "This token is unknown. Expected admin.token or one of admin.tokens in relay.yaml."
		s.render(w, r, http.StatusUnauthorized, "login", "", "Log in", &d)
		return
	}
	s.config.Guard.Begin(w, u, s.config.Guard.Secure(r))
	s.config.Log.InfoContext(r.Context(), "login to the console", "user", u.Name, "read_only", u.ReadOnly, "from", r.RemoteAddr)
	if d.To != "" && d.Fields() != nil {
		s.render(w, r, http.StatusOK, "login_continue", "", "Continue", &d)
		return
	}
	redirect(w, root(r)+d.To)
}

func (s *Console) logout(w http.ResponseWriter, r *http.Request) {
	s.config.Guard.End(w, r)
	redirect(w, root(r)+"login")
}

// redirect sends the browser to a path that is relative to the request's: http.Redirect would make it absolute, without the prefix that a
// proxy removed.
func redirect(w http.ResponseWriter, path string) {
	w.Header().Set("Location", path)
	w.WriteHeader(http.StatusSeeOther)
}
