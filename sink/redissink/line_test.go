package redissink_test

import (
	"net"
	"sync"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
)

// line is a TCP line to a server. While it is cut, it swallows what both sides send, and closes
// nothing: neither side notices.
type line struct {
	addr string

	mu    sync.Mutex
	isCut bool
	conns map[net.Conn]bool
}

// newLine opens a line to the address, until the test ends.
func newLine(t testing.TB, to string) *line {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	l := &line{addr: listener.Addr().String(), conns: map[net.Conn]bool{}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return // closed
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				l.close(near)
				continue
			}
			l.add(near, far)
			running.Go(func() { l.copy(near, far) })
			running.Go(func() { l.copy(far, near) })
		}
	})
	t.Cleanup(func() {
		testkit.NoError(t, listener.Close())
		l.closeAll()
		running.Wait()
		l.closeAll() // what was accepted meanwhile
	})
	return l
}

func (l *line) add(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		l.conns[c] = true
	}
}

func (l *line) close(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
	_ = c.Close() // the other side may have closed it
}

func (l *line) closeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		_ = c.Close()
	}
	clear(l.conns)
}

func (l *line) copy(to, from net.Conn) {
	defer l.close(to)
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if l.swallows() {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (l *line) swallows() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isCut
}

// cut swallows everything from now on.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = true
}
