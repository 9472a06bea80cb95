package console

import (
	"net/http"
)

// loginPage asks for a token.
func (s *Console) loginPage(w http.ResponseWriter, r *http.Request) {
	if s.config.Guard.Open() {
		redirect(w, root(r))
		return
	}
	s.render(w, r, http.StatusOK, "login", "", "Log in", "")
}

// login begins a session.
func (s *Console) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	u, ok := s.config.Guard.Login(r.PostFormValue("token"))
	if !ok {
		s.config.Log.WarnContext(r.Context(), "a login to the console failed", "from", r.RemoteAddr)
		s.render(w, r, http.StatusUnauthorized, "login", "", "Log in", "This token is unknown. Expected admin.token or one of admin.tokens in relay.yaml.")
		return
	}
	s.config.Guard.Begin(w, u, s.config.Guard.Secure(r))
	s.config.Log.InfoContext(r.Context(), "login to the console", "user", u.Name, "read_only", u.ReadOnly, "from", r.RemoteAddr)
	redirect(w, root(r))
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
