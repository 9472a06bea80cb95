package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// reader walks one file from its root to its scalars and gathers every mistake.
type reader struct {
	file     string
	env      Lookup
	readFile func(path string) ([]byte, error)
	wrong    Errors
	// used remembers names and tables, which only one pipeline may have.
	used map[string]Place
}

func newReader(file string, env Lookup, readFile func(string) ([]byte, error)) *reader {
	return &reader{file: file, env: env, readFile: readFile, used: map[string]Place{}}
}

// entry is a key as it stands in the file, or would if it were there.
type entry struct {
	// path names the key in messages, within its pipeline: "retry.max".
	path string
	// title stands for an empty path.
	title string
	// key is the place of the key, or of the nearest parent that was written.
	key Place
	// node is the value; nil when the key was not written.
	node ast.Node
	// def is the default, as it would be written.
	def string
}

func (r *reader) say(at Place, format string, a ...any) {
	r.wrong = append(r.wrong, Mistake{Place: at, Text: fmt.Sprintf(format, a...)})
}

// config reads a whole file.
func (r *reader) config(text []byte) (*Config, error) {
	var c Config
	if root, ok := r.parse(text); ok {
		r.section(&c, entry{title: "the file", key: Place{r.file, 1, 1}, node: root})
	}
	if len(r.wrong) > 0 {
		r.wrong.sort()
		return nil, r.wrong
	}
	return &c, nil
}

// parse returns the root of the one document.
func (r *reader) parse(text []byte) (ast.Node, bool) {
	top := Place{r.file, 1, 1}
	text = bytes.TrimPrefix(text, []byte("\uFEFF"))
	if len(text) > maxBytes {
		r.say(top, "the file is %v, a configuration was expected", errTooLarge)
		return nil, false
	}
	if at := invalidUTF8(text); at >= 0 {
		before := text[:at]
		line := bytes.LastIndexByte(before, '\n') + 1
		r.say(Place{r.file, 1 + bytes.Count(before, []byte("\n")), 1 + utf8.RuneCount(before[line:])},
			"not UTF-8, UTF-8 text was expected")
		return nil, false
	}
	tokens := lexer.Tokenize(string(text))
	if at, ok := tooDeep(tokens); ok {
		r.say(r.tokenPlace(at), "nested too deeply, a configuration was expected")
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
			r.say(r.place(doc.Body), "a second YAML document begins here, one was expected")
			return root, true
		}
	}
	if root == nil {
		r.say(top, "the file is empty, at least one pipeline was expected")
	}
	return root, root != nil
}

func invalidUTF8(text []byte) int {
	for i := 0; i < len(text); {
		c, size := utf8.DecodeRune(text[i:])
		if c == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}

// tooDeep finds nesting that no configuration has and that would cost the
// parser memory by its square.
func tooDeep(tokens token.Tokens) (*token.Token, bool) {
	const most = 50
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
		if open > most || dashes > most {
			return t, true
		}
	}
	return nil, false
}

// needsQuotes finds values that look like text and mean something else to YAML.
var needsQuotes = regexp.MustCompile(`[:\[{,-]\s+([@*%` + "`" + `]|\{(topic|key)\})|\{.*\$\{`)

// syntax reports what the parser said. Its messages hold no values.
func (r *reader) syntax(text []byte, err error) {
	at, message := Place{r.file, 1, 1}, "it cannot be parsed"
	if e := (yaml.Error)(nil); errors.As(err, &e) {
		at, message = r.tokenPlace(e.GetToken()), e.GetMessage()
	}
	hint := ""
	lines := bytes.SplitAfter(text, []byte("\n"))
	if at.Line <= len(lines) && needsQuotes.Match(lines[at.Line-1]) {
		hint = "; a value that begins with @ * % ` or {, or has ${...} within {...}, goes in quotes"
	}
	r.say(at, "not YAML (%s), valid YAML was expected%s", oneLine(message), hint)
}

func oneLine(s string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(s, "\t", `\t`)), " ")
}

func (r *reader) tokenPlace(t *token.Token) Place {
	if t == nil || t.Position == nil {
		return Place{r.file, 1, 1}
	}
	return Place{r.file, max(1, t.Position.Line), max(1, t.Position.Column)}
}

