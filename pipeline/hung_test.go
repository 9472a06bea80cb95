package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/pipeline"
)

// deaf is a sink whose library knows no context: it waits for the answer of a server that gives none.
type deaf struct{ address string }

func (s deaf) Send(_ context.Context, b *buffer.Batch) error {
	conn, err := net.Dial("tcp", s.address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintln(conn, b.GroupID); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 2))
	return err
}

func (deaf) Check(context.Context) error { return nil }
func (deaf) Close() error                { return nil }

// muteServer takes connections and answers only when it is told to.
type muteServer struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func listen(t *testing.T) *muteServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	s := &muteServer{Listener: l}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			s.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		accepting.Wait()
		s.answer()
	})
	return s
}

// answer lets all Sends succeed.
func (s *muteServer) answer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		_, _ = conn.Write([]byte("ok"))
		_ = conn.Close()
	}
	s.conns = nil
}

func (s *muteServer) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// impatient gives Sends up soon.
func impatient(c *pipeline.Config) {
	c.Workers, c.SendTimeout, c.SendGrace = 2, 100*time.Millisecond, 100*time.Millisecond
}

// A sink library that never returns holds no batch: another process sends them all, while as many Sends hang as there are workers, and no
// more. What those Sends return at last settles nothing that another owner leases.
func TestHungSend(t *testing.T) {
	t.Parallel()
	d, to, mute := newDatabase(t), redisAt(t, testserver.SharedRedis(t)), listen(t)
	ids := d.insert(t, "orders", 1000)
	log := &lockedBuffer{}
	stuck := start(t, d.buffer(t, "stuck"), deaf{mute.Addr().String()}, func(c *pipeline.Config) {
		impatient(c)
		c.Log = logInto(t, log)
	})
	t.Cleanup(mute.answer) // before the stop
	testserver.Eventually(t, func() error {
		if n := mute.open(); n != 2 {
			return fmt.Errorf("%d Sends hang; want one a worker", n)
		}
		if states := d.states(t); strings.Contains(states, "leased") {
			return fmt.Errorf("the ledger holds %s; want none leased", states)
		}
		return nil
	})
	expectHung(t, stuck)
	testkit.Equal(t, "log lines", log.count("sink does not return"), 2)

	holds, goOn := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	hold := sync.OnceFunc(func() { close(holds) })
	next := start(t, d.buffer(t, "next"), at(to, func(n int64) {
		if n == 1 {
			hold()
			<-goOn
		}
	}, nothing), nil)
	t.Cleanup(release)
	testkit.Receive(t, "a send of the other process", holds)
	testserver.Eventually(t, func() error { // all but what the blocked Send has
		if n := queryValue[int](t, d, "SELECT count(*) FROM outbox_events"); n > 100 {
			return fmt.Errorf("%d events are left", n)
		}
		return nil
	})
	expectHung(t, stuck)
	mute.answer()
	testserver.Eventually(t, func() error { // the breaker is open until something is sent
		if err := stuck.Ready(); err != nil && hangs.MatchString(err.Error()) {
			return err
		}
		return nil
	})
	testkit.Equal(t, "log lines", log.count("sink returned at last"), 2)
	testkit.Equal(t, "what the other process leases", d.states(t), "1 leased")
	testkit.Equal(t, "events that it has", queryValue[int](t, d, "SELECT count(*) FROM outbox_events"), 100)

	release()
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
	testkit.Equal(t, "dead letters", queryValue[int](t, d, "SELECT count(*) FROM outbox_dead_letters"), 0)
	next.stop(t)
}

// hangs is what readiness says of calls that hang.
var hangs = regexp.MustCompile(`^stalled: .* batch [0-9a-f-]{36} for \d+s; calls that hang: [12]`)

func expectHung(t *testing.T, p *process) {
	t.Helper()
	if err := p.Ready(); err == nil || !hangs.MatchString(err.Error()) {
		t.Errorf("readiness is %v; want one that matches %v", err, hangs)
	}
}

// A process whose Sends hang still ends.
func TestHungSend_Stop(t *testing.T) {
	t.Parallel()
	d, mute := newDatabase(t), listen(t)
	d.insert(t, "orders", 100) // one batch: halt cuts off a claim as well
	p := start(t, d.buffer(t, "relay"), deaf{mute.Addr().String()}, func(c *pipeline.Config) { c.Workers = 1 })
	testserver.Eventually(t, func() error {
		if mute.open() == 0 {
			return errors.New("no Send yet")
		}
		return nil
	})
	p.cancel()
	p.halt()
	expectStopError(t, p, "was put back")
	if states := d.states(t); strings.Contains(states, "leased") {
		t.Errorf("the ledger holds %s; want none leased", states)
	}
}

// deafCheck is a sink whose library knows no context when it checks.
type deafCheck struct{ deaf }

func (s deafCheck) Check(ctx context.Context) error { return s.Send(ctx, &buffer.Batch{}) }

// A process whose first Check hangs still ends.
func TestHungCheck_Stop(t *testing.T) {
	t.Parallel()
	d, mute := newDatabase(t), listen(t)
	p := start(t, d.buffer(t, "relay"), deafCheck{deaf{mute.Addr().String()}}, impatient)
	testserver.Eventually(t, func() error {
		if mute.open() == 0 {
			return errors.New("no Check yet")
		}
		return nil
	})
	p.stop(t)
	if reason := expectClass(t, p, "stalled"); !strings.Contains(reason, "does not return") {
		t.Errorf("the reason is %q; want that the sink does not return", reason)
	}
}
