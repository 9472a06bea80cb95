package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// kind is the YAML type of a scalar.
type kind string

const (
	asWritten kind = "" // plain text: YAML libraries disagree on what is a number
	asText    kind = "text"
	asNumber  kind = "number"
	asBool    kind = "boolean"
)

// scalar is a value that is a single word or line.
type scalar struct {
	what string
	kind kind
	// hide keeps the value out of messages.
	hide bool
	// url percent-encodes expansions.
	url bool
	// unit is what a bare number lacks; "" means nothing.
	unit string
	// lines allows line breaks in an expansion.
	lines bool
	// multiline allows line breaks in the file too.
	multiline bool
	// shown is what texts may show of an expanded value.
	shown shown
	// schema is what JSONSchema says of a value that is written out, besides the type that kind has.
	schema object
	set    func(input) error
}

// invalid is the error that set returns for an unexpected value. Its text gives the
// reason, may be empty and may quote the value; it is not shown for secrets. Any
// other error of set must follow the key's name and must not contain the value.
type invalid string

func (u invalid) Error() string { return string(u) }

func (s scalar) expects() string { return s.what }

func (s scalar) read(r *reader, e entry) {
	if e.node == nil {
		if e.def != "" {
			r.assign(s, e.path, e.key, literal(e.def))
		}
		return
	}
	at := r.place(e.node)
	text, kind, ok := scalarOf(e.node)
	if !ok {
		hint := ""
		switch e.node.(type) {
		case *ast.MappingNode, *ast.SequenceNode:
			hint = " (text that begins with { or [ goes in quotes)"
		}
		r.wrongType(e, s.what, hint)
		return
	}
	if hasControl(text) && !s.multiline {
		r.errorf(at, "%s has a line break or another control character; expected %s", e.path, s.what)
		return
	}
	in, errs := r.expand(text, s.url)
	for _, err := range errs {
		if !r.needless(e.path, err) {
			r.errorf(at, "%s %v", e.path, err)
		}
	}
	switch {
	case len(errs) > 0:
	case in.expanded() && !s.lines && hasControl(in.text):
		r.errorf(at, "%s has a line break or another control character from %s; expected %s", e.path, in.names(), s.what)
	case !in.expanded() && kind != s.kind && kind != asWritten:
		r.errorf(at, "%s is %s; expected %s%s", e.path, s.describeKind(in, kind), s.what, s.hint(in, kind))
	default:
		r.hideExpansions(s, in)
		r.assign(s, e.path, at, in)
	}
}

func hasControl(text string) bool { return strings.ContainsFunc(text, unicode.IsControl) }

// describeKind describes a scalar of the wrong kind.
func (s scalar) describeKind(in input, is kind) string {
	switch {
	case s.hide:
		return "a " + string(is)
	case is == asText:
		return "the text " + quote(in.text)
	}
	return fmt.Sprintf("the %s %s", is, clip(in.text))
}

// hint says how to fix a scalar of the wrong kind.
func (s scalar) hint(in input, is kind) string {
	switch {
	case s.kind != asText && is == asText:
		return " (without quotes)"
	case s.kind != asText:
		return ""
	case s.unit != "" && is == asNumber:
		return fmt.Sprintf(" (write %s%s)", clip(in.text), s.unit)
	}
	return " (in quotes)"
}

// assign sets the value, or reports why it is invalid.
func (r *reader) assign(s scalar, path string, at Place, in input) {
	err := s.set(in)
	if err == nil {
		return
	}
	reason, ok := errors.AsType[invalid](err)
	if !ok {
		r.errorf(at, "%s %v", path, err)
		return
	}
	why := ""
	if reason != "" && !s.hide && !in.expanded() {
		why = " (" + oneLine(string(reason)) + ")"
	}
	r.errorf(at, "%s %s%s; expected %s", path, s.describe(in), why, s.what)
}

// describe describes an invalid value without showing secrets.
func (s scalar) describe(in input) string {
	switch {
	case in.expanded():
		return "is invalid as expanded from " + in.names()
	case s.hide:
		return "is invalid"
	case s.kind == asText || !plainNumber.MatchString(in.text):
		return "is " + quote(in.text)
	}
	return "is " + clip(in.text)
}

// plainNumber matches text that was probably meant as a number.
var plainNumber = regexp.MustCompile(`^[-+.0-9][-+.0-9A-Za-z_]*$`)

// scalarOf returns the text and kind of a scalar, and false for other nodes.
func scalarOf(n ast.Node) (string, kind, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		if n.GetToken().Type == token.StringType {
			return n.Value, asWritten, true
		}
		return n.Value, asText, true
	case *ast.LiteralNode:
		return n.Value.Value, asText, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, asNumber, true
	case *ast.BoolNode:
		return n.GetToken().Value, asBool, true
	}
	return "", "", false
}

