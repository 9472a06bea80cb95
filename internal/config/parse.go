package config

import (
	"bytes"
	"errors"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// parse returns the root of the only document.
func (r *reader) parse(text []byte) (ast.Node, bool) {
	top := Place{r.file, 1, 1}
	text = bytes.TrimPrefix(text, []byte("\uFEFF"))
	if len(text) > maxBytes {
		r.errorf(top, "the file is %v; expected a configuration", errTooLarge)
		return nil, false
	}
	if at := invalidUTF8(text); at >= 0 {
		r.errorf(top.after(string(text[:at])), "the file is not UTF-8; expected UTF-8 text")
		return nil, false
	}
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	tokens := lexer.Tokenize(string(text))
	r.places = locate(r.file, string(text), tokens)
	if at, ok := tooDeep(tokens); ok {
		r.errorf(r.tokenPlace(at), "the file is nested too deeply; expected a configuration")
		return nil, false
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		r.syntax(text, err)
		return nil, false
	}
	var root ast.Node
	for _, doc := range file.Docs {
		_, directive := doc.Body.(*ast.DirectiveNode)
		switch {
		case doc.Body == nil || directive:
		case root == nil:
			root = doc.Body
		default:
			r.errorf(r.place(doc.Body), "the file has a second YAML document; expected one")
			return root, true
		}
	}
	if root == nil {
		r.errorf(top, "the file is empty; expected at least one pipeline")
	}
	return root, root != nil
}

func invalidUTF8(text []byte) int {
	for i, c := range string(text) {
		if c == utf8.RuneError && !bytes.HasPrefix(text[i:], []byte("\uFFFD")) {
			return i
		}
	}
	return -1
}

// tooDeep finds nesting that no configuration needs. The parser's memory grows with the square of the depth.
func tooDeep(tokens token.Tokens) (*token.Token, bool) {
	const maxDepth = 50
	open, line, dashes := 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			line, dashes = t.Position.Line, 0
		}
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			open++
		case token.MappingEndType, token.SequenceEndType:
			open--
		case token.SequenceEntryType, token.MappingKeyType, token.AnchorType, token.TagType:
			dashes++
		}
		if open > maxDepth || dashes > maxDepth {
			return t, true
		}
	}
	return nil, false
}

// needsQuotes finds values that look like text but are YAML syntax.
var needsQuotes = regexp.MustCompile(`[:\[{,-]\s+([@*%` + "`" + `]|\{(topic|key)\})|\{.*\$\{`)

// colonInValue finds values without quotes in which a colon is YAML syntax.
var colonInValue = regexp.MustCompile(`^[^"'#{[]*[a-z]:\s+[^"'#{[\s|>][^"'#]*:(\s|$)`)

// syntax reports an error of the parser. The error contains no values.
func (r *reader) syntax(text []byte, err error) {
	at, message := Place{r.file, 1, 1}, "parsing failed"
	if e := yaml.Error(nil); errors.As(err, &e) {
		at, message = r.tokenPlace(e.GetToken()), e.GetMessage()
	}
	hint := ""
	lines := bytes.SplitAfter(text, []byte("\n"))
	switch {
	case at.Line > len(lines):
	case needsQuotes.Match(lines[at.Line-1]):
		hint = " (quote a value that starts with @ * % ` or {, or that has ${...} within {...})"
	case colonInValue.Match(lines[at.Line-1]):
		hint = " (quote a value that ends with a colon, such as \"stdout:\", or that has a colon and a space)"
	}
	r.errorf(at, "the file is not valid YAML: %s; expected YAML%s", oneLine(message), hint)
}

func oneLine(s string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(s, "\t", `\t`)), " ")
}

// locate finds each token in the text. The lexer's own columns are wrong near tabs
// and spaces, but its tokens are in order and have their original text.
func locate(file, text string, tokens token.Tokens) map[*token.Token]Place {
	places := make(map[*token.Token]Place, len(tokens))
	at := Place{file, 1, 1}
	for _, t := range tokens {
		origin := strings.TrimSpace(t.Origin)
		i := strings.Index(text, origin)
		if i < 0 || t.Type == token.InvalidType {
			continue
		}
		at = at.after(text[:i])
		places[t] = at
		at = at.after(origin)
		text = text[i+len(origin):]
	}
	return places
}

func (r *reader) tokenPlace(t *token.Token) Place {
	if at, ok := r.places[t]; ok {
		return at
	}
	if t == nil || t.Position == nil {
		return Place{r.file, 1, 1}
	}
	return Place{r.file, max(1, t.Position.Line), max(1, t.Position.Column)}
}

// place is where a node starts. A block mapping starts at its first key, not at its
// token, which is the colon.
func (r *reader) place(n ast.Node) Place {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return r.tokenPlace(n.Values[0].Key.GetToken())
		}
	case *ast.MappingValueNode:
		return r.tokenPlace(n.Key.GetToken())
	}
	return r.tokenPlace(n.GetToken())
}
