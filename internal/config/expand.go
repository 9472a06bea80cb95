package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// input is the text of a scalar, its expansions done.
type input struct {
	text string
	// shown is text with *** for whatever an expansion put in.
	shown string
	// from names the expansions, "${NAME}"; none when it was written literally.
	from []string
	// whole: the scalar is one expansion and nothing else.
	whole bool
}

func (in input) expanded() bool { return len(in.from) > 0 }

// names lists the expansions for a message.
func (in input) names() string { return strings.Join(in.from, " and ") }

func literal(text string) input { return input{text: text, shown: text} }

var (
	variable = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)(:-)?`)

	errNotClosed = errors.New("has a ${ that is not closed, a } was expected ($${ stands for ${ itself)")
	errUnknown   = errors.New("has a ${...} that is not understood, " +
		"${NAME}, ${NAME:-default} or ${file:/path} was expected ($${ stands for ${ itself)")
	errNested = errors.New("has a ${...} within a default, text was expected there")
)

// expand replaces each ${NAME}, ${NAME:-default} (when it is unset or empty, as
// in a shell) and ${file:/path}; $${ stands for ${. What is put in is not looked
// at again. In a URL it is percent-encoded, unless it is all of it. The errors
// are worded to follow the key's name and hold no value.
func (r *reader) expand(text string, inURL bool) (input, []error) {
	var (
		value, shown strings.Builder
		in           input
		wrong        []error
		rest         = text
	)
	write := func(s string) { value.WriteString(s); shown.WriteString(s) }
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
			return input{}, append(wrong, errNotClosed)
		}
		write(rest[:start])
		in.whole = start == 0 && len(rest) == len(text) && after == ""
		rest = after

		name, s, err := r.lookup(body)
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		if inURL && !in.whole {
			s = percentEncode(s)
		}
		in.from = append(in.from, "${"+name+"}")
		value.WriteString(s)
		shown.WriteString(hidden)
	}
	write(rest)
	in.text, in.shown = value.String(), shown.String()
	return in, wrong
}

// lookup finds what stands for ${body}, and the body's name for messages.
func (r *reader) lookup(body string) (name, value string, err error) {
	if path, ok := strings.CutPrefix(body, "file:"); ok && path != "" {
		text, err := r.readFile(path)
		if err != nil { // the path is the file's own text, not a secret
			return "", "", fmt.Errorf("cannot be expanded: %w", err)
		}
		if !utf8.Valid(text) {
			return "", "", fmt.Errorf("cannot be expanded: %s is not UTF-8 text", path)
		}
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
		return "", "", fmt.Errorf("needs the environment variable %s, which is not set (${%s:-default} would give it a default)", name, name)
	case !utf8.ValidString(value):
		return "", "", fmt.Errorf("needs the environment variable %s, which is not UTF-8 text", name)
	}
	return name, value, nil
}

// cutClosing cuts s at the } that closes it, so that a default may be {topic}.
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

// percentEncode leaves only RFC 3986's unreserved characters as they are, so
// that the result cannot end the part of the URL it stands in.
func percentEncode(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-._~", c) >= 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