// text is text that valid accepts: a name, an address.
func text(into *string, what string, valid func(string) bool) scalar {
	return scalar{what: what, kind: asText, shown: showNames, set: func(in input) error {
		if !valid(in.text) {
			return invalid("")
		}
		*into = in.text
		return nil
	}}
}

// secret is text that no message shows.
func secret(into *Secret) scalar {
	return scalar{what: "text", kind: asText, hide: true, set: func(in input) error {
		*into = newSecret(in.text)
		return nil
	}}
}

// credential is a secret: the path of a file or its content.
func credential(into *Secret) scalar {
	return scalar{what: "a file path or the file's content", kind: asText, hide: true, lines: true, set: func(in input) error {
		if in.text == "" {
			return invalid("")
		}
		*into = newSecret(in.text)
		return nil
	}}
}

// integer is decimal, 1000 or 1_000. YAML libraries disagree on other notations.
func integer[T int | int64](into *T, low, high T) scalar {
	return scalar{what: fmt.Sprintf("an integer from %d to %d", low, high), kind: asNumber, schema: between("integer", low, high), set: func(in input) error {
		if !decimal(in.text) {
			return invalid("")
		}
		n, err := strconv.ParseInt(strings.ReplaceAll(in.text, "_", ""), 10, 64)
		if err != nil || n < int64(low) || n > int64(high) {
			return invalid("")
		}
		*into = T(n)
		return nil
	}}
}

func decimal(s string) bool {
	s = strings.TrimLeft(s, "+-")
	return s == "0" || !strings.HasPrefix(s, "0") && !strings.HasPrefix(s, "_") &&
		!strings.HasSuffix(s, "_") && !strings.Contains(s, "__")
}

func number(into *float64, low, high float64) scalar {
	return scalar{what: fmt.Sprintf("a number from %v to %v", low, high), kind: asNumber, schema: between("number", low, high), set: func(in input) error {
		n, err := strconv.ParseFloat(in.text, 64)
		if err != nil || !(low <= n && n <= high) { // NaN fails too
			return invalid("")
		}
		*into = n
		return nil
	}}
}

func boolean(into *bool) scalar {
	return scalar{what: "true or false", kind: asBool, set: func(in input) error {
		switch in.text {
		case "true", "True", "TRUE":
			*into = true
		case "false", "False", "FALSE":
			*into = false
		default:
			return invalid("")
		}
		return nil
	}}
}

// inverted is a boolean whose contrary is kept.
func inverted(into *bool) scalar {
	var value bool
	s := boolean(&value)
	set := s.set
	s.set = func(in input) error {
		err := set(in)
		if err == nil {
			*into = !value
		}
		return err
	}
	return s
}

func duration(into *time.Duration, low, high time.Duration) scalar {
	what := fmt.Sprintf("a duration from %s to %s (like 30s)", short(low), short(high))
	return scalar{what: what, kind: asText, unit: "s", shown: showAll, schema: object{"pattern": goDuration}, set: func(in input) error {
		d, err := time.ParseDuration(in.text)
		if err != nil || d < low || d > high {
			return invalid("")
		}
		*into = d
		return nil
	}}
}

// keep is how long something is kept. Unlike duration it knows days, in which people count here.
func keep(into *time.Duration, low, high time.Duration) scalar {
	what := fmt.Sprintf("a time from %s to %dd (like 30d or 720h)", short(low), high/day)
	return scalar{what: what, kind: asText, unit: "d", shown: showAll, schema: object{"pattern": goDuration + "|^[0-9]+d$"}, set: func(in input) error {
		var (
			d   time.Duration
			err error
		)
		if days, ok := strings.CutSuffix(in.text, "d"); ok {
			var n int64
			if n, err = strconv.ParseInt(days, 10, 32); err == nil && n <= int64(high/day) {
				d = time.Duration(n) * day
			}
		} else {
			d, err = time.ParseDuration(in.text)
		}
		if err != nil || d < low || d > high {
			return invalid("")
		}
		*into = d
		return nil
	}}
}

const day = 24 * time.Hour

// short is d without its zero parts: 24h, not 24h0m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// choice is one of a few words.
func choice(into *string, words ...string) scalar {
	return scalar{what: or(quoted(words)), kind: asText, shown: showAll, schema: object{"enum": words}, set: func(in input) error {
		if !slices.Contains(words, in.text) {
			return invalid("")
		}
		*into = in.text
		return nil
	}}
}

// claimMode is a claim mode. It names the one that was removed.
func claimMode(into *string) scalar {
	s := choice(into, "auto", "stamp", "range")
	set := s.set
	s.set = func(in input) error {
		if in.text == "optimistic" {
			return fmt.Errorf(`is "optimistic", which was removed; expected %s`, s.what)
		}
		return set(in)
	}
	return s
}

func quoted(words []string) []string {
	q := make([]string, len(words))
	for i, w := range words {
		q[i] = strconv.Quote(w)
	}
	return q
}

func or(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