// place is where a node begins. A block mapping begins at its first key; the
// parser calls the colon behind it the node's token.
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

// pair is one key of a mapping and its value.
type pair struct {
	name  string
	key   Place
	value ast.Node
}

// mapping returns the pairs of e's value, without those whose key is wrong;
// false when it is no mapping.
func (r *reader) mapping(e entry, expects string) ([]pair, bool) {
	var values []*ast.MappingValueNode
	switch n := e.node.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		r.sayNode(e, expects, "")
		return nil, false
	}
	var pairs []pair
	first := map[string]Place{}
	for _, v := range values {
		at := r.tokenPlace(v.Key.GetToken())
		var name string
		switch k := v.Key.(type) {
		case *ast.StringNode:
			name = k.Value
		case *ast.MergeKeyNode:
			r.say(at, "the key is a merge key (<<), the keys themselves were expected")
			continue
		default:
			r.say(at, "a key is %s, a name was expected", nodeKind(v.Key))
			continue
		}
		if before, twice := first[name]; twice {
			r.say(at, "the key %s is there twice, once was expected (it is on line %d too)", quote(name), before.Line)
			continue
		}
		first[name] = at
		pairs = append(pairs, pair{name, at, v.Value})
	}
	return pairs, true
}

// sayNode reports a value of the wrong shape.
func (r *reader) sayNode(e entry, expects, hint string) {
	switch e.node.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		expects, hint = "the value itself", ""
	}
	r.say(r.place(e.node), "%s is %s, %s was expected%s", cmp.Or(e.path, e.title), nodeKind(e.node), expects, hint)
}

func nodeKind(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "empty"
	case *ast.AnchorNode:
		return "an anchor (&)"
	case *ast.AliasNode:
		return "an alias (*)"
	case *ast.TagNode:
		return "a tag (!)"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.BoolNode:
		return "a boolean"
	case *ast.StringNode, *ast.LiteralNode:
		return "text"
	}
	return "something else"
}

// written is what a section's mapping holds, by key.
type written map[string]entry

// section reads a mapping by its schema; a nil node is one that was left out,
// whose defaults are filled in and whose needed keys are missing.
func (r *reader) section(s section, e entry) {
	keys := s.keys()
	there := written{}
	if e.node != nil {
		pairs, ok := r.mapping(e, mapping{s}.expects())
		if !ok {
			return
		}
		for _, p := range pairs {
			there[p.name] = entry{path: join(e.path, p.name), key: p.key, node: p.value}
		}
	}
	for _, k := range keys {
		in, ok := there[k.name]
		if !ok {
			in = entry{path: join(e.path, k.name), key: e.key, def: k.def}
		}
		switch variant := variantOf(s); {
		case !ok && k.needed:
			r.say(e.key, "%s is missing, %s was expected", in.path, k.value.expects())
		case ok && k.later:
			r.say(in.key, "%s is not there yet: remove it", in.path)
		case k.serves(variant):
			k.value.read(r, in)
		case ok:
			r.say(in.key, "%s belongs to %s, not to %s: %s was expected",
				in.path, strings.Join(k.of, " and "), variant, oneOf(keys, variant))
		}
	}
	for name, in := range there {
		r.known(name, in.key, e.path, keys, variantOf(s))
	}
	if c, ok := s.(checker); ok {
		c.check(r, e, there)
	}
}

// known reports a name that is none of the keys.
func (r *reader) known(name string, at Place, section string, keys []key, variant string) {
	all := make([]string, len(keys))
	for i, k := range keys {
		all[i] = k.name
	}
	if slices.Contains(all, name) {
		return
	}
	where := ""
	if section != "" {
		where = " in " + section
	}
	if near := nearest(name, all); near != "" {
		r.say(at, "unknown key %s%s, %s was expected", quote(name), where, near)
		return
	}
	r.say(at, "unknown key %s%s, %s was expected", quote(name), where, oneOf(keys, variant))
}

func join(section, key string) string {
	if section == "" {
		return key
	}
	return section + "." + key
}
