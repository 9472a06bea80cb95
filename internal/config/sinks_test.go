package config

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSinks_DefaultsArePipelines(t *testing.T) {
	t.Parallel()
	c, err := parseFile(t, "testdata/sinks.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type settings struct {
		Name               string
		BatchSize, Workers int
		AutoWorkers        bool
		Retry              Retry
	}
	var got []settings
	for _, one := range c.Pipelines[0].PerSink() {
		got = append(got, settings{one.SinkName, one.BatchSize, one.Workers, one.AutoWorkers, one.Retry})
	}
	pipeline := Retry{MaxAttempts: 3, Initial: time.Second, Max: 5 * time.Minute, Multiplier: 2}
	mail := pipeline
	mail.Initial = 10 * time.Second
	want := []settings{
		{"stream", 500, 2, false, pipeline},
		{"events", 500, 32, true, pipeline},
		{"crm", 100, 1, false, Retry{MaxAttempts: 20, Initial: 2 * time.Second, Max: time.Hour, Multiplier: 3}},
		{"mail", 500, 2, false, mail},
		{"sms", 500, 2, false, pipeline},
		{"eu", 500, 2, false, pipeline},
		{"us", 500, 2, false, pipeline},
		{"urgent", 1, 2, false, pipeline},
		{"later", 500, 2, false, pipeline},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sinks (-want +got):\n%s", diff)
	}
}
