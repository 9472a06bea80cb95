package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// reader walks one file from its root to its scalars and gathers every mistake.
type reader struct {
	file     string
	env      Lookup
	readFile func(path string) ([]byte, error)
	places   map[*token.Token]Place
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
	where, guess := "", ""
	if section != "" {
		where = " in " + section
	}
	if near := nearest(name, all); near != "" {
		guess = fmt.Sprintf(" (did you mean %s?)", near)
	}
	r.say(at, "unknown key %s%s%s, %s was expected", quote(name), where, guess, oneOf(keys, variant))
}

func join(section, key string) string {
	if section == "" {
		return key
	}
	return section + "." + key
}
