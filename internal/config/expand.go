package config

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"
)

// input is the text of a scalar after expansion.
type input struct {
	text string
	// masked is text with *** in the place of each expanded value.
	masked string
	// from names the expansions, "${NAME}"; nil if there are none.
	from []string
	// values are those of the expansions, as they are outside of a URL.
	values []string
	// whole reports whether the scalar is a single expansion and nothing else.
	whole bool
}

func (in input) expanded() bool { return len(in.from) > 0 }

// names lists the expansions for a message.
func (in input) names() string { return strings.Join(in.from, " and ") }

func literal(text string) input { return input{text: text, masked: text} }

var (
	variable = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)(:-)?`)

	errNotClosed = errors.New("has an unclosed ${; expected } ($${ is a literal ${)")
	errUnknown   = errors.New("has an unknown ${...}; " +
		"expected ${NAME}, ${NAME:-default} or ${file:/path} ($${ is a literal ${)")
	errNested = errors.New("has ${...} in a default; expected plain text")
)

// expand replaces ${NAME}, ${NAME:-default} (for an unset or empty variable, as in a shell) and
// ${file:/path}; $${ becomes ${. Expanded values are not expanded again. In a URL they are percent-encoded,
// unless they are the whole URL. The errors follow the key's name and contain no value.
func (r *reader) expand(text string, inURL bool) (input, []error) {
	var (
		value, masked strings.Builder
		in            input
		errs          []error
		rest          = text
	)
	write := func(s string) { value.WriteString(s); masked.WriteString(s) }
	for {
		start := strings.Index(rest, "${")
		if start < 0 {
			break
		}
		if start > 0 && rest[start-1] == '$' {
			write(rest[:start-1] + "${")
			rest = rest[start+2:]
			continue
		}
		body, after, ok := cutClosing(rest[start+2:])
		if !ok {
			return input{}, append(errs, errNotClosed)
		}
		write(rest[:start])
		in.whole = start == 0 && len(rest) == len(text) && after == ""
		rest = after

		name, s, err := r.lookup(body)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		in.values = append(in.values, s)
		if inURL && !in.whole {
			s = percentEncode(s)
		}
		in.from = append(in.from, "${"+name+"}")
		value.WriteString(s)
		masked.WriteString(hidden)
	}
	write(rest)
	in.text, in.masked = value.String(), masked.String()
	return in, errs
}

// lookup returns the value of ${body} and its name for messages.
func (r *reader) lookup(body string) (name, value string, err error) {
	if path, ok := strings.CutPrefix(body, "file:"); ok && path != "" {
		text, err := r.readFile(path)
		if err != nil { // the path is in the file and not secret
			return "", "", unsetError{fmt.Errorf("cannot be expanded: %w", err)}
		}
		if !utf8.Valid(text) {
			return "", "", fmt.Errorf("cannot be expanded: %s is not UTF-8 text", path)
		}
		r.files = append(r.files, newExpandedFile(path, text))
		return body, strings.TrimSpace(string(text)), nil
	}
	m := variable.FindStringSubmatch(body)
	if m == nil {
		return "", "", errUnknown
	}
	name, rest, hasDefault := m[1], body[len(m[0]):], m[2] != ""
	if !hasDefault && rest != "" {
		return "", "", errUnknown
	}
	if strings.Contains(rest, "${") {
		return "", "", errNested
	}
	value, set := r.env(name)
	switch {
	case hasDefault && value == "":
		value = rest
	case !set:
		return "", "", unsetError{fmt.Errorf("needs the environment variable %s, which is not set; set it, or write ${%s:-default}", name, name)}
	case !utf8.ValidString(value):
		return "", "", fmt.Errorf("needs the environment variable %s, which is not UTF-8 text", name)
	}
	return name, value, nil
}

// unsetError is the error of an expansion whose variable or file is missing.
type unsetError struct{ error }

// needless reports whether the command does without the value of an entry that cannot be expanded.
func (r *reader) needless(path string, err error) bool {
	ofSink := false
	for _, prefix := range []string{"sink.", "sinks.", "sinks[", "dead_letter."} {
		ofSink = ofSink || strings.HasPrefix(path, prefix)
	}
	return r.withoutSinks && ofSink && errors.As(err, new(unsetError))
}

// cutClosing cuts s at its closing }. A default may contain {topic}.
func cutClosing(s string) (body, after string, ok bool) {
	depth := 1
	for i := range len(s) {
		switch s[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return s[:i], s[i+1:], true
			}
		}
	}
	return "", "", false
}

// percentEncode keeps only the unreserved characters of RFC 3986, so that a value cannot end its part of the URL.
func percentEncode(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
