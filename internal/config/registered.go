package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/sink"
)

// schemesOfSinks are the built-in schemes and those of sink.Register.
func schemesOfSinks() []scheme {
	all := slices.Clone(sinkSchemes)
	for _, name := range sink.Schemes() {
		all = append(all, scheme{
			prefix: name + "://", driver: name, example: "a URL like " + name + "://host",
			check: func(address) error { return nil }, // that is for the driver's Open
		})
	}
	return all
}

// registeredDriver returns the sink's driver if its scheme was registered, otherwise nil.
func (s *Sink) registeredDriver() sink.Driver { return s.registered[s.Driver] }

// registeredKeys are the keys of all registered schemes, each for its own.
func (s *Sink) registeredKeys() (keys []key) {
	for _, name := range sink.Schemes() {
		if s.registered == nil {
			s.registered = map[string]sink.Driver{}
		}
		if s.registered[name] == nil {
			s.registered[name] = sink.NewDriver(name)
		}
		for _, setting := range s.registered[name].Settings() {
			keys = append(keys, key{
				name: setting.Name, value: checkedSetting{s.settingValue(setting), setting}, def: setting.Default, required: setting.Required,
				variants: []string{name}, help: setting.Help,
			})
		}
	}
	return keys
}

// settingValue reads a setting into its field.
func (s *Sink) settingValue(setting sink.Setting) value {
	var v scalar
	switch into := setting.Into.(type) {
	case *string:
		switch {
		case setting.Secret:
			v = scalar{what: "text", kind: asText, hide: true, set: func(in input) error {
				*into = in.text
				s.registeredSecrets = append(s.registeredSecrets, newSecret(in.text))
				return nil
			}}
		case setting.OneOf != nil:
			v = choice(into, setting.OneOf...)
		default:
			v = text(into, "text", func(string) bool { return true })
		}
	case *bool:
		v = boolean(into)
	case *int:
		v = integer(into, math.MinInt, math.MaxInt)
		v.what = "an integer"
	case *int64:
		v = integer(into, math.MinInt64, math.MaxInt64)
		v.what = "an integer"
	case *float64:
		v = number(into, -math.MaxFloat64, math.MaxFloat64)
		v.what = "a number"
	case *time.Duration:
		v = duration(into, 0, math.MaxInt64)
		v.what = "a duration (like 30s)"
	case *sink.Template:
		v = scalar{what: "text, {topic} and {key}", kind: asText, shown: showNames, set: func(in input) error {
			t, err := sink.ParseTemplate(in.text, false)
			if err != nil || in.text == "" {
				return invalid("")
			}
			*into = t
			return nil
		}}
	case *[]string:
		return list[string]{cmp.Or(setting.Expects, "a list of texts"), into, func(s *string) scalar { return nonEmpty(s, "text") }}
	case *sink.TLS:
		return optional{mapping{(*TLS)(into)}}
	}
	v.what = cmp.Or(setting.Expects, v.what)
	set := v.set
	v.set = func(in input) error {
		if err := set(in); err != nil || setting.Check == nil {
			return err
		}
		if err := setting.Check(); err != nil {
			return invalid(err.Error())
		}
		return nil
	}
	return v
}

// checkedSetting runs Check of a list or mapping. Scalars do it themselves, as they know what may be quoted.
type checkedSetting struct {
	value
	setting sink.Setting
}

func (c checkedSetting) read(r *reader, e entry) {
	before := len(r.errs)
	c.value.read(r, e)
	if _, isScalar := c.value.(scalar); isScalar || e.node == nil || c.setting.Check == nil || len(r.errs) > before {
		return
	}
	if err := c.setting.Check(); err != nil {
		r.errorf(r.place(e.node), "%s is invalid (%s); expected %s", e.path, oneLine(err.Error()), c.expects())
	}
}

// openRegistered opens a sink of a registered scheme.
func (p *Pipeline) openRegistered(d sink.Driver, s *Sink) (opened sink.Sink, err error) {
	opened, err = d.Open(sink.Options{
		URL: s.URL.Reveal(), Pipeline: p.Name, Sink: p.SinkName, Ordered: p.ordered(), Workers: p.Workers, ResendWithin: p.resendWithin(s),
	})
	switch {
	case err != nil:
		return nil, errors.New(p.redaction.text(err.Error()))
	case opened == nil:
		return nil, fmt.Errorf("the driver of %s:// opened no sink, and gave no error", s.Driver)
	}
	return opened, nil
}

// Address describes where a sink of a registered scheme writes: its templates, such as "topic orders.{topic}". ok is false
// for the built-in schemes.
func (s *Sink) Address() (text string, ok bool) {
	d := s.registeredDriver()
	if d == nil {
		return "", false
	}
	var parts []string
	for _, setting := range d.Settings() {
		if t, ok := setting.Into.(*sink.Template); ok {
			parts = append(parts, setting.Name+" "+t.String())
		}
	}
	return cmp.Or(strings.Join(parts, ", "), s.Driver), true
}

// registeredTarget is the URL with all settings: what else decides where events go is not known.
func (s *Sink) registeredTarget(d sink.Driver) string {
	target := s.URL.Reveal()
	for _, setting := range d.Settings() {
		target += fmt.Sprintf(" %s=%v", setting.Name, reflect.ValueOf(setting.Into).Elem().Interface())
	}
	return target
}
