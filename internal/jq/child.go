package jq

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"syscall"
	"time"

	"github.com/itchyny/gojq"
)

// exitMemory is the exit status of a child that has found that it takes too much memory.
const exitMemory = 3

func init() {
	if os.Getenv(childVariable) != "" && len(os.Args) == 1 && os.Args[0] == childName {
		serve()
	}
}

// serve serves runs until the parent closes the pipe, which also happens when it is killed. Signals that end the
// relay do not end a child: the relay still runs programs for the batches in flight.
func serve() {
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	runtime.GOMAXPROCS(min(2, runtime.GOMAXPROCS(0))) // the program, and the garbage collector
	debug.SetTraceback("none")
	offerToKiller()
	// The collector tries harder before the limit is reached. Far from it, it leaves garbage lie.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(memoryLimit * 3 / 4)
	if !limitMemory(memoryFactor * memoryLimit) {
		go watchMemory()
	}
	out := bufio.NewWriterSize(os.Stdout, pipeBuffer)
	_, _ = out.WriteString(hello)
	_ = out.Flush()
	for run := range incoming() {
		answer, text := run.do()
		if writeFrame(out, byte(answer), text) != nil {
			break
		}
	}
	os.Exit(0)
}

// incoming receives runs. It keeps reading during a run, so that the child ends with its parent.
func incoming() <-chan *run {
	runs := make(chan *run)
	go func() {
		in := bufio.NewReaderSize(os.Stdin, pipeBuffer)
		for {
			shape, parts, err := readFrame(in, runParts, maxPart)
			if err != nil {
				os.Exit(0)
			}
			runs <- &run{Shape(shape), parts}
		}
	}()
	return runs
}

// watchMemory is for systems without a limit of memory.
func watchMemory() {
	sample := [1]metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	for range time.Tick(time.Millisecond) {
		if metrics.Read(sample[:]); sample[0].Value.Uint64() > memoryLimit {
			os.Exit(exitMemory)
		}
	}
}

// run is one run in the child.
type run struct {
	shape Shape
	parts [][]byte
}

var (
	errTooBig  = errors.New("the result is too large")
	errTooDeep = fmt.Errorf("the result is nested deeper than %d", maxDepth)
	errNone    = error(&kindError{"the program made no result; expected one", ErrResults})
	errSeveral = error(&kindError{"the program made more than one result; expected one (put [...] around the program to make an array)", ErrResults})
)

// maxError is how many bytes of an error the parent gets. It quotes fewer.
const maxError = 64 << 10

func (r *run) do() (kind, []byte) {
	text, err := r.recovered()
	if err == nil {
		return succeeded, text
	}
	message := []byte(err.Error())
	message = message[:min(len(message), maxError)]
	switch {
	case errors.Is(err, ErrResults):
		return badResult, message
	case errors.Is(err, ErrInput):
		return badInput, message
	}
	return failed, message
}

// recovered makes a panic of a step an error.
func (r *run) recovered() (text []byte, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			text, err = nil, fmt.Errorf("the program panicked: %v", reason)
		}
	}()
	code, secrets, err := program(string(r.parts[partProgram]), r.parts[partSecrets])
	if err != nil {
		return nil, err
	}
	input, err := decode(r.parts[partInput])
	if err != nil {
		return nil, &kindError{err.Error(), ErrInput}
	}
	bodyIsJSON := true
	if object, ok := input.(map[string]any); ok && r.shape == results {
		if object["body"], err = decode(r.parts[partBody]); err != nil {
			bodyIsJSON = false
			object["body"] = strings.ToValidUTF8(string(r.parts[partBody]), "\uFFFD")
		}
	}
	result, err := only(code.Run(input, secrets...))
	if err == nil {
		text, err = r.encode(result)
	}
	if err != nil && !bodyIsJSON {
		err = fmt.Errorf("%w (the body is not JSON)", err)
	}
	return text, err
}

// programs are compiled programs by text. A child serves the few programs of one configuration.
var programs = map[string]*gojq.Code{}

func program(text string, secretsJSON []byte) (code *gojq.Code, secrets []any, err error) {
	if len(secretsJSON) > 0 {
		values, err := decode(secretsJSON)
		if err != nil {
			return nil, nil, err
		}
		secrets = []any{values}
	}
	if code = programs[text]; code != nil {
		return code, secrets, nil
	}
	query, err := parse(text)
	if err != nil {
		return nil, nil, err
	}
	if code, err = compile(query, len(secrets) > 0); err != nil {
		return nil, nil, err
	}
	if len(programs) == 100 { // tests have more
		clear(programs)
	}
	programs[text] = code
	return code, secrets, nil
}

// only returns the only result.
func only(all gojq.Iter) (any, error) {
	result, ok := all.Next()
	if !ok {
		return nil, errNone
	}
	if err, failed := result.(error); failed {
		return nil, err
	}
	second, several := all.Next()
	if err, failed := second.(error); failed {
		return nil, err
	} else if several {
		return nil, errSeveral
	}
	return result, nil
}

// encode makes the text that the parent wants.
func (r *run) encode(result any) ([]byte, error) {
	most := maxResult
	if r.shape == results {
		most = maxResults
	}
	err := (&budget{most}).spend(result, 0)
	var text []byte
	if err == nil {
		text, err = r.shaped(result)
	}
	if errors.Is(err, errTooBig) || len(text) > most {
		return nil, fmt.Errorf("the result is larger than %d MiB", most>>20)
	}
	return text, err
}

func (r *run) shaped(result any) ([]byte, error) {
	text, isText := result.(string)
	switch {
	case isText && r.shape != results:
		return []byte(text), nil
	case r.shape == Form:
		return encodeForm(result)
	case r.shape == Lines:
		lines, ok := result.([]any)
		if !ok {
			lines = []any{result}
		}
		var text []byte
		for _, line := range lines {
			text = append(append(text, encode(line)...), '\n')
		}
		return text, nil
	}
	return encode(result), nil
}
