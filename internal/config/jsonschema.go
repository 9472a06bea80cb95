package config

import (
	"encoding/json"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// JSONSchema returns a JSON Schema (draft 7) of the configuration, as indented JSON, made from the keys that the
// reader knows, those of sink.Register included. Whatever [Parse] accepts is valid; rules that involve
// the values of several keys are for Parse alone.
func JSONSchema() ([]byte, error) {
	root := object{
		"$schema":     "http://json-schema.org/draft-07/schema#",
		"title":       "relay.yaml",
		"description": "The configuration of Relay. `relay check` also checks what a JSON Schema cannot express.",
		"definitions": object{"expansion": object{"type": "string", "pattern": expansion}},
	}
	maps.Copy(root, sectionSchema(&Config{}))
	text, err := json.MarshalIndent(root, "", "  ")
	return append(text, '\n'), err
}

// object is a JSON object.
type object map[string]any

// expansion matches text with ${...}, whose value a schema cannot know.
const expansion = `\$\{`

// schemaValue is a value that describes itself.
type schemaValue interface{ jsonSchema() object }

// ruledSection is a section with rules beyond those of its keys.
type ruledSection interface{ rules() object }

// urlSection is a section of several variants, which its URL decides.
type urlSection interface {
	section
	// byURL returns an empty section for each variant, with the schema of those that it is.
	byURL() []sectionVariant
}

type sectionVariant struct {
	when    object
	section section
}

// sectionSchema is the schema of a mapping.
func sectionSchema(s section) object {
	schema := object{"type": "object", "additionalProperties": false}
	if r, ok := s.(ruledSection); ok {
		maps.Copy(schema, r.rules())
	}
	variants := []sectionVariant{{section: s}}
	if u, ok := s.(urlSection); ok {
		variants = u.byURL()
	}
	// alternatives are the distinct schemas of a key in the variants that have it.
	alternatives := map[string][]any{}
	for _, v := range variants {
		for name, property := range propertiesOf(v.section) {
			if !slices.ContainsFunc(alternatives[name], func(other any) bool { return reflect.DeepEqual(property, other) }) {
				alternatives[name] = append(alternatives[name], property)
			}
		}
	}
	properties := object{}
	for name, all := range alternatives {
		if properties[name] = all[0]; len(all) > 1 {
			properties[name] = object{"anyOf": all}
		}
	}
	schema["properties"] = properties
	var required []string
	for _, k := range s.keys() {
		if k.required && k.variants == nil {
			required = append(required, k.name)
		}
	}
	if required != nil {
		schema["required"] = required
	}
	if len(variants) == 1 {
		return schema
	}
	var rules []object
	for _, v := range variants {
		rules = append(rules, object{"if": v.when, "then": variantSchema(v.section, alternatives)})
	}
	schema["allOf"] = rules
	return schema
}

// variantSchema is what a variant adds to the schema of its section.
func variantSchema(s section, alternatives map[string][]any) object {
	properties, required := object{}, []string(nil)
	for _, k := range s.keys() {
		if k.required && k.variants != nil && k.appliesTo(variantOf(s)) {
			required = append(required, k.name)
		}
	}
	own := propertiesOf(s)
	for name, property := range own {
		if len(alternatives[name]) > 1 {
			properties[name] = property
		}
	}
	schema := object{"propertyNames": object{"enum": slices.Sorted(maps.Keys(own))}}
	if len(properties) > 0 {
		schema["properties"] = properties
	}
	if required != nil {
		schema["required"] = required
	}
	return schema
}

// propertiesOf are the schemas of the keys of a section's variant.
func propertiesOf(s section) object {
	properties, keys := object{}, s.keys()
	for _, k := range keys {
		if _, first := properties[k.name]; first || !k.appliesTo(variantOf(s)) {
			continue
		}
		property := object{}
		if v, ok := k.value.(schemaValue); ok {
			property = v.jsonSchema()
		}
		property["description"] = description(k)
		if def := defaultOf(k); def != nil {
			property["default"] = def
		}
		properties[k.name] = property
	}
	return properties
}

var markdownLink = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)

// description is the help of a key for editors.
func description(k key) string {
	text := markdownLink.ReplaceAllString(k.help, "$1 in the documentation")
	if len(k.variants) > 0 {
		text = strings.Join(k.variants, ", ") + ": " + text
	}
	if _, nested := k.value.(interface{ keys() []key }); nested || k.value.expects() == "" {
		return text
	}
	return text + " Expects " + k.value.expects() + "."
}

// defaultOf is the default of a key, or nil.
func defaultOf(k key) any {
	def, kind := k.def, asText
	switch v := k.value.(type) {
	case sinkFormat:
		_, def = v.choice()
	case scalar:
		kind = v.kind
	case orAutomatic:
		kind = v.kind
	}
	switch {
	case def == "":
		return nil
	case kind == asNumber || kind == asBool:
		return json.RawMessage(def)
	}
	return def
}
