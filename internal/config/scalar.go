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

// kind is what YAML makes of a scalar.
type kind string

const (
	asWritten kind = "" // text without quotes: libraries differ about what is a number
	asText    kind = "text"
	asNumber  kind = "number"
	asBool    kind = "boolean"
)

// scalar is a value that is one word or line.
type scalar struct {
	what string
	kind kind
	// hide: never show the value, although it was written literally.
	hide bool
	// url: expansions are percent-encoded.
	url bool
	// unit: a number lacks one.
	unit bool
	// lines: an expansion may have several.
	lines bool
	// multiline: it may be written in several, too.
	multiline bool
	set       func(input) error
}

// unfit is the error of a set whose input is not what was expected. The text,
// if any, says why and may hold the input: it is shown only where that is no
// secret. Any other error is worded to follow the key's name and holds none.
type unfit string

func (u unfit) Error() string { return string(u) }

func (s scalar) expects() string { return s.what }

func (s scalar) read(r *reader, e entry) {
	if e.node == nil {
		if e.def != "" {
			r.accept(s, e.path, e.key, literal(e.def))
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
		r.sayNode(e, s.what, hint)
		return
	}
	if hasControl(text) && !s.multiline {
		r.say(at, "%s has a line break or another control character, %s was expected", e.path, s.what)
		return
	}
	in, wrong := r.expand(text, s.url)
	for _, err := range wrong {
		r.say(at, "%s %v", e.path, err)
	}
	switch {
	case len(wrong) > 0:
	case in.expanded() && !s.lines && hasControl(in.text):
		r.say(at, "%s gets a line break or another control character from %s, %s was expected", e.path, in.names(), s.what)
	case !in.expanded() && kind != s.kind && kind != asWritten:
		r.say(at, "%s is %s, %s was expected%s", e.path, s.mistaken(in, kind), s.what, s.hint(in, kind))
	default:
		r.accept(s, e.path, at, in)
	}
}

func hasControl(text string) bool { return strings.ContainsFunc(text, unicode.IsControl) }

// mistaken describes a scalar of the wrong kind.
func (s scalar) mistaken(in input, is kind) string {
	switch {
	case s.hide:
		return "a " + string(is)
	case is == asText:
		return "the text " + quote(in.text)
	}
	return fmt.Sprintf("the %s %s", is, clip(in.text))
}

// hint says how to mend a scalar of the wrong kind.
func (s scalar) hint(in input, is kind) string {
	switch {
	case s.kind != asText && is == asText:
		return " (without quotes)"
	case s.kind != asText:
		return ""
	case s.unit && is == asNumber:
		return fmt.Sprintf(" (write %ss)", clip(in.text))
	}
	return " (in quotes)"
}

// accept sets the value and reports what is wrong with it.
func (r *reader) accept(s scalar, path string, at Place, in input) {
	err := s.set(in)
	if err == nil {
		return
	}
	reason, ok := errors.AsType[unfit](err)
	if !ok {
		r.say(at, "%s %v", path, err)
		return
	}
	why := ""
	if reason != "" && !s.hide && !in.expanded() {
		why = " (" + oneLine(string(reason)) + ")"
	}
	r.say(at, "%s %s%s, %s was expected", path, s.describe(in), why, s.what)
}

// describe says what a value is, without showing what must not be seen.
func (s scalar) describe(in input) string {
	switch {
	case in.expanded():
		return "is not right as expanded from " + in.names()
	case s.hide:
		return "is not right"
	case s.kind == asText || !plainNumber.MatchString(in.text):
		return "is " + quote(in.text)
	}
	return "is " + clip(in.text)
}

// plainNumber is what was probably meant as a number.
var plainNumber = regexp.MustCompile(`^[-+.0-9][-+.0-9A-Za-z_]*$`)

// scalarOf returns a scalar's text and kind; false for any other node.
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

// text is text that ok likes.
func text(into *string, what string, ok func(string) bool) scalar {
	return scalar{what: what, kind: asText, set: func(in input) error {
		if !ok(in.text) {
			return unfit("")
		}
		*into = in.text
		return nil
	}}
}

// secret is text that is never shown.
func secret(into *Secret) scalar {
	return scalar{what: "text", kind: asText, hide: true, set: func(in input) error {
		*into = newSecret(in.text)
		return nil
	}}
}

// credential is a secret that is there: the path of a file or its content.
func credential(into *Secret) scalar {
	return scalar{what: "a file's path or its content", kind: asText, hide: true, lines: true, set: func(in input) error {
		if in.text == "" {
			return unfit("")
		}
		*into = newSecret(in.text)
		return nil
	}}
}

// integer is written in decimal, 1000 or 1_000; other notations mean different
// numbers to different readers of YAML.
func integer[T int | int64](into *T, low, high T) scalar {
	return scalar{what: fmt.Sprintf("an integer from %d to %d", low, high), kind: asNumber, set: func(in input) error {
		if !decimal(in.text) {
			return unfit("")
		}
		n, err := strconv.ParseInt(strings.ReplaceAll(in.text, "_", ""), 10, 64)
		if err != nil || n < int64(low) || n > int64(high) {
			return unfit("")
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
	return scalar{what: fmt.Sprintf("a number from %v to %v", low, high), kind: asNumber, set: func(in input) error {
		n, err := strconv.ParseFloat(in.text, 64)
		if err != nil || !(low <= n && n <= high) { // NaN is neither
			return unfit("")
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
			return unfit("")
		}
		return nil
	}}
}

func duration(into *time.Duration, low, high time.Duration) scalar {
	what := fmt.Sprintf("a duration from %s to %s (like 30s)", short(low), short(high))
	return scalar{what: what, kind: asText, unit: true, set: func(in input) error {
		d, err := time.ParseDuration(in.text)
		if err != nil || d < low || d > high {
			return unfit("")
		}
		*into = d
		return nil
	}}
}

// short is d without the parts that are zero: 24h, not 24h0m0s.
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

// choice is one of a few words; later are recognised and not there yet.
func choice(into *string, words []string, later ...string) scalar {
	return scalar{what: or(quoted(words)), kind: asText, set: func(in input) error {
		switch {
		case slices.Contains(words, in.text):
			*into = in.text
			return nil
		case slices.Contains(later, in.text):
			return fmt.Errorf("%s is not there yet: remove it", in.text)
		}
		return unfit("")
	}}
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
