// Package access decides who may use the admin endpoint and the console: by a token in the Authorization header, or by a session that
// a token began.
//
//	no token configured    all requests to localhost or an IP address
//	bearer, or Basic       scripts; Basic with the token as the password and any name
//	session cookie         the console, after a login with the token
//
// A session is a cookie with an id, the token's name and its end, signed with a key that is derived from all tokens. So it is valid in every
// process with the same tokens, survives a restart, and ends when a token changes. A logout ends it in the process that it is sent to.
package access

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"iter"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Token lets its owner in.
type Token struct {
	// Name is who is written down for what is done with it.
	Name string
	// Secret is compared in constant time.
	Secret string
	// ReadOnly refuses everything that changes something.
	ReadOnly bool
}

// User is who sends a request.
type User struct {
	// Name is the token's; "" if no token is configured.
	Name string
	// Person is who uses the token, as a trusted proxy names them; "" if none does.
	Person   string
	ReadOnly bool
}

// String is who is written down; "" if nobody has to say who they are.
func (u User) String() string {
	switch {
	case u.Person == "":
		return u.Name
	case u.Name == "":
		return u.Person
	}
	return u.Person + " via token " + u.Name
}

// SessionLasts is how long a login is valid.
const SessionLasts = 12 * time.Hour

// cookie is the session's. Its path is the one that the browser sees, because it has no Path: the directory of the login page.
const cookie = "relay_session"

// knownFor is for how long after its end a session is still known as one that is over; see [Guard.Ended].
const knownFor = 7 * 24 * time.Hour

// Guard knows the tokens. It is safe for concurrent use.
type Guard struct {
	tokens []Token
	key    [sha256.Size]byte
	proxy  Proxy
	ended  endedSessions
}

// New returns a guard of these tokens. Without tokens it lets in all requests to localhost or an IP address.
func New(tokens ...Token) *Guard {
	g := &Guard{}
	hash := sha256.New()
	hash.Write([]byte("relay session"))
	for _, t := range tokens {
		if t.Secret == "" {
			continue
		}
		g.tokens = append(g.tokens, t)
		for _, part := range []string{t.Name, t.Secret, strconv.FormatBool(t.ReadOnly)} {
			hash.Write([]byte(strconv.Itoa(len(part)) + ":" + part))
		}
	}
	hash.Sum(g.key[:0])
	return g
}

// SetProxy has the guard believe the headers of proxies. It must be called before the guard is used.
func (g *Guard) SetProxy(p Proxy) { g.proxy = p }

// Open reports whether no token is configured.
func (g *Guard) Open() bool { return len(g.tokens) == 0 }

// User returns who sends the request; false: nobody who may. If no token is configured, only requests to localhost or an IP address
// may, because another name may have been pointed to this machine after its page was loaded (DNS rebinding).
func (g *Guard) User(r *http.Request) (u User, ok bool) {
	if g.Open() {
		ok = isLocalHost(r)
	} else if u, ok = g.ByToken(r); !ok {
		u, ok = g.bySession(r)
	}
	if ok {
		u.Person = g.proxy.person(r)
	}
	return u, ok
}

// ByToken returns whose token the request has in its Authorization header.
func (g *Guard) ByToken(r *http.Request) (User, bool) {
	header := r.Header.Get("Authorization")
	if scheme, rest, found := strings.Cut(header, " "); found && strings.EqualFold(scheme, "Bearer") {
		return g.Login(strings.TrimSpace(rest))
	}
	if _, password, ok := r.BasicAuth(); ok {
		return g.Login(password)
	}
	return User{}, false
}

// Login returns whose token it is.
func (g *Guard) Login(secret string) (u User, ok bool) {
	got := sha256.Sum256([]byte(secret)) // hashes have the same length, so the time reveals nothing about the token's
	for _, t := range g.tokens {
		want := sha256.Sum256([]byte(t.Secret))
		if subtle.ConstantTimeCompare(want[:], got[:]) == 1 {
			u, ok = User{Name: t.Name, ReadOnly: t.ReadOnly}, true
		}
	}
	return u, ok
}

// Begin begins a session. secure: the browser must send it over TLS only.
func (g *Guard) Begin(w http.ResponseWriter, u User, secure bool) {
	text := strconv.FormatInt(time.Now().Add(SessionLasts).Unix(), 10) + " " + strconv.FormatBool(u.ReadOnly) + " " + rand.Text() + " " + u.Name
	value := base64.RawURLEncoding.EncodeToString([]byte(text)) + "." + base64.RawURLEncoding.EncodeToString(g.sign(text))
	http.SetCookie(w, &http.Cookie{Name: cookie, Value: value, MaxAge: int((SessionLasts + knownFor).Seconds()), HttpOnly: true, Secure: secure, SameSite: http.SameSiteStrictMode})
}

// Ended reports whether a request comes from a browser that had a session, which is over.
func (g *Guard) Ended(r *http.Request) bool {
	if _, ok := g.bySession(r); ok {
		return false
	}
	for _, c := range r.CookiesNamed(cookie) {
		if c.Value != "" {
			return true
		}
	}
	return false
}

// End ends the session of a request: in the browser, and in this process also for a copy of its cookie.
func (g *Guard) End(w http.ResponseWriter, r *http.Request) {
	for s := range g.sessions(r) {
		g.ended.add(s)
	}
	http.SetCookie(w, &http.Cookie{Name: cookie, MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode})
}

func (g *Guard) sign(text string) []byte {
	mac := hmac.New(sha256.New, g.key[:])
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

func (g *Guard) bySession(r *http.Request) (User, bool) {
	for s := range g.sessions(r) {
		return s.user, true
	}
	return User{}, false
}

// session is what a cookie says.
type session struct {
	id   string
	ends time.Time
	user User
}

// sessions yields the valid sessions of a request.
func (g *Guard) sessions(r *http.Request) iter.Seq[session] {
	return func(yield func(session) bool) {
		for _, c := range r.CookiesNamed(cookie) { // another path may have one of the same name
			if s, ok := g.session(c.Value); ok && !g.ended.has(s) && !yield(s) {
				return
			}
		}
	}
}

// session reads a cookie. It returns false if the cookie is not signed, or over.
func (g *Guard) session(value string) (s session, ok bool) {
	text, signature, _ := strings.Cut(value, ".")
	said, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return s, false
	}
	mac, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil || !hmac.Equal(mac, g.sign(string(said))) {
		return s, false
	}
	parts := strings.SplitN(string(said), " ", 4)
	if len(parts) != 4 {
		return s, false
	}
	ends, err := strconv.ParseInt(parts[0], 10, 64)
	s = session{id: parts[2], ends: time.Unix(ends, 0), user: User{Name: parts[3], ReadOnly: parts[1] == "true"}}
	return s, err == nil && time.Now().Before(s.ends)
}

// isLocalHost reports whether the Host of a request is localhost or an address.
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
