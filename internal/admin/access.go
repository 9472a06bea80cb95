package admin

import (
	"errors"
	"net/http"

	"github.com/outboxrelay/relay/internal/access"
)

// denied answers requests to /api that are not let in.
func (s *Server) denied() access.Denied {
	reject := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { s.reject(w, http.StatusForbidden, errors.New(text)) }
	}
	return access.Denied{
		Unknown: func(w http.ResponseWriter, r *http.Request) {
			if s.config.Guard.Open() {
				reject("the Host header is unknown; expected localhost or an IP address (or set admin.token)")(w, r)
				return
			}
			w.Header().Set("WWW-Authenticate", `Basic realm="relay: any name, and admin.token as the password", charset="UTF-8"`)
			w.Header().Add("WWW-Authenticate", `Bearer realm="relay"`)
			http.Error(w, "the token is missing or wrong; expected Authorization: Bearer TOKEN", http.StatusUnauthorized)
		},
		ReadOnly:  reject("the token is read-only; expected one that may change something"),
		OtherSite: reject("a request from another site was rejected"),
	}
}
