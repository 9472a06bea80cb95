package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := JSONSchema()
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("relay.schema.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("relay.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// tree returns a YAML document as JSON, and false if it has none.
func tree(text []byte) (any, bool) {
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, false
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	return value, err == nil
}

// configurations are the configuration files of the repository that are correct.
func configurations(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{
		"testdata/*.good.yaml", "../../deploy/*/relay.yaml", "../../examples/relay.yaml", "../../examples/*/relay.yaml",
		"../../examples/*/*/relay.yaml", "../cli/testdata/init/*.yaml",
	} {
		files, err := filepath.Glob(filepath.FromSlash(pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, files...)
	}
	if len(all) < 15 {
		t.Fatalf("found %d configurations: %q", len(all), all)
	}
	// Its sink is registered by the example itself.
	return slices.DeleteFunc(all, func(path string) bool { return strings.Contains(path, "ownsink") })
}

func TestJSONSchema_AcceptsEveryConfiguration(t *testing.T) {
	t.Parallel()
	schema := compileSchema(t)
	for _, path := range configurations(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		value, ok := tree(text)
		if !ok {
			t.Errorf("%s is not YAML", path)
			continue
		}
		if err := schema.Validate(value); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// beyondSchema are the bad files whose mistakes concern the values of several keys, or what a text says.
var beyondSchema = []string{
	"expand", "names", "proxy", "proxy-empty", "twice", "wake",
}

func TestJSONSchema_RejectsBadFiles(t *testing.T) {
	t.Parallel()
	schema, rejected := compileSchema(t), 0
	for _, path := range files(t, "*.bad.yaml") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		value, ok := tree(text)
		if !ok {
			continue // an editor has its mistakes from the YAML parser
		}
		name := strings.TrimSuffix(filepath.Base(path), ".bad.yaml")
		err = schema.Validate(value)
		if beyond := slices.Contains(beyondSchema, name); beyond == (err != nil) {
			t.Errorf("%s: the schema says %v", name, err)
		}
		if err != nil {
			rejected++
		}
	}
	if rejected < 15 {
		t.Errorf("%d bad files were rejected", rejected)
	}
}

// mutation is a correct configuration with one change.
type mutation struct {
	what  string
	value any
	// wrong reports whether the schema has to see that the change is a mistake.
	wrong bool
}

// mutations are all configurations that differ from a correct one by one change below value; with makes of a new value the whole.
func mutations(path string, value any, with func(any) any) (all []mutation) {
	add := func(what string, changed any, wrong bool) {
		all = append(all, mutation{what + " " + path, with(changed), wrong})
	}
	switch v := value.(type) {
	case map[string]any:
		free := strings.HasSuffix(path, ".headers") || strings.HasSuffix(path, ".mark") // any name is a header, or a column
		changed := maps.Clone(v)
		changed["zzz"] = "zzz"
		add("unknown key in", changed, !free)
		add("text for", "zzz", true)
		add("list for", []any{v}, true)
		add("null for", nil, true)
		for _, name := range slices.Sorted(maps.Keys(v)) {
			without := maps.Clone(v)
			delete(without, name)
			add("no "+name+" in", without, false)
			all = append(all, mutations(path+"."+name, v[name], func(changed any) any {
				other := maps.Clone(v)
				other[name] = changed
				return with(other)
			})...)
		}
	case []any:
		add("mapping for", map[string]any{"zzz": "zzz"}, true)
		add("empty list for", []any{}, false)
		for i := range v {
			all = append(all, mutations(fmt.Sprintf("%s[%d]", path, i), v[i], func(changed any) any {
				other := slices.Clone(v)
				other[i] = changed
				return with(other)
			})...)
		}
	default:
		add("mapping for", map[string]any{"zzz": "zzz"}, true)
		add("list for", []any{"zzz"}, true)
		add("null for", nil, true)
		for _, other := range []any{"zzz", json.Number("7"), json.Number("-1.5"), true, "nats://h", "${PGPASSWORD}"} {
			add(fmt.Sprintf("%#v for", other), other, false)
		}
	}
	return all
}

// mutationsOfFile are those of a file, each with the changed pipeline only.
func mutationsOfFile(text []byte) (all []mutation) {
	value, _ := tree(text)
	file := value.(map[string]any)
	for _, pipeline := range file["pipelines"].([]any) {
		all = append(all, mutations("pipeline", pipeline, func(changed any) any { return map[string]any{"pipelines": []any{changed}} })...)
	}
	file["pipelines"] = file["pipelines"].([]any)[:1]
	return append(all, mutations("file", file, func(changed any) any { return changed })...)
}

// Whatever Parse accepts is valid, and mistakes of keys and types are not.
func TestJSONSchema_AgreesWithParse(t *testing.T) {
	t.Parallel()
	schema := compileSchema(t)
	seen, rejectedByBoth, missed := 0, 0, 0
	for _, path := range files(t, "*.good.yaml") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range mutationsOfFile(text) {
			written, err := json.Marshal(m.value)
			if err != nil {
				t.Fatal(err)
			}
			_, wrong := Parse(path, written, lookup)
			invalid := schema.Validate(m.value)
			seen++
			switch {
			case wrong == nil && invalid != nil:
				t.Errorf("%s: %s: Parse accepts it, and the schema says %v", path, m.what, invalid)
			case wrong == nil && m.wrong:
				t.Errorf("%s: %s: Parse accepts it", path, m.what)
			case m.wrong && invalid == nil:
				t.Errorf("%s: %s: the schema accepts it; Parse says %v", path, m.what, wrong)
			case wrong != nil && invalid != nil:
				rejectedByBoth++
			case wrong != nil:
				missed++
			}
		}
	}
	t.Logf("%d changes: both reject %d, Parse alone %d", seen, rejectedByBoth, missed)
	if rejectedByBoth < 5*missed {
		t.Errorf("of %d mistakes, the schema misses %d", rejectedByBoth+missed, missed)
	}
}
