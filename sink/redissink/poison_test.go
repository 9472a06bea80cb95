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

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
)

// fakeServer is a server that answers a few commands. It calls then for a command that
// would add events, and closes the connection afterwards.
func fakeServer(t *testing.T, then func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
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
	t.Cleanup(func() { testkit.NoError(t, listener.Close()); <-served })
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

// hang reads until the client closes the connection.
func hang(conn net.Conn) {
	for some := make([]byte, 4096); ; {
		if _, err := conn.Read(some); err != nil {
			return
		}
	}
}

// promptTimeout is much less than go-redis waits without a deadline.
const promptTimeout = 10 * time.Second

// sendWithin sends to a server that never answers. It fails the test if Send takes much
// longer than the deadline.
func sendWithin(t *testing.T, cfg redissink.Config, deadline time.Duration) error {
	t.Helper()
	s := opened(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	began := time.Now()
	err := s.Send(ctx, newBatch("orders", "bills"))
	if took := time.Since(began); took > deadline+promptTimeout/4 {
		t.Errorf("took %v; the deadline was %v", took, deadline)
	}
	return err
}

func TestMaybePoison_ConnectionLostAfterWrite(t *testing.T) {
	t.Parallel()
	var reached atomic.Bool
	hanging, hangingUp := fakeServer(t, func(conn net.Conn) { reached.Store(true); hang(conn) }), fakeServer(t, func(net.Conn) {})
	for _, mode := range []redissink.Mode{redissink.Stream, redissink.List, redissink.Publish} {
		reached.Store(false)
		var unanswered error
		for deadline := 200 * time.Millisecond; !reached.Load(); deadline *= 2 { // until the command arrives
			unanswered = sendWithin(t, redissink.Config{URL: "redis://:timeout@" + hanging, Mode: mode}, deadline)
		}
		for name, err := range map[string]error{
			"no answer in time": unanswered,
			"closed":            sendWithin(t, redissink.Config{URL: "redis://" + hangingUp, Mode: mode}, promptTimeout),
		} {
			if !errors.Is(err, sink.ErrMaybePoison) {
				t.Errorf("%s, %s: got %v, want one that wraps sink.ErrMaybePoison", mode, name, err)
			}
			expectOutage(t, err, "")
			if contains(err, "timeout") { // the password
				t.Errorf("%s: the error contains a secret: %v", mode, err)
			}
		}
	}
}

func TestMaybePoison_NotWithoutConnection(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and never answers
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, silent.Close()) })
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	testkit.NoError(t, closed.Close())
	for _, url := range []string{
		"redis://" + silent.Addr().String(), "redis://:pw@" + silent.Addr().String(), "rediss://" + silent.Addr().String(),
		"redis+cluster://" + silent.Addr().String(), "redis+sentinel://" + silent.Addr().String() + "/main", "redis://" + closed.Addr().String(),
	} {
		err := sendWithin(t, redissink.Config{URL: url}, 100*time.Millisecond)
		expectOutage(t, err, "")
		if errors.Is(err, sink.ErrMaybePoison) {
			t.Errorf("%s: %v wraps sink.ErrMaybePoison", url, err)
		}
	}
}

// A cancelled Send says nothing about the batch.
func TestMaybePoison_NotWhenCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	cancelled, cancelSend := context.WithCancel(ctx)
	s := opened(t, redissink.Config{URL: "redis://" + fakeServer(t, func(conn net.Conn) { cancelSend(); hang(conn) })})
	err := s.Send(cancelled, newBatch("orders"))
	expectOutage(t, err, "")
	if errors.Is(err, sink.ErrMaybePoison) {
		t.Errorf("%v wraps sink.ErrMaybePoison", err)
	}
}
