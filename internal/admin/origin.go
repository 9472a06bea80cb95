package admin

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// sameOrigin lets through what no other site's page can have sent: browsers say
// where a request comes from (Sec-Fetch-Site, Origin), and a name that an attacker's
// DNS points to this machine is not one of ours.
func (s *Server) sameOrigin(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.refuse(w, http.StatusForbidden, errors.New("a request from another site was refused"))
	}))
	return protection.Handler(next)
}

// ownHost refuses names that are none of this machine's, where neither a token nor
// the address to listen on keeps strangers off: a page whose own name was bound to
// 127.0.0.1 after it was loaded (DNS rebinding) is of the same origin to a browser.
func (s *Server) ownHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isOwn(r) {
			s.refuse(w, http.StatusForbidden, errors.New("this name is not known here, localhost or an address was expected (or set admin.token)"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isOwn tells whether the request's Host cannot be a name of somebody else's.
func isOwn(r *http.Request) bool {
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
