package pipeline_test

import (
	"math"
	"testing"
	"time"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/pipeline"
)

func TestNew_InvalidConfig(t *testing.T) {
	t.Parallel()
	if p, err := pipeline.New(nil, nil, pipeline.Config{Name: "orders"}); err != nil || p.Name() != "orders" {
		t.Errorf("a name is enough, got %v", err)
	}
	good := delivery.Backoff{Initial: time.Second, Max: time.Minute, Multiplier: 2}
	for name, c := range map[string]pipeline.Config{
		"no name":             {},
		"batch size":          {Name: "orders", BatchSize: -1},
		"max batches":         {Name: "orders", MaxBatches: -1},
		"max waiting":         {Name: "orders", MaxWaiting: -1},
		"workers":             {Name: "orders", Workers: -1},
		"max attempts":        {Name: "orders", MaxAttempts: -1},
		"lease":               {Name: "orders", Lease: -1},
		"send timeout":        {Name: "orders", SendTimeout: -1},
		"no initial wait":     {Name: "orders", Backoff: delivery.Backoff{Max: good.Max, Multiplier: 2}},
		"initial above max":   {Name: "orders", Backoff: delivery.Backoff{Initial: good.Max, Max: good.Initial, Multiplier: 2}},
		"multiplier below 1":  {Name: "orders", Backoff: delivery.Backoff{Initial: good.Initial, Max: good.Max, Multiplier: 0.5}},
		"multiplier not real": {Name: "orders", Backoff: delivery.Backoff{Initial: good.Initial, Max: good.Max, Multiplier: math.NaN()}},
	} {
		if _, err := pipeline.New(nil, nil, c); err == nil {
			t.Errorf("%s: no error for %+v", name, c)
		}
	}
}
