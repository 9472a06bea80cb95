package redissink_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
)

// answers is a server of a few words. What would add events it hands to then, and
// hangs up when that returns.
func answers(t *testing.T, then func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serve(conn, then)
		}
	}()
	t.Cleanup(func() { must(t, listener.Close()); <-served })
	return listener.Addr().String()
}

func serve(conn net.Conn, then func(net.Conn)) {
	defer conn.Close()
	for read := bufio.NewReader(conn); ; {
		line, err := read.ReadString('\n')
		switch line = strings.ToUpper(strings.TrimSpace(line)); {
		case err != nil:
			return
		case line == "PING":
			_, err = conn.Write([]byte("+PONG\r\n"))
		case line == "AUTH":
			_, err = conn.Write([]byte("+OK\r\n"))
		case line == "HELLO":
			_, err = conn.Write([]byte("-ERR unknown command\r\n"))
		case line == "EVALSHA", line == "RPUSH", line == "PUBLISH":
			then(conn)
			return
		}
		if err != nil {
			return
		}
	}
}

// hang reads until the other side has gone.
func hang(conn net.Conn) {
	for some := make([]byte, 4096); ; {
		if _, err := conn.Read(some); err != nil {
			return
		}
	}
}

// soon is long, but far from what a driver waits without a deadline.
const soon = 10 * time.Second

// sendWithin sends to a server that never answers, and fails unless the deadline
// ends that.
func sendWithin(t *testing.T, cfg redissink.Config, deadline time.Duration) error {
	t.Helper()
	s := opened(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	began := time.Now()
	err := s.Send(ctx, newBatch("orders", "bills"))
	if took := time.Since(began); took > deadline+soon/4 {
		t.Errorf("it took %v, the deadline was %v", took, deadline)
	}
	return err
}

func TestCutOffAfterTheCommandsMayBeTheBatch(t *testing.T) {
	t.Parallel()
	var met atomic.Bool
	hanging, hangingUp := answers(t, func(conn net.Conn) { met.Store(true); hang(conn) }), answers(t, func(net.Conn) {})
	for _, mode := range []redissink.Mode{redissink.Stream, redissink.List, redissink.Publish} {
		met.Store(false)
		var unanswered error
		for deadline := 200 * time.Millisecond; !met.Load(); deadline *= 2 { // until it is enough to get there
			unanswered = sendWithin(t, redissink.Config{URL: "redis://:timeout@" + hanging, Mode: mode}, deadline)
		}
		for name, err := range map[string]error{
			"no answer in time": unanswered,
			"hung up":           sendWithin(t, redissink.Config{URL: "redis://" + hangingUp, Mode: mode}, soon),
		} {
			if !errors.Is(err, sink.ErrMaybePoison) {
				t.Errorf("%s, %s: got %v, want one that wraps sink.ErrSuspect", mode, name, err)
			}
			expectOutage(t, err, "")
			if contains(err, "timeout") { // the password
				t.Errorf("%s: a secret shows in %v", mode, err)
			}
		}
	}
}

func TestNoConnectionIsNotTheBatch(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and never says a word
	must(t, err)
	t.Cleanup(func() { must(t, silent.Close()) })
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, closed.Close())
	for _, url := range []string{
		"redis://" + silent.Addr().String(), "redis://:pw@" + silent.Addr().String(), "rediss://" + silent.Addr().String(),
		"redis+cluster://" + silent.Addr().String(), "redis+sentinel://" + silent.Addr().String() + "/main", "redis://" + closed.Addr().String(),
	} {
		err := sendWithin(t, redissink.Config{URL: url}, 300*time.Millisecond)
		expectOutage(t, err, "")
		if errors.Is(err, sink.ErrMaybePoison) {
			t.Errorf("%s: %v is blamed on the batch", url, err)
		}
	}
}

// Who was called off while it waited says nothing of the batch.
func TestCalledOffIsNotTheBatch(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	called, callOff := context.WithCancel(ctx)
	s := opened(t, redissink.Config{URL: "redis://" + answers(t, func(conn net.Conn) { callOff(); hang(conn) })})
	err := s.Send(called, newBatch("orders"))
	expectOutage(t, err, "")
	if errors.Is(err, sink.ErrMaybePoison) {
		t.Errorf("%v is blamed on the batch", err)
	}
}
