package config

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"regexp"
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
	into    *string
	secrets *map[string]Secret
}

func jqProgram(into *string, secrets *map[string]Secret) program {
	return program{multiline(into, "a jq program"), into, secrets}
}

func (p program) read(r *reader, e entry) {
	p.scalar.read(r, e)
	if e.node == nil || *p.into == "" {
		return
	}
	at := r.place(e.node)
	in, _ := r.expand(textOf(e.node), false)
	if len(in.values) > 0 && !in.whole {
		for i, value := range in.values {
			if strings.ContainsAny(value, "\"\\") || hasControl(value) {
				r.errorf(at, "%s has %s, and a quote, a backslash or a line break in its value would change the program; expected %s", e.path, in.from[i], inProgram(in.from[i]))
				return
			}
		}
	}
	names, err := jq.Secrets(*p.into)
	if err == nil {
		values := p.readSecrets(r, e, names)
		if len(values) < len(names) {
			return // reported
		}
		_, err = jq.Compile(*p.into, values)
	}
	wrong, ok := errors.AsType[*jq.Error](err)
	switch {
	case !ok:
	case in.expanded():
		// The places differ after expansion, and the expanded values may be secret.
		hint := ""
		if !in.whole {
			hint = " that reads " + inProgram(in.from[0])
		}
		r.errorf(at, "%s is invalid as expanded from %s; expected a jq program%s", e.path, in.names(), hint)
	default:
		text := wrong.Error()
		if exact, ok := r.within(e.node, wrong.Line, wrong.Column); ok {
			at, text = exact, wrong.Text
		}
		r.errorf(at, "%s is invalid (%s); expected a jq program", e.path, oneLine(text))
	}
}

// inProgram is how a program reads the value of an expansion "${NAME}".
func inProgram(expansion string) string {
	name := strings.TrimSuffix(strings.TrimPrefix(expansion, "${"), "}")
	if variable.FindString(name) == name {
		return "$secret." + name
	}
	return fmt.Sprintf("$secret[%q]", name)
}

// readSecrets looks up what a program reads as $secret.NAME: an environment variable, or "file:/path". It reports
// the names that it does not find.
func (p program) readSecrets(r *reader, e entry, names []string) map[string]string {
	values := make(map[string]string, len(names))
	for _, name := range names {
		if match := variable.FindString(name); match != name && !strings.HasPrefix(name, "file:") {
			r.errorf(r.place(e.node), "%s reads $secret[%q]; expected the name of an environment variable, or \"file:/path\"", e.path, name)
			continue
		}
		_, value, err := r.lookup(name)
		if err != nil && r.needless(e.path, err) {
			continue
		}
		if err != nil {
			r.errorf(r.place(e.node), "%s reads %s and %s", e.path, inProgram("${"+name+"}"), unsetHint.ReplaceAllString(err.Error(), ""))
			continue
		}
		values[name] = value
		r.secrets = append(r.secrets, value)
		if *p.secrets == nil {
			*p.secrets = map[string]Secret{}
		}
		(*p.secrets)[name] = newSecret(value)
	}
	return values
}

// unsetHint is the part of an error that holds for ${NAME} only.
var unsetHint = regexp.MustCompile(`, or write \$\{.*$`)

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
	return text(into, "a column name", func(s string) bool { return s != "" && len(s) <= 63 }).showing(showAll)
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

// signingSecrets is a Standard Webhooks key, or a list of them.
type signingSecrets struct{ into *[]Secret }

func (s signingSecrets) expects() string {
	return signingSecret(nil).expects() + ", or a list of such secrets"
}

func (s signingSecrets) read(r *reader, e entry) {
	if _, isList := e.node.(*ast.SequenceNode); isList {
		someOf[Secret]{list: list[Secret]{s.expects(), s.into, signingSecret}, wants: "at least one secret"}.read(r, e)
		return
	}
	var one Secret
	if signingSecret(&one).read(r, e); one.Reveal() != "" {
		*s.into = []Secret{one}
	}
}

// signingSecret is a Standard Webhooks key.
func signingSecret(into *Secret) scalar {
	return scalar{what: "whsec_ and 24 to 64 bytes in base64", kind: asText, hide: true, schema: object{"pattern": "^whsec_"}, set: func(in input) error {
		text, ok := strings.CutPrefix(in.text, "whsec_")
		key, err := base64.StdEncoding.DecodeString(text)
		if !ok || err != nil || len(key) < 24 || len(key) > 64 {
			return invalid("")
		}
		*into = newSecret(in.text)
		return nil
	}}
}
