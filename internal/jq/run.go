package jq

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	timeLimit = 5 * time.Second
	// memoryLimit is what a child may take beyond what it has when it starts.
	memoryLimit = 256 << 20
	// maxResult is the largest result, in bytes.
	maxResult = 64 << 20
	// maxResults is the largest list of failed events, in bytes: a 16 MiB response has not more to say.
	maxResults = 16 << 20
)

var (
	// ErrLimit is wrapped by the error of a run that exceeded a limit of time or memory.
	ErrLimit = errors.New("limit exceeded")
	// ErrResults is wrapped by the error of a run that made no result, or several.
	ErrResults = errors.New("expected one result")
	// ErrInput is wrapped by the error of a run whose input is not JSON.
	ErrInput = errors.New("input is not JSON")
	// ErrProcess is wrapped by an error that says nothing about the program or its input: no process could be
	// started, or it was killed.
	ErrProcess = errors.New("process failed")
	// ErrKilled is wrapped, beside ErrProcess, by the error of a run whose process somebody killed, although it was new:
	// an operator, or the kernel because memory ran out, which the run may have caused.
	ErrKilled = fmt.Errorf("%w: killed", ErrProcess)
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

func processError(format string, a ...any) error {
	return &kindError{fmt.Sprintf(format, a...), ErrProcess}
}

var (
	errMemory   = limitError("the program took more than %d MiB of memory", memoryLimit>>20)
	errNotShort = errors.New("the run is not short")
)

// Request runs the program on a JSON text, and returns its only result in this shape. It waits for a child process;
// ctx ends the wait and the run.
func (p *Program) Request(ctx context.Context, input []byte, shape Shape) ([]byte, error) {
	return p.run(ctx, &job{shape: shape, input: input, limit: maxResult})
}

// Results is Request for an input, a JSON object, that gets body as .body: the value of its JSON, otherwise a string.
func (p *Program) Results(ctx context.Context, input, body []byte) ([]byte, error) {
	return p.run(ctx, &job{shape: results, input: input, body: body, limit: maxResults})
}

// job is one run of a program.
type job struct {
	shape       Shape
	input, body []byte
	limit       int // of the result, in bytes
}

// run runs the program. If the run is not as short as expected, it is repeated in a child for any run.
func (p *Program) run(ctx context.Context, j *job) ([]byte, error) {
	if !p.joined.Swap(true) {
		children.join()
	}
	text, err := p.runOnce(ctx, j, false)
	if errors.Is(err, errNotShort) {
		text, err = p.runOnce(ctx, j, true)
	}
	return text, err
}

// runOnce runs the program in a child that may have run others. If that child ends because of its memory, earlier runs
// may be to blame; if it is killed, nobody is. In both cases the program is run once more, in a new child.
func (p *Program) runOnce(ctx context.Context, j *job, long bool) ([]byte, error) {
	begun, err := children.enter(ctx, &p.share, j.shape == results, long)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	defer func() { children.runs.leave(begun, time.Since(began)) }()
	child, err := children.get(ctx)
	if err != nil {
		return nil, err
	}
	began = time.Now() // the start of a child is nobody's time
	text, err := child.run(ctx, p, j, begun.short)
	if !child.isNew && (errors.Is(err, errMemory) || errors.Is(err, ErrProcess)) {
		if child, err = start(ctx); err != nil {
			return nil, err
		}
		text, err = child.run(ctx, p, j, begun.short)
	}
	children.put(child)
	return text, err
}

// Close ends the child processes that no other program uses. The program must not be running.
func (p *Program) Close() {
	if p != nil && p.joined.Swap(false) {
		children.leave()
	}
}
