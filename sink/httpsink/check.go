package httpsink

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/itchyny/gojq"
)

// ProgramError is what is wrong with a jq program, and where in it.
type ProgramError struct {
	// Summary and Column count from 1, columns in characters; 0 where that is not known.
	Line, Column int
	// Text says what is wrong; it may quote the program.
	Text string
}

func (e *ProgramError) Error() string {
	if e.Line == 0 {
		return e.Text
	}
	return fmt.Sprintf("line %d, column %d of the program: %s", e.Line, e.Column, e.Text)
}

// CheckRequest tells whether text can be a Config's Request: whether it is jq, and
// whether all it names is there. The error is a *ProgramError.
func CheckRequest(text string) error {
	_, err := check(text)
	return err
}

// CheckResults tells whether text can be a Config's Results: what CheckRequest looks at,
// and whether it makes what was expected, as far as can be seen. The error is a
// *ProgramError.
func CheckResults(text string) error {
	query, err := check(text)
	if err != nil {
		return err
	}
	if wrong, word := misshaped(query); wrong != "" {
		return wrongAt(text, find(text, word), wrong)
	}
	return nil
}

func check(text string) (*gojq.Query, error) {
	query, err := gojq.Parse(text)
	if e, ok := errors.AsType[*gojq.ParseError](err); ok {
		return nil, wrongAt(text, min(max(0, e.Offset-len(e.Token)), ending(text)), e.Error())
	} else if err != nil {
		return nil, &ProgramError{Text: err.Error()}
	}
	if _, err = gojq.Compile(query); err != nil {
		what, name, _ := strings.Cut(err.Error(), ": ")
		word, _, _ := strings.Cut(name, "/")
		switch what {
		case "function not defined", "variable not defined", "label not defined":
			what += ": " + name
		case "cannot load module":
			what, word = "a program has no modules", ""
		case "input(s)/0 is not allowed":
			what, word = "there is no other input: the program's own is the value .", "input"
			if find(text, word) < 0 {
				word = "inputs"
			}
		default:
			what, word = err.Error(), ""
		}
		return nil, wrongAt(text, find(text, word), what)
	}
	for _, word := range formats.FindAllString(onlyCode(text), -1) {
		if word = word[strings.IndexByte(word, '@'):]; !slices.Contains(knownFormats, word) {
			return nil, wrongAt(text, find(text, word), "format not defined: "+word)
		}
	}
	return query, nil
}

var (
	formats      = regexp.MustCompile(`(^|[^\w@])@[a-zA-Z_]\w*`)
	knownFormats = []string{
		"@text", "@json", "@html", "@uri", "@urid", "@csv", "@tsv", "@sh", "@base64", "@base64d", "@base32", "@base32d",
	}
)

// wrongAt is an error at a byte of the program; below 0: nowhere.
func wrongAt(text string, at int, what string) *ProgramError {
	if at < 0 {
		return &ProgramError{Text: what}
	}
	before := text[:min(at, len(text))]
	line := before[strings.LastIndexByte(before, '\n')+1:]
	return &ProgramError{Line: 1 + strings.Count(before, "\n"), Column: 1 + utf8.RuneCountInString(line), Text: what}
}

// ending is where the last character of the program stands: what is missing at its end is
// missing there, and not on the lines behind it.
func ending(text string) int {
	text = strings.TrimRightFunc(text, unicode.IsSpace)
	_, size := utf8.DecodeLastRuneInString(text)
	return len(text) - size
}

// find is where a name is used: gojq tells which one it does not know, and not where it
// stands. -1: not found. That it is the key of an object comes last.
func find(text, name string) int {
	if name == "" {
		return -1
	}
	before := `[^\w.$@:]`
	if strings.HasPrefix(name, "$") || strings.HasPrefix(name, "@") {
		before = `[^\w@]`
	}
	used := regexp.MustCompile(`(^|` + before + `)` + regexp.QuoteMeta(name) + `(\s*:|\b)`)
	last := -1
	for _, m := range used.FindAllStringSubmatchIndex(onlyCode(text), -1) {
		last = m[3] // behind what stands before it
		if m[4] == m[5] {
			break
		}
	}
	return last
}

// onlyCode blanks comments and the text of strings out, byte for byte; "\(...)" is code.
func onlyCode(text string) string {
	made := []byte(text)
	var open []int // for each string around this place, the parentheses that are open in its code
	inString := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inString && c == '\\' && i+1 < len(text):
			made[i] = ' '
			if i++; text[i] == '(' {
				open, inString = append(open, 0), false
				continue
			}
			made[i] = ' '
		case c == '"':
			inString = !inString
		case inString:
			made[i] = ' '
		case c == '#':
			for ; i < len(text) && text[i] != '\n'; i++ {
				made[i] = ' '
			}
		case len(open) > 0 && c == '(':
			open[len(open)-1]++
		case len(open) > 0 && c == ')':
			if open[len(open)-1]--; open[len(open)-1] < 0 {
				open, inString = open[:len(open)-1], true
			}
		}
	}
	return string(made)
}

// misshaped says what is wrong with what a program for results makes, and the word it is
// about, as far as that can be seen without an answer; "" is no objection.
func misshaped(q *gojq.Query) (wrong, word string) {
	term := last(q)
	if term == nil {
		return "", ""
	}
	if term.Type != gojq.TermTypeArray {
		if kind := literalKinds[term.Type]; kind != "" {
			return "it makes " + kind + ", an array of {id or index, error, retry} was expected", ""
		}
		return "", ""
	}
	if term.Array.Query == nil {
		return "", ""
	}
	one := last(term.Array.Query)
	if one == nil || one.Type != gojq.TermTypeObject {
		if one != nil && literalKinds[one.Type] != "" {
			return "it makes an array of " + literalKinds[one.Type] + ", {id or index, error, retry} was expected in it", ""
		}
		return "", ""
	}
	names := map[string]bool{}
	for _, kv := range one.Object.KeyVals {
		name := strings.TrimPrefix(kv.Key, "$")
		switch {
		case kv.KeyString != nil && len(kv.KeyString.Queries) == 0:
			name = kv.KeyString.Str
		case name == "":
			return "", ""
		}
		if !slices.Contains([]string{"id", "index", "error", "retry"}, name) {
			return fmt.Sprintf("%q is no key of a result: id or index, error, retry were expected", name), name
		}
		names[name] = true
	}
	if !names["id"] && !names["index"] {
		return "its results have neither id nor index, one of them was expected", ""
	}
	return "", ""
}

var literalKinds = map[gojq.TermType]string{
	gojq.TermTypeObject: "an object", gojq.TermTypeString: "a string", gojq.TermTypeNumber: "a number",
	gojq.TermTypeNull: "null", gojq.TermTypeTrue: "true", gojq.TermTypeFalse: "false",
}

// last is the term that makes a query's results, behind all pipes; nil where that
// cannot be said.
func last(q *gojq.Query) *gojq.Term {
	for q != nil && q.Op == gojq.OpPipe {
		q = q.Right
	}
	if q == nil || q.Term == nil || len(q.Term.SuffixList) > 0 {
		return nil
	}
	if q.Term.Type == gojq.TermTypeQuery {
		return last(q.Term.Query)
	}
	return q.Term
}
