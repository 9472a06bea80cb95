package access

import (
	"context"
	"net/http"
)

// userKey is where a request's user stands in its context.
type userKey struct{}

// UserOf returns who sends a request that a handler of [Guard.Protect] or [Guard.ProtectChange] got.
func UserOf(ctx context.Context) User {
	u, _ := ctx.Value(userKey{}).(User)
	return u
}

// Denied answers a request that is not let in.
type Denied struct {
	// Unknown answers a request without a valid token or session, or to an unknown Host if no token is configured.
	Unknown http.HandlerFunc
	// ReadOnly answers a request that changes something, of a user who may not.
	ReadOnly http.HandlerFunc
	// OtherSite answers a request that changes something and comes from another site.
	OtherSite http.HandlerFunc
}

// Protect lets through requests of a user.
func (g *Guard) Protect(next http.HandlerFunc, d Denied) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, ok := g.User(r)
		if !ok {
			d.Unknown(w, r)
			return
		}
		next(w, r.WithContext(context.WithValue(r.Context(), userKey{}, u)))
	})
}

// ProtectChange is Protect for requests that change something. It rejects those of users who may only read, and those
// from other sites, for which a browser may send its credentials.
func (g *Guard) ProtectChange(next http.HandlerFunc, d Denied) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(d.OtherSite)
	return protection.Handler(g.Protect(func(w http.ResponseWriter, r *http.Request) {
		if UserOf(r.Context()).ReadOnly {
			d.ReadOnly(w, r)
			return
		}
		next(w, r)
	}, d))
}
