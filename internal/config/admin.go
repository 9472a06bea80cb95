package config

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"github.com/goccy/go-yaml/ast"

	"github.com/outboxrelay/relay/internal/certfile"
)

// Admin is the HTTP endpoint for probes, metrics and the console.
type Admin struct {
	// Listen is host:port; "" disables the endpoint.
	Listen string
	// Token and Tokens let in; see [Admin.AllTokens]. At least one is set if Listen is beyond loopback.
	Token Secret
	// Tokens have unique names and distinct secrets, which are not empty. Nil if there are none.
	Tokens []Token
	// Payloads reports whether payload, headers and key of an event are shown.
	Payloads bool
	// TLS is zero for plain HTTP.
	TLS ServerTLS
	// Proxy is zero if no proxy is trusted.
	Proxy Proxy
}

// Proxy says which reverse proxies are in front of the admin endpoint.
type Proxy struct {
	// Trusted are the addresses whose headers are believed.
	Trusted []netip.Prefix
	// UserHeader is the header with the name of the person; "" if there is none.
	UserHeader string
}

// ServerTLS is the certificate of the admin endpoint.
type ServerTLS struct {
	// Place is where the section begins in the file.
	Place Place
	// Cert and Key are PEM files; both or none are set.
	Cert, Key string
}

// Token is one of several tokens of the admin endpoint.
type Token struct {
	// Name is who is written down for what is done with the token.
	Name  string
	Token Secret
	// ReadOnly refuses everything that changes something.
	ReadOnly bool

	place, nameAt, tokenAt Place
}

// mainToken is the name of admin.token.
const mainToken = "admin"

// AllTokens are admin.token, with the name admin, and admin.tokens; none if the endpoint is open.
func (a *Admin) AllTokens() (all []Token) {
	if a.Token.Reveal() != "" {
		all = append(all, Token{Name: mainToken, Token: a.Token})
	}
	return append(all, a.Tokens...)
}

// ServerTLS reads the certificate of the admin endpoint; nil if it has none. log gets a line when it is read again. errors.As finds [Errors] in
// the error.
func (a *Admin) ServerTLS(log *slog.Logger) (*tls.Config, error) {
	if a.TLS.Cert == "" {
		return nil, nil
	}
	c, err := certfile.Load(a.TLS.Cert, a.TLS.Key, log)
	if err != nil {
		return nil, withPlace(a.TLS.Place, fmt.Errorf("admin.tls: %w", err))
	}
	return c.Server(), nil
}

func (a *Admin) keys() []key {
	return []key{
		{
			name: "listen", value: listen(&a.Listen), def: "127.0.0.1:7070",
			help: `The address to listen on; "" disables the endpoint. Beyond loopback, token or tokens is required.`,
		},
		{name: "token", value: secret(&a.Token), help: "The bearer token that `/` and `/api` require, with the name `admin`. Probes and metrics need none."},
		{name: "tokens", value: tokens{&a.Tokens}, help: "More tokens, each with a name."},
		{
			name: "payloads", value: boolean(&a.Payloads), def: "true",
			help: "Show payloads, headers and keys of dead letters in the console and in `/api/dead`; false: to nobody.",
		},
		{name: "proxy", value: optional{mapping{&a.Proxy}}, help: "Reverse proxies in front of the endpoint."},
		{
			name: "tls", value: optional{mapping{&a.TLS}},
			help: "Serve HTTPS. The certificate is read again when its files change. Probes need `https` then, too.",
		},
	}
}

func (t *Token) keys() []key {
	return []key{
		{name: "name", value: name(&t.Name), required: true, help: "Who is written down for what is done with the token, as in `closed_by`; unique. `admin` is the name of `admin.token`."},
		{name: "token", value: secret(&t.Token), required: true, help: "The token; different from the others."},
		{name: "read_only", value: boolean(&t.ReadOnly), def: "false", help: "The token shows everything and changes nothing."},
	}
}

func (t *Token) check(r *reader, e entry, present entries) {
	t.nameAt, t.tokenAt = r.at(e, present, "name"), r.at(e, present, "token")
	if _, given := present["token"]; given && t.Token.Reveal() == "" && !r.hasErrorAt(t.tokenAt) {
		r.errorf(t.tokenAt, "%s.token is empty; expected text", e.path)
	}
}

