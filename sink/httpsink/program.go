package httpsink

import (
	"context"
	"errors"
	"fmt"
	"runtime/metrics"
	"time"

	"github.com/itchyny/gojq"
)

// program is a jq program that is ready to run, by many at once. It sees its input and
// the time of day; no environment, no file and no module.
type program struct {
	code *gojq.Code
	// isNarrow: it does not look at the events beside an answer.
	isNarrow bool
}

// compile returns nil for no program. Its error is a *ProgramError.
func compile(text string, check func(string) error) (*program, error) {
	if text == "" {
		return nil, nil
	}
	if err := check(text); err != nil {
		return nil, err
	}
	query, err := gojq.Parse(text)
	if err != nil {
		return nil, err
	}
	code, err := gojq.Compile(query)
	if err != nil {
		return nil, err
	}
	return &program{code, isNarrow(query)}, nil
}

var (
	errNone    = errors.New("it made no result, one was expected")
	errSeveral = errors.New("it made more than one result, one was expected: [...] around what makes them gathers them in an array")
)

// run returns the program's only result, which may share parts with the input.
func (p *program) run(ctx context.Context, input any) (any, error) {
	held := newLeash(ctx)
	results := p.code.RunWithContext(held, input)
	v, ok := results.Next()
	if !ok {
		return nil, errNone
	}
	if err, failed := v.(error); failed {
		return nil, held.why(err)
	}
	second, several := results.Next()
	if err, failed := second.(error); failed {
		return nil, held.why(err)
	} else if several {
		return nil, errSeveral
	}
	return v, nil
}

// Limits of one run. Either is far beyond what a program for a batch needs; without
// them one that goes round and round would take the process with it.
const (
	mostTime   = 5 * time.Second
	mostMemory = 512 << 20 // bytes that the process may grow by meanwhile
)

var (
	errTime   = fmt.Errorf("it did not end within %v", mostTime)
	errMemory = fmt.Errorf("it took more than %d MiB of memory", mostMemory>>20)
)

// leash stops a program. gojq asks its context before each step; the clock and the
// memory are looked at now and then.
type leash struct {
	context.Context //nolint:containedctx // it is one
	steps           int
	until           time.Time
	heap            [1]metrics.Sample
	most            uint64
	over            chan struct{}
	err             error
}

// stepsALook is how many steps a program takes between two looks: some milliseconds.
const stepsALook = 1 << 16

func newLeash(ctx context.Context) *leash {
	l := &leash{Context: ctx, until: time.Now().Add(mostTime), over: make(chan struct{})}
	l.heap[0].Name = "/memory/classes/heap/objects:bytes"
	metrics.Read(l.heap[:])
	l.most = l.heap[0].Value.Uint64() + mostMemory
	return l
}

// Done implements context.Context.
func (l *leash) Done() <-chan struct{} {
	if l.steps++; l.steps%stepsALook == 0 && l.err == nil {
		l.look()
	}
	return l.over
}

func (l *leash) look() {
	metrics.Read(l.heap[:])
	switch {
	case l.Context.Err() != nil:
		l.err = l.Context.Err()
	case time.Now().After(l.until):
		l.err = errTime
	case l.heap[0].Value.Uint64() > l.most:
		l.err = errMemory
	default:
		return
	}
	close(l.over)
}

// Err implements context.Context.
func (l *leash) Err() error { return l.err }

// why is a program's error: the leash's, or its own.
func (l *leash) why(err error) error {
	if l.err != nil {
		return l.err
	}
	return err
}
