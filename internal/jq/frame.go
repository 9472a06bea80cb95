package jq

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// Shape is what a child makes of the program's result.
type Shape byte

// The shapes. A string is always sent as it is.
const (
	JSON  Shape = iota
	Lines       // an array becomes one line an element
	Form        // an object becomes form fields; see encodeForm

	// results is the JSON of a result, of an input that gets .body.
	results
)

// kind is what a child says about a run.
type kind byte

const (
	succeeded kind = iota
	failed         // the program failed, or its result cannot be sent
	badResult      // no result, or several: ErrResults
	badInput       // the input is not JSON: ErrInput
)

// The parts of the frame of a run. The answer has one part, the result or the error.
const (
	partProgram = iota
	partSecrets
	partInput
	partBody
	runParts
)

// A frame is a tag, the length of each part, and the parts.

func writeFrame(w *bufio.Writer, tag byte, parts ...[]byte) error {
	head := []byte{tag}
	for _, part := range parts {
		if len(part) > maxPart {
			return fmt.Errorf("the input has %d bytes; expected at most %d", len(part), maxPart)
		}
		head = binary.BigEndian.AppendUint32(head, uint32(len(part))) //nolint:gosec // at most maxPart
	}
	_, err := w.Write(head)
	for _, part := range parts {
		if err == nil {
			_, err = w.Write(part)
		}
	}
	if err != nil {
		return err
	}
	return w.Flush()
}

const maxPart = 1 << 30

// readFrame reads n parts of at most most bytes each.
func readFrame(r io.Reader, n, most int) (tag byte, parts [][]byte, err error) {
	head := make([]byte, 1+4*n)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	parts = make([][]byte, n)
	for i := range parts {
		length := int(binary.BigEndian.Uint32(head[1+4*i:]))
		if length > most {
			return 0, nil, fmt.Errorf("a part of %d bytes; expected at most %d", length, most)
		}
		parts[i] = make([]byte, length)
	}
	for _, part := range parts {
		if _, err := io.ReadFull(r, part); err != nil {
			return 0, nil, err
		}
	}
	return head[0], parts, nil
}
