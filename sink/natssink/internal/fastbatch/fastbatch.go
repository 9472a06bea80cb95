// Package fastbatch publishes messages to a JetStream stream as fast batches: the stream stores the messages
// one by one, in their order, and acknowledges them together. The protocol is ADR-50 of
// nats-architecture-and-design.
//
// The reply subject of a message says what the message is to its batch:
//
//	<inbox>.<batch id>.<ack every>.fail.<sequence>.<operation>.$FI
//
// The stream answers on that subject, with one of
//
//	an ack      how far it is, and how many messages it acknowledges at a time
//	a gap       messages before this one are missing
//	an error    this message was not stored
//	a PubAck    the batch is over; how many of its messages are stored
//
// After the first message that it does not store, the stream stores no other one of the batch. Only the
// PubAck proves that messages are stored, and only of messages before the first one that failed.
package fastbatch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// ackEvery asks the stream for an ack every so many messages. 500 is the server's maximum.
	ackEvery = 500
	// initialWindow is how many messages are unacknowledged at most before the stream has said how often it
	// acknowledges.
	initialWindow = 100
	// unackedAcks is how many acks may be missing afterwards; ADR-50 recommends two.
	unackedAcks = 2
	// pingAfter is how long the stream is silent before it is asked for its last answer.
	pingAfter = time.Second
)

var (
	// ErrUnsupported is a Result's error when the stream is gone, was replaced by another responder, or does
	// not take fast batches.
	ErrUnsupported = errors.New("the stream does not take fast batches")
	// ErrInterrupted is a Result's error when the stream lost the batch, missed messages or has too many
	// batches open. The messages are not at fault.
	ErrInterrupted = errors.New("the fast batch was interrupted")
)

// Client publishes fast batches over one connection. It is safe for concurrent use.
type Client struct {
	nc    *nats.Conn
	inbox string // with a dot at the end

	mu      sync.Mutex
	batches map[string]*Batch // by id
}

// NewClient returns a client that has the stream answer below inbox, which ends with a dot. The caller
// subscribes to it and passes each message for which IsReply reports true to HandleReply.
func NewClient(nc *nats.Conn, inbox string) *Client {
	return &Client{nc: nc, inbox: inbox, batches: map[string]*Batch{}}
}

// A PublishFunc publishes message i with that reply subject. It returns the message's subject, or "" if the
// message cannot be published and is left out. An error means that the connection is broken.
type PublishFunc func(i int, reply string) (subject string, err error)

// Batch is a fast batch that was begun; Wait ends it. One goroutine uses it.
type Batch struct {
	client  *Client
	id      string
	prefix  string // of the reply subjects, up to the sequence
	subject string // of the first message; control messages go there too
	closing bool   // opClose was published

	changed chan struct{} // has room for one: an answer has come

	// The rest is guarded by client.mu.
	sent     []int // the messages by sequence-1
	acked    int   // so many of them are acknowledged
	ackEvery int   // the stream acknowledges every so many; 0: not known yet
	failedAt int   // the first sequence that may not be stored; 0: none
	err      error // why it may not be
	done     bool  // no answer counts any more
	stored   int   // the PubAck proves so many of sent
}

// Result is what became of a batch's messages.
type Result struct {
	// Stored are the messages that the PubAck proves to be stored.
	Stored []int
	// Err is why not all messages are stored. It wraps ErrUnsupported, ErrInterrupted, or the
	// *jetstream.APIError of one message.
	Err error
}

// Publish begins a batch and publishes the messages, at the pace at which the stream acknowledges them. It
// stops when the batch has failed or ctx is done. The error is publish's. Call Wait in any case. ctx must end
// when the connection is closed.
func (c *Client) Publish(ctx context.Context, messages []int, publish PublishFunc) (*Batch, error) {
	id := strings.TrimPrefix(nats.NewInbox(), nats.InboxPrefix)
	b := &Batch{
		client: c, id: id, prefix: fmt.Sprintf("%s%s.%d.fail.", c.inbox, id, ackEvery),
		sent: make([]int, 0, len(messages)), changed: make(chan struct{}, 1),
	}
	c.mu.Lock()
	c.batches[id] = b
	c.mu.Unlock()
	committed := false
	for n, i := range messages {
		seq := b.assignSeq(ctx, i)
		if seq == 0 {
			break
		}
		op := opAppend
		switch {
		case n == len(messages)-1:
			op = opCommit
		case seq == 1:
			op = opStart
		}
		subject, err := publish(i, b.reply(seq, op))
		if err != nil {
			return b, err
		}
		if subject == "" {
			b.unassign()
			continue
		}
		if seq == 1 {
			b.subject = subject
		}
		committed = op == opCommit
	}
	if !committed {
		return b, b.close()
	}
	return b, nil
}

// Wait returns the batch's result when the batch is over or ctx is done. Answers that come later are ignored.
func (b *Batch) Wait(ctx context.Context) Result {
	failed := false
	b.waitUntil(ctx, func() bool {
		failed = b.failedAt > 0 || len(b.sent) == 0
		return failed
	})
	if failed && b.close() == nil {
		b.waitUntil(ctx, func() bool { return len(b.sent) == 0 })
	}
	b.client.mu.Lock()
	defer b.client.mu.Unlock()
	delete(b.client.batches, b.id)
	b.done = true
	return Result{Stored: b.sent[:b.stored], Err: b.err}
}

// assignSeq gives message i its sequence as soon as the window has room; 0: the batch takes no more messages.
func (b *Batch) assignSeq(ctx context.Context, i int) (seq int) {
	b.waitUntil(ctx, func() bool {
		window := initialWindow
		if b.ackEvery > 0 {
			window = unackedAcks * b.ackEvery
		}
		if b.failedAt > 0 || len(b.sent)-b.acked >= window {
			return b.failedAt > 0
		}
		b.sent = append(b.sent, i) // before it is published, as the answer may be quick
		seq = len(b.sent)
		return true
	})
	return seq
}

// unassign takes back the last sequence, of a message that was left out.
func (b *Batch) unassign() {
	b.client.mu.Lock()
	defer b.client.mu.Unlock()
	b.sent = b.sent[:len(b.sent)-1]
}

// close ends a batch before its last message. The stream answers with the PubAck, or that it does not know
// the batch.
func (b *Batch) close() error {
	if b.closing {
		return nil
	}
	b.closing = true
	return b.control(opClose)
}

// control publishes a message that is not stored.
func (b *Batch) control(op operation) error {
	b.client.mu.Lock()
	seq := len(b.sent)
	done := b.done || seq == 0
	if op == opClose {
		seq++
	}
	b.client.mu.Unlock()
	if done {
		return nil
	}
	return b.client.nc.PublishRequest(b.subject, b.reply(seq, op), nil)
}

// waitUntil returns when condition, which is called with the mutex held, reports true, when the batch is
// over, or when ctx is done. It pings a silent stream; if the batch has failed already, it gives up instead.
func (b *Batch) waitUntil(ctx context.Context, condition func() bool) {
	for {
		b.client.mu.Lock()
		done := b.done || condition()
		failed := b.failedAt > 0
		b.client.mu.Unlock()
		if done || ctx.Err() != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-b.changed:
		case <-time.After(pingAfter):
			if failed || b.control(opPing) != nil {
				return
			}
		}
	}
}
