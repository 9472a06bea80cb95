package export

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Mistake is a variable that is set wrongly.
type Mistake struct {
	// Name is the variable's.
	Name string
	// Text is one line, `NAME is "value"; expected what`, without secrets.
	Text string
}

// Settings are what the environment says of traces.
type Settings struct {
	// On reports whether spans are exported.
	On bool
	// Protocol is "grpc" or "http/protobuf".
	Protocol string
	// Endpoint is the URL that is shown; "" means the default of the protocol.
	Endpoint string
	// Sampler is the name of the sampler, with its ratio.
	Sampler string
}

const (
	protocolGRPC = "grpc"
	protocolHTTP = "http/protobuf"
)

// environment are the variables that are set. An empty one is not, by the specification.
type environment map[string]string

func environmentOf(environ []string) environment {
	env := environment{}
	for _, one := range environ {
		if name, value, ok := strings.Cut(one, "="); ok && strings.HasPrefix(name, "OTEL_") && strings.TrimSpace(value) != "" {
			env[name] = strings.TrimSpace(value)
		}
	}
	return env
}

// otlp returns the value of a variable of the exporter: that for traces, otherwise that for all signals.
func (env environment) otlp(name string) string {
	if value := env["OTEL_EXPORTER_OTLP_TRACES_"+name]; value != "" {
		return value
	}
	return env["OTEL_EXPORTER_OTLP_"+name]
}

// Read reads the variables of environ, which has the form of os.Environ. Traces are on if an endpoint or the exporter is named, and no
// variable is set wrongly.
func Read(environ []string) (Settings, []Mistake) {
	env := environmentOf(environ)
	var wrong []Mistake
	add := func(name, format string, a ...any) {
		wrong = append(wrong, Mistake{name, name + " " + fmt.Sprintf(format, a...)})
	}
	disabled := env["OTEL_SDK_DISABLED"]
	if disabled != "" && !isBool(disabled) {
		add("OTEL_SDK_DISABLED", "is %q; expected true or false", clip(disabled))
	}
	exporter := env["OTEL_TRACES_EXPORTER"]
	if strings.EqualFold(disabled, "true") || exporter == "none" {
		return Settings{}, nil
	}
	for _, name := range misspelt(env) {
		add(name[0], "is no variable of OpenTelemetry; expected %s", name[1])
	}
	if exporter != "" && exporter != "otlp" {
		add("OTEL_TRACES_EXPORTER", "is %q; expected otlp or none", clip(exporter))
	}
	named := exporter != "" || env.otlp("ENDPOINT") != ""
	if named {
		env.check(add)
	}
	if !named || wrong != nil {
		return Settings{}, wrong
	}
	s := Settings{On: true, Protocol: protocolHTTP, Endpoint: env.otlp("ENDPOINT"), Sampler: "parentbased_always_on"}
	if protocol := env.otlp("PROTOCOL"); protocol != "" {
		s.Protocol = protocol
	}
	if sampler := strings.ToLower(env["OTEL_TRACES_SAMPLER"]); sampler != "" {
		s.Sampler = sampler
		if ratio := env["OTEL_TRACES_SAMPLER_ARG"]; ratio != "" && strings.HasSuffix(sampler, "ratio") {
			s.Sampler += " " + ratio
		}
	}
	return s, nil
}

// rule says what the value of a variable must be.
type rule struct {
	names []string
	// wrong returns what is wrong with a value and what is expected, "is ...; expected ..."; "" if it is right.
	wrong func(value string) string
}

// otlpNames are the names of a variable of the exporter: for all signals, and for traces.
func otlpNames(name string) []string {
	return []string{"OTEL_EXPORTER_OTLP_" + name, "OTEL_EXPORTER_OTLP_TRACES_" + name}
}

var rules = []rule{
	{otlpNames("ENDPOINT"), wrongURL},
	{otlpNames("PROTOCOL"), func(v string) string {
		if v == protocolGRPC || v == protocolHTTP {
			return ""
		}
		return is(v) + "grpc or http/protobuf"
	}},
	{otlpNames("HEADERS"), func(v string) string { return wrongPairs(v, false) }},
	{otlpNames("TIMEOUT"), atLeast(1, " of milliseconds")},
	{otlpNames("COMPRESSION"), oneOf("gzip", "none")},
	{otlpNames("INSECURE"), func(v string) string {
		if isBool(v) {
			return ""
		}
		return is(v) + "true or false"
	}},
	{otlpNames("CERTIFICATE"), wrongCertificate},
	{[]string{"OTEL_RESOURCE_ATTRIBUTES"}, func(v string) string { return wrongPairs(v, true) }},
	{[]string{"OTEL_TRACES_SAMPLER"}, func(v string) string {
		return oneOf("always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio")(strings.ToLower(v))
	}},
	{[]string{"OTEL_PROPAGATORS"}, func(v string) string {
		for one := range strings.SplitSeq(v, ",") {
			if strings.TrimSpace(one) == "tracecontext" {
				return ""
			}
		}
		return is(v) + "a list with tracecontext, the only format that relay passes on"
	}},
	{[]string{"OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_EXPORT_TIMEOUT"}, atLeast(1, " of milliseconds")},
	{[]string{"OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"}, atLeast(1, "")},
	{[]string{
		"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
		"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_EVENT_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT", "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
		"OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
	}, atLeast(0, "")},
}

