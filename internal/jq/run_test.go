package jq

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/itchyny/gojq"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func run(ctx context.Context, t *testing.T, program string, input any) (any, error) {
	t.Helper()
	p, err := Compile(program, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p.Run(ctx, input)
}

func TestRun(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]string{
		`[.n, .n == 12345678901234567890, .n + 1, .f]`: `[12345678901234567890,true,12345678901234567891,1.10]`,
		`{b: 1, a: .e}`:         `{"a":1e400,"b":1}`,
		`[nan, infinite, 1e21]`: `[null,1.7976931348623157e+308,1e+21]`,
		`"<\u00e9>"`:            `"<é>"`,
		`.`:                     `{"e":1e400,"f":1.10,"n":12345678901234567890}`,
	} {
		input, err := Decode([]byte(`{"n": 12345678901234567890, "f": 1.10, "e": 1e400}`))
		if err != nil {
			t.Fatal(err)
		}
		got, err := run(t.Context(), t, program, input)
		if err != nil || string(Encode(got)) != want {
			t.Errorf("%s: got %s, %v; want %s", program, Encode(got), err, want)
		}
	}
}

func TestRun_Failures(t *testing.T) {
	t.Parallel()
	for program, c := range map[string]struct {
		text string
		kind error
	}{
		`error("no")`:      {text: "error: no"},
		`.[]`:              {text: "cannot iterate over: null"},
		`empty`:            {"the program made no result", ErrResults},
		`1, 2`:             {"the program made more than one result", ErrResults},
		`1, error("late")`: {text: "error: late"},
		`"0123456789" * 1000 | reduce range(20) as $i (.; [., .])`: {text: "the result is larger than 128 MiB"},
		`reduce range(20000) as $i (1; [.])`:                       {text: "the result is nested deeper than 10000"},
	} {
		_, err := run(t.Context(), t, program, nil)
		if err == nil || !strings.Contains(err.Error(), c.text) || c.kind != nil && !errors.Is(err, c.kind) {
			t.Errorf("%s: got %v; want one that says %q", program, err, c.text)
		}
	}
}

// TestRun_Limits has programs that would take hours or gigabytes. The bound of time is generous:
// on a busy machine one step over half a gigabyte takes seconds.
func TestRun_Limits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		program, text string
		limits        runLimits
	}{
		"Endless":          {`last(repeat(1))`, "did not end within 50ms", runLimits{50 * time.Millisecond, 1 << 40}},
		"EndlessRecursion": {`def f: 1 + f; f`, "took more than 16 MiB", runLimits{time.Minute, 16 << 20}},
		"DoubledString":    {`reduce range(31) as $i ("x"; . + .) | length`, "the program ", defaultLimits},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Compile(c.program, nil)
			if err != nil {
				t.Fatal(err)
			}
			p.limits = c.limits
			began := time.Now()
			_, err = p.Run(t.Context(), nil)
			if !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), c.text) || time.Since(began) > time.Minute {
				t.Errorf("got %v after %v", err, time.Since(began))
			}
		})
	}
}

// TestRun_Panic has a step that panics, which must not end the process.
func TestRun_Panic(t *testing.T) {
	t.Parallel()
	query, err := gojq.Parse("explode_now")
	if err != nil {
		t.Fatal(err)
	}
	code, err := gojq.Compile(query, gojq.WithFunction("explode_now", 0, 0, func(any, []any) any { panic("odd input") }))
	if err != nil {
		t.Fatal(err)
	}
	p := &Program{code: code, limits: defaultLimits}
	if _, err := p.Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "panicked: odd input") {
		t.Errorf("got %v", err)
	}
}

// TestRun_Runaway has a step that does not check its context.
func TestRun_Runaway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		query, err := gojq.Parse("block")
		if err != nil {
			t.Fatal(err)
		}
		block := gojq.WithFunction("block", 0, 0, func(any, []any) any { <-release; return 1 })
		code, err := gojq.Compile(query, block)
		if err != nil {
			t.Fatal(err)
		}
		p, began := &Program{code: code, limits: defaultLimits}, time.Now()
		if _, err := p.Run(t.Context(), nil); !errors.Is(err, ErrLimit) || time.Since(began) > defaultLimits.time+stopGrace+checkInterval {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		if _, err := p.Run(t.Context(), nil); !errors.Is(err, errRunaway) {
			t.Errorf("a second concurrent run: got %v", err)
		}
		close(release)
		synctest.Wait()
		if v, err := p.Run(t.Context(), nil); v != 1 || err != nil {
			t.Errorf("after the first run has ended: got %v, %v", v, err)
		}
	})
}
