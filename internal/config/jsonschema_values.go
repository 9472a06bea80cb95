package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

func (s scalar) jsonSchema() object {
	written := object{"type": "string"}
	switch s.kind {
	case asNumber:
		written["type"] = "number"
	case asBool:
		written["type"] = "boolean"
	}
	maps.Copy(written, s.schema)
	if len(written) == 1 && s.kind == asText {
		return written
	}
	expanded := object{"$ref": "#/definitions/expansion"}
	if written["type"] == "integer" { // in YAML, 1_000 is text to most readers
		return object{"anyOf": []any{written, expanded, object{"type": "string", "pattern": `^[+-]?[0-9]+(_[0-9]+)+$`}}}
	}
	return object{"anyOf": []any{written, expanded}}
}

func (o orAutomatic) jsonSchema() object {
	schema := o.scalar.jsonSchema()
	schema["anyOf"] = append(schema["anyOf"].([]any), object{"const": "auto"})
	return schema
}

func (m mapping) jsonSchema() object { return sectionSchema(m.section) }

func (hook) jsonSchema() object { return sectionSchema(&Sink{}) }

func (a archiveTable) jsonSchema() object { return table(&a.Table).jsonSchema() }

func (l list[T]) jsonSchema() object {
	var element T
	return object{"type": "array", "items": l.element(&element).jsonSchema()}
}

func (l someOf[T]) jsonSchema() object { return notEmpty(l.list.jsonSchema()) }

func (s signingSecrets) jsonSchema() object {
	one := signingSecret(nil).jsonSchema()
	return object{"anyOf": []any{one, notEmpty(object{"type": "array", "items": one})}}
}

func (jobRetry) jsonSchema() object {
	return object{"anyOf": []any{
		object{"type": "boolean"}, object{"const": "class"}, object{"type": "integer", "minimum": 0, "maximum": 10_000}, object{"$ref": "#/definitions/expansion"},
	}}
}

func (s routedRetry) jsonSchema() object {
	relays := s.relays().jsonSchema()
	if s.variant() != sidekiqVariant {
		return relays
	}
	return object{"anyOf": []any{relays, jobRetry{}.jsonSchema()}}
}

func (pipelines) jsonSchema() object { return notEmpty(listOf(&Pipeline{})) }

func (routedSinks) jsonSchema() object { return notEmpty(listOf(&RoutedSink{})) }

func (tokens) jsonSchema() object { return notEmpty(listOf(&Token{})) }

func listOf(s section) object { return object{"type": "array", "items": sectionSchema(s)} }

func notEmpty(list object) object {
	list["minItems"] = 1
	return list
}

func (expressions) jsonSchema() object {
	return object{"type": "object", "minProperties": 1, "additionalProperties": object{"type": []string{"string", "number", "boolean"}}}
}

func (headers) jsonSchema() object {
	return object{
		"type": "object", "additionalProperties": object{"type": "string"},
		"propertyNames": object{"pattern": headerName.String()},
	}
}

func (f sinkFormat) jsonSchema() object {
	formats, _ := f.choice()
	return formats.jsonSchema()
}

func (c checkedSetting) jsonSchema() object {
	if v, ok := c.value.(schemaValue); ok {
		return v.jsonSchema()
	}
	return object{}
}

func (sourceURL) jsonSchema() object {
	return object{"type": "string", "pattern": schemePattern(sourceSchemes, "") + "|" + expansion}
}

func (sinkURL) jsonSchema() object {
	return object{"type": "string", "pattern": schemePattern(schemesOfSinks(), "") + "|" + expansion}
}

// schemePattern matches a URL with one of the schemes, those of one driver unless it is "".
func schemePattern(schemes []scheme, driver string) string {
	var of []scheme
	for _, s := range schemes {
		if driver == "" || s.driver == driver {
			of = append(of, s)
		}
	}
	all := prefixes(of)
	for i := range all {
		all[i] = regexp.QuoteMeta(all[i])
	}
	return "^(" + strings.Join(all, "|") + ")"
}

// drivers are the drivers of the schemes, in their order.
func drivers(schemes []scheme) (all []string) {
	for _, s := range schemes {
		if !s.planned && !slices.Contains(all, s.driver) {
			all = append(all, s.driver)
		}
	}
	return all
}

func hasScheme(schemes []scheme, driver string) object {
	return object{"required": []string{"url"}, "properties": object{"url": object{"pattern": schemePattern(schemes, driver)}}}
}

func (s *Source) byURL() (all []sectionVariant) {
	for _, driver := range drivers(sourceSchemes) {
		all = append(all, sectionVariant{hasScheme(sourceSchemes, driver), &Source{Driver: driver}})
	}
	return all
}

func (s *Sink) byURL() (all []sectionVariant) {
	schemes := schemesOfSinks()
	for _, driver := range drivers(schemes) {
		if driver != "redis" {
			all = append(all, sectionVariant{hasScheme(schemes, driver), &Sink{Driver: driver}})
			continue
		}
		for _, mode := range redisModes {
			when := hasScheme(schemes, driver)
			when["properties"].(object)["mode"] = object{"const": mode}
			if mode != redisModes[0] { // the default
				when["required"] = []string{"url", "mode"}
			}
			all = append(all, sectionVariant{when, &Sink{Driver: driver, Redis: RedisSink{Mode: mode}}})
		}
	}
	return all
}

func (s *RoutedSink) byURL() []sectionVariant {
	all := s.Sink.byURL()
	for i, v := range all {
		all[i].section = &RoutedSink{Sink: *v.section.(*Sink)}
	}
	return all
}

func (p *Pipeline) rules() object {
	return object{
		"oneOf":        []object{{"required": []string{"sink"}}, {"required": []string{"sinks"}}},
		"dependencies": object{"unmatched": []string{"sinks"}},
	}
}

func (t *TLS) rules() object {
	return object{"dependencies": object{"cert": []string{"key"}, "key": []string{"cert"}}}
}

// between are the limits of a number.
func between(kind string, low, high any) object {
	return object{"type": kind, "minimum": low, "maximum": high}
}

var goDuration = fmt.Sprintf(`^[+]?(%[1]s)+$`, `([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)`)