// check checks the variables that are set.
func (env environment) check(add func(name, format string, a ...any)) {
	for _, r := range rules {
		for _, name := range r.names {
			if value := env[name]; value != "" {
				if wrong := r.wrong(value); wrong != "" {
					add(name, "%s", wrong)
				}
			}
		}
	}
	if arg := env["OTEL_TRACES_SAMPLER_ARG"]; arg != "" && strings.HasSuffix(strings.ToLower(env["OTEL_TRACES_SAMPLER"]), "ratio") {
		if ratio, err := strconv.ParseFloat(arg, 64); err != nil || !(ratio >= 0 && ratio <= 1) { // also NaN
			add("OTEL_TRACES_SAMPLER_ARG", "%sa ratio from 0 to 1", is(arg))
		}
	}
	for _, space := range []string{"", "TRACES_"} {
		name := "OTEL_EXPORTER_OTLP_" + space + "CLIENT_"
		certificate, key := env[name+"CERTIFICATE"], env[name+"KEY"]
		switch {
		case certificate == "" && key == "":
		case certificate == "":
			add(name+"KEY", "is set alone; expected %sCERTIFICATE too", name)
		case key == "":
			add(name+"CERTIFICATE", "is set alone; expected %sKEY too", name)
		default:
			if _, err := tls.LoadX509KeyPair(certificate, key); err != nil {
				add(name+"CERTIFICATE", "cannot be used: %v; expected a file in PEM format, with its key in %sKEY", err, name)
			}
		}
	}
	queue, errQueue := strconv.Atoi(env["OTEL_BSP_MAX_QUEUE_SIZE"])
	batch, errBatch := strconv.Atoi(env["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"])
	if errQueue == nil && errBatch == nil && batch > queue {
		add("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "is %d; expected at most OTEL_BSP_MAX_QUEUE_SIZE, which is %d", batch, queue)
	}
}

// misspelt returns the names of variables that differ from a known one by two characters at most, each with the known one. Others are for
// other signals and other programs.
func misspelt(env environment) (names [][2]string) {
	known := []string{"OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_SERVICE_NAME", "OTEL_TRACES_SAMPLER_ARG"}
	for _, r := range rules {
		known = append(known, r.names...)
	}
	known = append(append(known, otlpNames("CLIENT_CERTIFICATE")...), otlpNames("CLIENT_KEY")...)
	for name := range env {
		if near := buffer.Nearest(name, known, 2); near != "" && !slices.Contains(known, name) {
			names = append(names, [2]string{name, near})
		}
	}
	slices.SortFunc(names, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return names
}

func is(value string) string { return fmt.Sprintf("is %q; expected ", clip(value)) }

func clip(text string) string {
	const most = 60
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "..."
	}
	return text
}

func isBool(v string) bool { return strings.EqualFold(v, "true") || strings.EqualFold(v, "false") }

func oneOf(words ...string) func(string) string {
	return func(v string) string {
		if slices.Contains(words, v) {
			return ""
		}
		return is(v) + strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
	}
}

func atLeast(least int, unit string) func(string) string {
	return func(v string) string {
		if n, err := strconv.Atoi(v); err == nil && n >= least {
			return ""
		}
		return is(v) + fmt.Sprintf("a whole number%s, %d or more", unit, least)
	}
}

// wrongURL quotes nothing that may be a secret.
func wrongURL(v string) string {
	const expected = "expected a URL such as http://collector:4318"
	u, err := url.Parse(v)
	switch {
	case strings.Contains(v, "@"):
		return "has a user or a password; " + expected + ", and credentials in OTEL_EXPORTER_OTLP_HEADERS"
	case err != nil || u.Scheme != "http" && u.Scheme != "https":
		return is(v) + strings.TrimPrefix(expected, "expected ")
	case u.Hostname() == "":
		return "has no host; " + expected
	case u.RawQuery != "" || u.Fragment != "":
		return "has a query or a fragment; " + expected
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return "has an invalid port; " + expected
		}
	}
	return ""
}

// wrongPairs checks a list name=value,name=value. Values of headers are secrets, which may be in a part without a name.
func wrongPairs(v string, show bool) string {
	const expected = "; expected name=value, separated by commas, with special characters as %2C"
	for part := range strings.SplitSeq(v, ",") {
		name, value, ok := strings.Cut(part, "=")
		if _, err := url.PathUnescape(value); ok && err == nil && isToken(strings.TrimSpace(name)) {
			continue
		}
		if show {
			return fmt.Sprintf("has the part %q", clip(part)) + expected
		}
		return "has a part that is no name=value" + expected
	}
	return ""
}

// isToken reports whether a name is one of a header.
func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
	})
}

func wrongCertificate(file string) string {
	const expected = "; expected a file with certificates in PEM format"
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Sprintf("cannot be read: %v", err) + expected
	}
	if !x509.NewCertPool().AppendCertsFromPEM(text) {
		return "has no certificate" + expected
	}
	return ""
}
