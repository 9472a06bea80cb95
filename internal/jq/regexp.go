package jq

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/itchyny/gojq"
)

// maxMatches is how many matches of a regular expression one text may have.
const maxMatches = 1 << 20

// regexpTest implements test($re; $flags).
func regexpTest(input any, args []any) any {
	text, r, err := regexpArgs("test", input, args)
	if err != nil {
		return err
	}
	return r.MatchString(text)
}

// regexpMatch implements match($re; $flags) as gojq does, but one match at a time, in a time that is linear in the
// length of the text: gojq makes all in one step, which nothing can stop, and counts the characters before each of
// them.
func regexpMatch(input any, args []any) gojq.Iter {
	text, r, err := regexpArgs("match", input, args)
	if err != nil {
		return gojq.NewIter[any](err)
	}
	limit := 1
	if flags, _ := args[1].(string); strings.Contains(flags, "g") {
		limit = maxMatches + 1
	}
	found := r.find(text, limit)
	if len(found) > maxMatches {
		return gojq.NewIter[any](fmt.Errorf("the text has more than %d matches of the regular expression", maxMatches))
	}
	return &matches{text: text, names: r.SubexpNames(), found: found}
}

func regexpArgs(function string, input any, args []any) (string, *matcher, error) {
	text, isText := input.(string)
	pattern, isPattern := args[0].(string)
	flags, isFlags := args[1].(string)
	if !isText || !isPattern || !isFlags && args[1] != nil {
		return "", nil, fmt.Errorf("%s cannot be applied to: %s of %s with flags that are %s; expected texts",
			function, Describe(args[0]), Describe(input), Describe(args[1]))
	}
	r, err := compileRegexp(pattern, flags)
	return text, r, err
}

// matcher finds what jq finds: the standard library ignores an empty match next to the match before it.
type matcher struct {
	*regexp.Regexp
	// next matches one character and then, anchored, the expression, so that assertions such as ^ see the text
	// before it. It may be nil.
	next *regexp.Regexp
}

// matchers are compiled expressions by flags and text. An expression may come from events, so it is emptied when it
// is full.
var matchers = struct {
	sync.Mutex
	by map[[2]string]*matcher
}{by: map[[2]string]*matcher{}}

func compileRegexp(pattern, flags string) (*matcher, error) {
	const most = 1000
	matchers.Lock()
	defer matchers.Unlock()
	key := [2]string{flags, pattern}
	if m, ok := matchers.by[key]; ok {
		return m, nil
	}
	if strings.Trim(flags, "gim") != "" {
		return nil, fmt.Errorf("unsupported regular expression flag: %q", flags)
	}
	expression := pattern
	if strings.Contains(flags, "i") {
		expression = "(?i)" + expression
	}
	if strings.Contains(flags, "m") { // in jq, . matches a line break
		expression = "(?s)" + expression
	}
	r, err := regexp.Compile(expression)
	if err != nil {
		return nil, fmt.Errorf("invalid regular expression %q: %w", pattern, err)
	}
	m := &matcher{Regexp: r}
	if next, err := regexp.Compile(`\A(?s:.)(?:` + expression + `)`); err == nil {
		m.next = next
	}
	if len(matchers.by) == most {
		clear(matchers.by)
	}
	matchers.by[key] = m
	return m, nil
}

// find returns at most about limit matches, as regexp.FindAllStringSubmatchIndex does.
func (m *matcher) find(text string, limit int) [][]int {
	found := m.FindAllStringSubmatchIndex(text, limit)
	if len(found) == 0 || limit == 1 || m.next == nil {
		return found
	}
	all := make([][]int, 0, len(found))
	for i, x := range found {
		all = append(all, x)
		start, end := x[0], x[1]
		if start == end || i+1 < len(found) && found[i+1][0] == end {
			continue
		}
		_, width := utf8.DecodeLastRuneInString(text[:end])
		if y := m.next.FindStringSubmatchIndex(text[end-width:]); y != nil && y[1] == width {
			for j := range y {
				if y[j] >= 0 {
					y[j] += end - width
				}
			}
			y[0] = end
			all = append(all, y)
		}
	}
	return all
}

// matches makes the objects of matches.
type matches struct {
	text  string
	names []string
	found [][]int
	// The characters before a place in the text.
	at, characters int
}

// Next implements gojq.Iter.
func (m *matches) Next() (any, bool) {
	if len(m.found) == 0 {
		return nil, false
	}
	x := m.found[0]
	m.found = m.found[1:]
	m.characters += utf8.RuneCountInString(m.text[m.at:x[0]])
	m.at = x[0]
	captures := make([]any, len(x)/2-1)
	for i := range captures {
		captures[i] = m.capture(x[2*i+2], x[2*i+3])
		if name := m.names[i+1]; name != "" {
			captures[i].(map[string]any)["name"] = name //nolint:forcetypeassert // capture makes one
		}
	}
	match := m.capture(x[0], x[1])
	delete(match, "name")
	match["captures"] = captures
	return match, true
}

// capture is the part of the text between two places of the current match; -1 means that it takes no part.
func (m *matches) capture(from, to int) map[string]any {
	if from < 0 {
		return map[string]any{"name": nil, "offset": -1, "length": 0, "string": nil}
	}
	return map[string]any{
		"name": nil, "offset": m.characters + utf8.RuneCountInString(m.text[m.at:from]),
		"length": utf8.RuneCountInString(m.text[from:to]), "string": m.text[from:to],
	}
}
