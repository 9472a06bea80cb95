package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// changing guards what changes something: also from the pages of other sites, which
// a browser would let in with whatever it knows.
func (s *Server) changing(next http.HandlerFunc) http.Handler {
	return s.sameOrigin(s.guarded(next))
}

// guarded lets in who has the token, if one is set; else whoever asks for this
// machine.
func (s *Server) guarded(next http.HandlerFunc) http.Handler {
	if s.config.Token == "" {
		return s.ownHost(next)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.knows(r) {
			w.Header().Set("WWW-Authenticate", `Basic realm="relay: any name, and admin.token as the password", charset="UTF-8"`)
			w.Header().Add("WWW-Authenticate", `Bearer realm="relay"`)
			http.Error(w, "the token was expected: Authorization: Bearer TOKEN", http.StatusUnauthorized)
			return
		}
		next(w, r)
	})
}

// knows tells whether the request carries the token: as a bearer's, or as the
// password of Basic authentication, which is what a browser can ask for.
func (s *Server) knows(r *http.Request) bool {
	given, ok := "", false
	if scheme, rest, found := strings.Cut(r.Header.Get("Authorization"), " "); found && strings.EqualFold(scheme, "Bearer") {
		given, ok = strings.TrimSpace(rest), true
	} else {
		_, given, ok = r.BasicAuth()
	}
	// Hashes are of the same length, so the time tells nothing of the token's.
	want, got := sha256.Sum256([]byte(s.config.Token)), sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1 && ok
}
