package jq

import (
	"context"
	"errors"
	"fmt"
	"runtime/metrics"
	"time"
)

// runLimits are the limits of one run.
type runLimits struct {
	time   time.Duration
	memory uint64 // bytes by which the heap of the process may grow; other runs count too
}

// defaultLimits are far beyond what a program for a batch needs.
var defaultLimits = runLimits{time: 5 * time.Second, memory: 512 << 20}

const (
	maxResult = 128 << 20 // bytes of the result's JSON
	// checkInterval is how often the memory is checked.
	checkInterval = 5 * time.Millisecond
	// stopGrace is how long Run waits for a run that it has stopped. gojq stops between two steps, and one
	// step over a large value can take long.
	stopGrace = time.Second
)

// ErrLimit is wrapped by the error of a run that exceeded a limit.
var ErrLimit = errors.New("limit exceeded")

// ErrResults is wrapped by the error of a run that made no result, or several.
var ErrResults = errors.New("expected one result")

var (
	errRunaway = limitError("an earlier run of the program still has not ended")
	errTooBig  = fmt.Errorf("the result is larger than %d MiB", maxResult>>20)
	errTooDeep = fmt.Errorf("the result is nested deeper than %d", maxDepth)
	errNone    = error(&kindError{"the program made no result; expected one", ErrResults})
	errSeveral = error(&kindError{"the program made more than one result; expected one (put [...] around the program to make an array)", ErrResults})
)

// kindError is a text that wraps a sentinel without repeating its text.
type kindError struct {
	text string
	kind error
}

func (e *kindError) Error() string { return e.text }
func (e *kindError) Unwrap() error { return e.kind }

func limitError(format string, a ...any) error {
	return &kindError{fmt.Sprintf(format, a...), ErrLimit}
}

// Run returns the only result of the program. The result may share parts with the input; Encode can write it.
//
// Run ends when ctx does, or when the run exceeds a limit. A run that does not stop a second later is left
// behind, and the program does not run again until that run has ended.
func (p *Program) Run(ctx context.Context, input any) (any, error) {
	if p.runaways.Load() > 0 {
		return nil, errRunaway
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.limits.time, limitError("the program did not end within %v", p.limits.time))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	type outcome struct {
		result any
		err    error
	}
	ended, abandoned := make(chan outcome), make(chan struct{})
	go func() {
		result, err := p.recovered(ctx, input)
		select {
		case ended <- outcome{result, err}:
		case <-abandoned:
			p.runaways.Add(-1)
		}
	}()
	maxHeap := heapBytes() + p.limits.memory
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	stopped := ctx.Done()
	var giveUp <-chan time.Time
	for {
		select {
		case o := <-ended:
			if cause := context.Cause(ctx); o.err != nil && cause != nil {
				o.err = cause
			}
			return o.result, o.err
		case <-ticker.C:
			if heapBytes() > maxHeap {
				stop(limitError("the program took more than %d MiB of memory", p.limits.memory>>20))
			}
		case <-stopped:
			stopped, giveUp = nil, time.After(stopGrace)
		case <-giveUp:
			p.runaways.Add(1)
			close(abandoned)
			return nil, context.Cause(ctx)
		}
	}
}

// recovered is run. A panic of a step becomes an error, because nobody else can recover in this goroutine.
func (p *Program) recovered(ctx context.Context, input any) (result any, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			result, err = nil, fmt.Errorf("the program panicked: %v", reason)
		}
	}()
	return p.run(ctx, input)
}

func (p *Program) run(ctx context.Context, input any) (any, error) {
	results := p.code.RunWithContext(ctx, input, p.secrets...)
	result, ok := results.Next()
	if !ok {
		return nil, errNone
	}
	if err, failed := result.(error); failed {
		return nil, err
	}
	second, several := results.Next()
	if err, failed := second.(error); failed {
		return nil, err
	} else if several {
		return nil, errSeveral
	}
	return result, (&budget{maxResult}).spend(result, 0)
}

// heapBytes is the memory of all objects of the process.
func heapBytes() uint64 {
	sample := [1]metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample[:])
	return sample[0].Value.Uint64()
}
