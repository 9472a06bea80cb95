package config

import (
	"encoding/base64"
	"errors"
	"net/url"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/outboxrelay/relay/internal/jq"
)

// multiline is text of one or more lines.
func multiline(into *string, what string) scalar {
	return scalar{what: what, kind: asText, lines: true, multiline: true, set: func(in input) error {
		if strings.TrimSpace(in.text) == "" {
			return invalid("")
		}
		*into = in.text
		return nil
	}}
}

// program is a jq program.
type program struct {
	scalar
	into *string
}

func jqProgram(into *string) program { return program{multiline(into, "a jq program"), into} }

func (p program) read(r *reader, e entry) {
	p.scalar.read(r, e)
	if e.node == nil || *p.into == "" {
		return
	}
	_, err := jq.Compile(*p.into)
	wrong, ok := errors.AsType[*jq.Error](err)
	if !ok {
		return
	}
	at := r.place(e.node)
	if in, _ := r.expand(textOf(e.node), false); in.expanded() {
		// The places differ after expansion, and the expanded values may be secret.
		r.errorf(at, "%s is invalid as expanded from %s; expected a jq program", e.path, in.names())
		return
	}
	if exact, ok := r.within(e.node, wrong.Line, wrong.Column); ok {
		r.errorf(exact, "%s is invalid (%s); expected a jq program", e.path, oneLine(wrong.Text))
		return
	}
	r.errorf(at, "%s is invalid (%s); expected a jq program", e.path, oneLine(wrong.Error()))
}

func textOf(n ast.Node) string {
	text, _, _ := scalarOf(n)
	return text
}

// within returns the place in the file of a line and column of a scalar. It returns
// false if YAML folded the lines, or if line is 0.
func (r *reader) within(n ast.Node, line, column int) (Place, bool) {
	at, text := r.place(n), textOf(n)
	if line == 0 {
		return at, false
	}
	literal, ok := n.(*ast.LiteralNode)
	switch isBlock := ok && strings.HasPrefix(literal.Start.Value, "|"); {
	case isBlock:
		// The token starts at the first word.
		at = r.tokenPlace(literal.Value.GetToken())
		first := Place{Line: 1, Column: 1}.after(text[:len(text)-len(strings.TrimLeft(text, " \t\n"))])
		at.Line, at.Column = at.Line+line-first.Line, at.Column+column-first.Column
		return at, true
	case ok:
		return at, false
	}
	written := strings.TrimSpace(n.GetToken().Origin)
	switch n.GetToken().Type {
	case token.SingleQuoteType, token.DoubleQuoteType:
		at.Column++
		written = strings.Trim(written, `'"`)
	}
	at.Column += column - 1
	return at, written == text
}

// columnName is any column name that the database accepts, without quotes.
func columnName(into *string) scalar {
	return text(into, "a column name", func(s string) bool { return s != "" && len(s) <= 63 })
}

var errURL = errors.New("is not an http URL; expected http://host or https://host")

func httpURL(into *Secret) scalar {
	return scalar{what: "a URL like https://host/path", kind: asText, hide: true, url: true, set: func(in input) error {
		u, err := url.Parse(in.text)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
			return errURL
		}
		*into = newSecretURL(in)
		return nil
	}}
}

// signingSecret is a Standard Webhooks key.
func signingSecret(into *Secret) scalar {
	return scalar{what: "whsec_ and 24 to 64 bytes in base64", kind: asText, hide: true, set: func(in input) error {
		text, ok := strings.CutPrefix(in.text, "whsec_")
		key, err := base64.StdEncoding.DecodeString(text)
		if !ok || err != nil || len(key) < 24 || len(key) > 64 {
			return invalid("")
		}
		*into = newSecret(in.text)
		return nil
	}}
}