func (p *Proxy) keys() []key {
	return []key{
		{
			name: "trusted", required: true, help: "The addresses of the proxies. Their headers are believed, also `X-Forwarded-Proto`; those of other addresses are ignored.",
			value: list[netip.Prefix]{"a list of addresses or ranges such as 10.0.0.0/8", &p.Trusted, addressRange},
		},
		{
			name: "user_header", value: text(&p.UserHeader, "a header name like X-Forwarded-User", isUserHeader).showing(showAll),
			help: "The header with the name of the person who sends a request, for `closed_by` and the log. The proxies must remove it from what clients send. It does not replace the token.",
		},
	}
}

// isUserHeader rejects headers that have secrets.
func isUserHeader(name string) bool {
	return headerName.MatchString(name) && !slices.Contains([]string{"Authorization", "Proxy-Authorization", "Cookie"}, http.CanonicalHeaderKey(name))
}

// addressRange is an IP address or a range without bits beyond its length.
func addressRange(into *netip.Prefix) scalar {
	return scalar{what: "an address or a range such as 10.0.0.0/8", kind: asText, shown: showAll, set: func(in input) error {
		if address, err := netip.ParseAddr(in.text); err == nil && address.Zone() == "" {
			*into = netip.PrefixFrom(address, address.BitLen())
			return nil
		}
		p, err := netip.ParsePrefix(in.text)
		if err != nil {
			return invalid("")
		}
		if p != p.Masked() {
			return invalid("the range begins at " + p.Masked().Addr().String())
		}
		*into = p
		return nil
	}}
}

func (p *Proxy) check(r *reader, e entry, present entries) {
	if list, ok := present["trusted"].node.(*ast.SequenceNode); ok && len(list.Values) == 0 {
		r.errorf(r.place(list), "%s.trusted is empty; expected at least one address, or no proxy", e.path)
	}
}

func (t *ServerTLS) keys() []key {
	return []key{
		{name: "cert", value: path(&t.Cert), required: true, help: "The certificate and its chain, a PEM file."},
		{name: "key", value: path(&t.Key), required: true, help: "The certificate's private key, a PEM file."},
	}
}

func (t *ServerTLS) check(_ *reader, e entry, _ entries) { t.Place = e.key }

// tokens is a list of tokens.
type tokens struct{ into *[]Token }

func (s tokens) expects() string { return "a list of tokens" }

func (s tokens) read(r *reader, e entry) {
	if e.node == nil {
		return
	}
	sequence, ok := e.node.(*ast.SequenceNode)
	if !ok {
		r.wrongType(e, s.expects(), "")
		return
	}
	if len(sequence.Values) == 0 {
		r.errorf(r.place(e.node), "%s is empty; expected at least one token, or no tokens", e.path)
		return
	}
	*s.into = make([]Token, len(sequence.Values))
	for i, node := range sequence.Values {
		at := r.place(node)
		(*s.into)[i].place = at
		r.section(&(*s.into)[i], entry{path: e.path, title: "a token", key: at, node: node})
	}
}

func (a *Admin) check(r *reader, e entry, present entries) {
	a.checkTokens(r, r.at(e, present, "token"))
	host, _, err := net.SplitHostPort(a.Listen)
	if err != nil || isLoopback(host) || a.Token.Reveal() != "" {
		return
	}
	if _, given := present["tokens"]; given { // each was checked, and an empty list reported
		return
	}
	if token := r.at(e, present, "token"); present["token"].node != nil && r.hasErrorAt(token) {
		return
	}
	r.errorf(r.at(e, present, "listen"), "admin.listen is beyond loopback and admin.token is missing; expected admin.token or admin.tokens, or an address like 127.0.0.1:7070")
}

// checkTokens requires that names and secrets of all tokens are unique. at is the place of admin.token.
func (a *Admin) checkTokens(r *reader, at Place) {
	names, secrets := map[string]Place{}, map[string]Place{}
	if secret := a.Token.Reveal(); secret != "" {
		names[mainToken], secrets[secret] = at, at
	}
	for i := range a.Tokens {
		t := &a.Tokens[i]
		if first, twice := names[t.Name]; twice && t.Name != "" {
			r.errorf(t.nameAt, "admin.tokens.name is %s, which the token on line %d already has; expected another", quote(t.Name), first.Line)
		} else {
			names[t.Name] = t.place
		}
		secret := t.Token.Reveal()
		if first, twice := secrets[secret]; twice && secret != "" {
			r.errorf(t.tokenAt, "admin.tokens.token is the token on line %d; expected another", first.Line)
		} else {
			secrets[secret] = t.place
		}
	}
}
