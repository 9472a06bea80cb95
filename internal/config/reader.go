package config

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// reader reads one file from its root to its scalars and collects all errors.
type reader struct {
	file     string
	env      Lookup
	readFile func(path string) ([]byte, error)
	places   map[*token.Token]Place
	errs     Errors
	// used has the names and tables that only one pipeline may use.
	used map[string]Place
	// files are those of expansions that no section has yet, and started is when the first was read.
	files   []expandedFile
	started time.Time
	// secrets are the expanded values that no text may show.
	secrets []string
	// withoutSinks: values of sinks and hooks whose expansion fails are left out.
	withoutSinks bool
}

func newReader(file string, env Lookup, readFile func(string) ([]byte, error)) *reader {
	return &reader{file: file, env: env, readFile: readFile, started: time.Now(), used: map[string]Place{}}
}

// entry is a key in the file, or a key that the file lacks.
type entry struct {
	// path is the key in messages, relative to its pipeline: "retry.max".
	path string
	// title replaces an empty path in messages.
	title string
	// key is the place of the key, or of its nearest parent in the file.
	key Place
	// node is the value; nil if the file lacks the key.
	node ast.Node
	// def is the default as YAML text.
	def string
}

func (r *reader) errorf(at Place, format string, a ...any) {
	r.errs = append(r.errs, Error{Place: at, Text: fmt.Sprintf(format, a...)})
}

// config reads a file.
func (r *reader) config(text []byte) (*Config, error) {
	var c Config
	if root, ok := r.parse(text); ok {
		r.section(&c, entry{title: "the file", key: Place{r.file, 1, 1}, node: root})
	}
	if len(r.errs) > 0 {
		r.errs.sort()
		return nil, r.errs
	}
	c.redaction = newRedaction(&c, r.secrets)
	for i := range c.Pipelines {
		c.Pipelines[i].redaction = c.redaction
	}
	return &c, nil
}

// pair is a key of a mapping and its value.
type pair struct {
	name  string
	key   Place
	value ast.Node
}

// mapping returns the valid pairs of e's value, and false if it is not a mapping.
func (r *reader) mapping(e entry, expects string) ([]pair, bool) {
	var values []*ast.MappingValueNode
	switch n := e.node.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		r.wrongType(e, expects, "")
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
			r.errorf(at, "the key is a merge key (<<); expected the keys themselves")
			continue
		default:
			r.errorf(at, "the key is %s; expected a name", nodeKind(v.Key))
			continue
		}
		if before, twice := first[name]; twice {
			r.errorf(at, "key %s is repeated (see line %d); expected it once", quote(name), before.Line)
			continue
		}
		first[name] = at
		pairs = append(pairs, pair{name, at, v.Value})
	}
	return pairs, true
}

// wrongType reports a value of the wrong type.
func (r *reader) wrongType(e entry, expects, hint string) {
	switch e.node.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		expects, hint = "the value itself", ""
	}
	r.errorf(r.place(e.node), "%s is %s; expected %s%s", cmp.Or(e.path, e.title), nodeKind(e.node), expects, hint)
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

// entries are the keys that are present in a section, by name.
type entries map[string]entry

// section reads a mapping by its keys. If the file lacks the section, the defaults
// apply and required keys are missing.
func (r *reader) section(s section, e entry) {
	keys, files := s.keys(), len(r.files)
	present := entries{}
	if e.node != nil {
		pairs, ok := r.mapping(e, mapping{s}.expects())
		if !ok {
			return
		}
		for _, p := range pairs {
			present[p.name] = entry{path: join(e.path, p.name), key: p.key, node: p.value}
		}
	}
	for i, k := range keys {
		in, ok := present[k.name]
		if !ok {
			in = entry{path: join(e.path, k.name), key: e.key, def: k.def}
		}
		switch variant := variantOf(s); {
		case variant == "" && len(named(keys[:i], k.name)) > 0: // a driver has a key of the same name
		case !ok && k.required && (k.variants == nil || variant != "" && k.appliesTo(variant)):
			r.errorf(e.key, "%s is missing; expected %s", in.path, k.value.expects())
		case k.appliesTo(variant):
			k.value.read(r, in)
		case ok && len(named(keys[:i], k.name)) == 0 && len(keyNames(named(keys, k.name), variant)) == 0:
			var variants []string
			for _, same := range named(keys, k.name) {
				variants = append(variants, same.variants...)
			}
			r.errorf(in.key, "%s is a key of %s; expected a key of %s: %s",
				in.path, or(variants), variant, or(keyNames(keys, variant)))
		}
	}
	for name, in := range present {
		if _, url := present["url"]; url && variantOf(s) == "" && ofVariants(keys) && nearest(name, keyNames(keys, "")) == "" {
			continue // a key of a scheme that is not known, which is reported
		}
		r.reportUnknownKey(name, in.key, e.path, keys, variantOf(s))
	}
	if h, ok := s.(fileHolder); ok {
		h.setOutdated(newOutdated(slices.Clone(r.files[files:]), r.started))
		r.files = r.files[:files]
	}
	if c, ok := s.(checker); ok {
		c.check(r, e, present)
	}
}

// ofVariants reports whether some keys depend on the variant of the section.
func ofVariants(keys []key) bool {
	return slices.ContainsFunc(keys, func(k key) bool { return k.variants != nil })
}

// reportUnknownKey reports a name that is not one of the keys.
func (r *reader) reportUnknownKey(name string, at Place, section string, keys []key, variant string) {
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
	switch near := nearest(name, all); {
	case section == "sinks" && len(named(new(Pipeline).keys(), name)) > 0:
		guess = " (" + name + " is a key of the pipeline, for all its sinks)"
	case slices.Contains(all, "sinks") && len(named(new(Sink).keys(), name)) > 0:
		guess = " (" + name + " is a key of sink, or of an entry of sinks)"
	case slices.Contains(all, "sinks") && len(named(new(RoutedSink).keys(), name)) > 0:
		guess = " (" + name + " is a key of an entry of sinks)"
	case near != "":
		guess = fmt.Sprintf(" (did you mean %s?)", near)
	}
	r.errorf(at, "unknown key %s%s%s; expected %s", quote(name), where, guess, or(keyNames(keys, variant)))
}

func join(section, key string) string {
	if section == "" {
		return key
	}
	return section + "." + key
}
