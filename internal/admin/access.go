package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// protected requires the token, or a Host of this machine if no token is set.
func (s *Server) protected(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case s.config.Token == "" && !isLocalHost(r):
			s.reject(w, http.StatusForbidden, errors.New("the Host header is unknown; expected localhost or an IP address (or set admin.token)"))
		case s.config.Token != "" && !s.hasToken(r):
			w.Header().Set("WWW-Authenticate", `Basic realm="relay: any name, and admin.token as the password", charset="UTF-8"`)
			w.Header().Add("WWW-Authenticate", `Bearer realm="relay"`)
			http.Error(w, "the token is missing or wrong; expected Authorization: Bearer TOKEN", http.StatusUnauthorized)
		default:
			next(w, r)
		}
	})
}

// protectedChange is protected for requests that change something. It also rejects
// requests from other sites, for which a browser may send its credentials.
func (s *Server) protectedChange(next http.HandlerFunc) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.reject(w, http.StatusForbidden, errors.New("a request from another site was rejected"))
	}))
	return protection.Handler(s.protected(next))
}

// hasToken reports whether the request has the token, as a bearer token or as the
// password of Basic authentication, which browsers support.
func (s *Server) hasToken(r *http.Request) bool {
	given, ok := "", false
	if scheme, rest, found := strings.Cut(r.Header.Get("Authorization"), " "); found && strings.EqualFold(scheme, "Bearer") {
		given, ok = strings.TrimSpace(rest), true
	} else {
		_, given, ok = r.BasicAuth()
	}
	// Hashes have the same length, so the time reveals nothing about the token's.
	want, got := sha256.Sum256([]byte(s.config.Token)), sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1 && ok
}

// isLocalHost reports whether the Host of a request is localhost or an address. Any
// other name may be an attacker's that was bound to 127.0.0.1 after its page was
// loaded (DNS rebinding), which a browser considers the same origin.
func isLocalHost(r *http.Request) bool {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	if host = strings.ToLower(host); host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}
