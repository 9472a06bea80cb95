package export_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/tracing/export"
)

func TestRead(t *testing.T) {
	t.Parallel()
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318"
	for name, c := range map[string]struct {
		env  []string
		want export.Settings
	}{
		"nothing":            {nil, export.Settings{}},
		"other variables":    {[]string{"OTEL_SERVICE_NAME=shop", "OTEL_METRICS_EXPORTER=prometheus", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT=x"}, export.Settings{}},
		"endpoint":           {[]string{endpoint}, export.Settings{On: true, Protocol: "http/protobuf", Endpoint: "http://collector:4318", Sampler: "parentbased_always_on"}},
		"endpoint of traces": {[]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://c/v1/traces", endpoint}, export.Settings{On: true, Protocol: "http/protobuf", Endpoint: "https://c/v1/traces", Sampler: "parentbased_always_on"}},
		"exporter":           {[]string{"OTEL_TRACES_EXPORTER=otlp"}, export.Settings{On: true, Protocol: "http/protobuf", Sampler: "parentbased_always_on"}},
		"empty":              {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=", "OTEL_TRACES_SAMPLER=  "}, export.Settings{}},
		"no exporter":        {[]string{endpoint, "OTEL_TRACES_EXPORTER=none"}, export.Settings{}},
		"disabled":           {[]string{endpoint, "OTEL_SDK_DISABLED=TRUE", "OTEL_TRACES_SAMPLER=nonsense"}, export.Settings{}},
		"grpc, sampled": {
			[]string{endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.01"},
			export.Settings{On: true, Protocol: "grpc", Endpoint: "http://collector:4318", Sampler: "traceidratio 0.01"},
		},
		"everything": {
			[]string{
				endpoint, "OTEL_EXPORTER_OTLP_HEADERS=api-key=a%2Cb,authorization=Bearer%20x", "OTEL_EXPORTER_OTLP_TIMEOUT=500", "OTEL_EXPORTER_OTLP_COMPRESSION=gzip",
				"OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=prod,k8s.pod.name=relay-1", "OTEL_PROPAGATORS=tracecontext,baggage", "OTEL_BSP_MAX_QUEUE_SIZE=4096",
				"OTEL_SPAN_LINK_COUNT_LIMIT=0", "OTEL_EXPORTER_OTLP_INSECURE=true", "OTEL_SDK_DISABLED=false", "OTEL_TRACES_SAMPLER=always_on", "OTEL_TRACES_SAMPLER_ARG=unused",
			},
			export.Settings{On: true, Protocol: "http/protobuf", Endpoint: "http://collector:4318", Sampler: "always_on"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, wrong := export.Read(c.env)
			if diff := cmp.Diff(c.want, got); diff != "" || wrong != nil {
				t.Errorf("mistakes %v; settings (-want +got):\n%s", wrong, diff)
			}
		})
	}
}

// Each wrong variable is one line, which says what is expected, and turns traces off.
func TestRead_Mistakes(t *testing.T) {
	t.Parallel()
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318"
	text := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(text, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env  []string
		want []string
	}{
		"no scheme":      {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=collector:4317"}, []string{`OTEL_EXPORTER_OTLP_ENDPOINT is "collector:4317"; expected a URL such as http://collector:4318`}},
		"other scheme":   {[]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=grpc://c:4317"}, []string{`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is "grpc://c:4317"; expected a URL such as http://collector:4318`}},
		"password":       {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=https://me:s3cret@c"}, []string{"OTEL_EXPORTER_OTLP_ENDPOINT has a user or a password; expected a URL such as http://collector:4318, and credentials in OTEL_EXPORTER_OTLP_HEADERS"}},
		"no host":        {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://:4318"}, []string{"OTEL_EXPORTER_OTLP_ENDPOINT has no host; expected a URL such as http://collector:4318"}},
		"port":           {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:99999"}, []string{"OTEL_EXPORTER_OTLP_ENDPOINT has an invalid port; expected a URL such as http://collector:4318"}},
		"query":          {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c/?token=s3cret"}, []string{"OTEL_EXPORTER_OTLP_ENDPOINT has a query or a fragment; expected a URL such as http://collector:4318"}},
		"exporter":       {[]string{"OTEL_TRACES_EXPORTER=zipkin"}, []string{`OTEL_TRACES_EXPORTER is "zipkin"; expected otlp or none`}},
		"protocol":       {[]string{endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=http/json"}, []string{`OTEL_EXPORTER_OTLP_PROTOCOL is "http/json"; expected grpc or http/protobuf`}},
		"headers":        {[]string{endpoint, "OTEL_EXPORTER_OTLP_HEADERS=api-key: s3cret"}, []string{"OTEL_EXPORTER_OTLP_HEADERS has a part that is no name=value; expected name=value, separated by commas, with special characters as %2C"}},
		"timeout":        {[]string{endpoint, "OTEL_EXPORTER_OTLP_TIMEOUT=10s"}, []string{`OTEL_EXPORTER_OTLP_TIMEOUT is "10s"; expected a whole number of milliseconds, 1 or more`}},
		"compression":    {[]string{endpoint, "OTEL_EXPORTER_OTLP_COMPRESSION=zstd"}, []string{`OTEL_EXPORTER_OTLP_COMPRESSION is "zstd"; expected gzip or none`}},
		"insecure":       {[]string{endpoint, "OTEL_EXPORTER_OTLP_INSECURE=1"}, []string{`OTEL_EXPORTER_OTLP_INSECURE is "1"; expected true or false`}},
		"disabled":       {[]string{endpoint, "OTEL_SDK_DISABLED=yes"}, []string{`OTEL_SDK_DISABLED is "yes"; expected true or false`}},
		"sampler":        {[]string{endpoint, "OTEL_TRACES_SAMPLER=ratio"}, []string{`OTEL_TRACES_SAMPLER is "ratio"; expected always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off or parentbased_traceidratio`}},
		"ratio":          {[]string{endpoint, "OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=1%"}, []string{`OTEL_TRACES_SAMPLER_ARG is "1%"; expected a ratio from 0 to 1`}},
		"large ratio":    {[]string{endpoint, "OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=5"}, []string{`OTEL_TRACES_SAMPLER_ARG is "5"; expected a ratio from 0 to 1`}},
		"propagators":    {[]string{endpoint, "OTEL_PROPAGATORS=b3"}, []string{`OTEL_PROPAGATORS is "b3"; expected a list with tracecontext, the only format that relay passes on`}},
		"resource":       {[]string{endpoint, "OTEL_RESOURCE_ATTRIBUTES=env:prod"}, []string{`OTEL_RESOURCE_ATTRIBUTES has the part "env:prod"; expected name=value, separated by commas, with special characters as %2C`}},
		"queue":          {[]string{endpoint, "OTEL_BSP_MAX_QUEUE_SIZE=0"}, []string{`OTEL_BSP_MAX_QUEUE_SIZE is "0"; expected a whole number, 1 or more`}},
		"batch":          {[]string{endpoint, "OTEL_BSP_MAX_QUEUE_SIZE=5", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=6"}, []string{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE is 6; expected at most OTEL_BSP_MAX_QUEUE_SIZE, which is 5"}},
		"no file":        {[]string{endpoint, "OTEL_EXPORTER_OTLP_CERTIFICATE=/absent.pem"}, []string{"OTEL_EXPORTER_OTLP_CERTIFICATE cannot be read: open /absent.pem: no such file or directory; expected a file with certificates in PEM format"}},
		"no certificate": {[]string{endpoint, "OTEL_EXPORTER_OTLP_CERTIFICATE=" + text}, []string{"OTEL_EXPORTER_OTLP_CERTIFICATE has no certificate; expected a file with certificates in PEM format"}},
		"half a pair":    {[]string{endpoint, "OTEL_EXPORTER_OTLP_CLIENT_KEY=/k"}, []string{"OTEL_EXPORTER_OTLP_CLIENT_KEY is set alone; expected OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE too"}},
		"misspelt":       {[]string{"OTEL_EXPORTER_OTLP_ENDPONT=http://c"}, []string{"OTEL_EXPORTER_OTLP_ENDPONT is no variable of OpenTelemetry; expected OTEL_EXPORTER_OTLP_ENDPOINT"}},
		"two": {
			[]string{endpoint, "OTEL_TRACE_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT=-1"},
			[]string{
				"OTEL_TRACE_EXPORTER is no variable of OpenTelemetry; expected OTEL_TRACES_EXPORTER",
				`OTEL_EXPORTER_OTLP_TRACES_TIMEOUT is "-1"; expected a whole number of milliseconds, 1 or more`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings, wrong := export.Read(c.env)
			var got []string
			for _, m := range wrong {
				got = append(got, m.Text)
			}
			if diff := cmp.Diff(c.want, got); diff != "" || settings.On {
				t.Errorf("traces are on: %t; mistakes (-want +got):\n%s", settings.On, diff)
			}
		})
	}
}
