package sink_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/sink"
)

// settings is a driver that has only these.
type settings []sink.Setting

func (s settings) Settings() []sink.Setting           { return s }
func (settings) Open(sink.Options) (sink.Sink, error) { return nil, nil }

func TestRegister(t *testing.T) {
	t.Parallel()
	var text string
	var number int
	var list []string
	register := func(scheme string, s ...sink.Setting) (panicked string) {
		defer func() {
			if r := recover(); r != nil {
				panicked = fmt.Sprint(r)
			}
		}()
		sink.Register(scheme, func() sink.Driver { return settings(s) })
		return ""
	}
	for _, c := range []struct {
		scheme string
		of     []sink.Setting
		want   string
	}{
		{"register-test+x.1", []sink.Setting{{Name: "timeout", Into: &text}, {Name: "a_1", Into: &number, Default: "1"}}, ""},
		{"register-test+x.1", nil, "registered already"},
		{"redis", nil, "built in"},
		{"tls+nats", nil, "built in"},
		{"Kafka", nil, "no scheme"},
		{"kafka://", nil, "no scheme"},
		{"a", []sink.Setting{{Name: "url", Into: &text}}, `setting "url": every sink has`},
		{"a", []sink.Setting{{Name: "camelCase", Into: &text}}, "no name"},
		{"a", []sink.Setting{{Name: "b", Into: text}}, "its Into is a string"},
		{"a", []sink.Setting{{Name: "b"}}, "its Into is a <nil>"},
		{"a", []sink.Setting{{Name: "b", Into: &number, Secret: true}}, "expected *string"},
		{"a", []sink.Setting{{Name: "b", Into: &number, OneOf: []string{"1"}}}, "expected *string"},
		{"a", []sink.Setting{{Name: "b", Into: &list, Default: "[]"}}, "cannot be required or have a default"},
		{"a", []sink.Setting{{Name: "b", Into: &text, Default: "x", Required: true}}, "required and has a default"},
		{"a", []sink.Setting{{Name: "b", Into: &text}, {Name: "b", Into: &text}}, "two of it"},
	} {
		if got := register(c.scheme, c.of...); !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("Register(%q, %v): panic %q; want %q", c.scheme, c.of, got, c.want)
		}
	}
	testkit.Equal(t, "registered", slices.Contains(sink.Schemes(), "register-test+x.1") && !slices.Contains(sink.Schemes(), "a"), true)
	testkit.Equal(t, "an unknown scheme has no driver", sink.NewDriver("a") == nil, true)
}
