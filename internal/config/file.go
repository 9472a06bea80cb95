package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

const (
	// maxBytes is far beyond any real configuration; it stops -c /dev/zero.
	maxBytes = 256 << 10
	// readLimit is how long the other end of a pipe, as in `relay check <(...)`, may take.
	readLimit = 10 * time.Second
)

var (
	errTooLarge = errors.New("larger than 256 KiB")
	errTooSlow  = fmt.Errorf("no end after %v; expected a file, or a pipe that somebody writes to and closes", readLimit)
)

func readFile(path string) ([]byte, error) { return readWithin(path, readLimit) }

// readWithin reads a file or a pipe. A pipe without a writer blocks already when it is opened, which nothing can interrupt:
// after the limit, a goroutine is left behind until somebody writes.
func readWithin(path string, limit time.Duration) ([]byte, error) {
	type content struct {
		text []byte
		err  error
	}
	read := make(chan content, 1)
	go func() {
		text, err := readAll(path)
		read <- content{text, err}
	}()
	select {
	case c := <-read:
		return c.text, c.err
	case <-time.After(limit):
		return nil, &os.PathError{Op: "read", Path: path, Err: errTooSlow}
	}
}

func readAll(path string) (text []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	text, err = io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = &os.PathError{Op: "read", Path: path, Err: errTooLarge}
	}
	return text, err
}
