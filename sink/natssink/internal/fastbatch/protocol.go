package fastbatch

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// operation is what a message is to its batch.
type operation byte

const (
	opStart  operation = '0'
	opAppend operation = '1'
	opCommit operation = '2' // the last message
	opClose  operation = '3' // commits the messages before it; is not stored itself
	opPing   operation = '4' // asks for the last answer again
)

const suffix = ".$FI"

// The error codes of the protocol; see the server's errors.json.
const (
	codeDisabled       jetstream.ErrorCode = 10205
	codeInvalidPattern jetstream.ErrorCode = 10206
	codeInvalidID      jetstream.ErrorCode = 10207
	codeUnknownID      jetstream.ErrorCode = 10208
	codeTooMany        jetstream.ErrorCode = 10211
)

// IsReply reports whether a message on that subject answers a message of a fast batch.
func IsReply(subject string) bool { return strings.HasSuffix(subject, suffix) }

func (b *Batch) reply(seq int, op operation) string {
	text := make([]byte, 0, len(b.prefix)+16)
	text = strconv.AppendInt(append(text, b.prefix...), int64(seq), 10)
	return string(append(append(text, '.', byte(op)), suffix...))
}

// answer is any answer to a message of a fast batch.
type answer struct {
	Type     string              `json:"type"` // ack, gap or err; "" for a PubAck
	Seq      uint64              `json:"seq"`  // in the batch; of a PubAck, in the stream
	Messages int                 `json:"msgs"`
	Expected int                 `json:"last_seq"` // of a gap: the sequence that was expected
	Error    *jetstream.APIError `json:"error"`
	Stream   string              `json:"stream"`
	Batch    string              `json:"batch"`
	Count    int                 `json:"count"`
}

// HandleReply records an answer. It never blocks.
func (c *Client) HandleReply(m *nats.Msg) {
	tokens := strings.Split(strings.TrimPrefix(m.Subject, c.inbox), ".") // id, ack every, fail, seq, op, $FI
	if len(tokens) != 6 || len(tokens[4]) != 1 {
		return
	}
	seq, err := strconv.ParseUint(tokens[3], 10, 31)
	if err != nil {
		return
	}
	var a answer
	switch {
	case len(m.Data) == 0 && m.Header.Get("Status") == "503":
		err = fmt.Errorf("%w: %w", ErrUnsupported, nats.ErrNoResponders)
	case json.Unmarshal(m.Data, &a) != nil:
		err = fmt.Errorf("%w: the answer is not JSON", ErrUnsupported)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok := c.batches[tokens[0]]
	if !ok || b.done {
		return // too late
	}
	if err != nil {
		b.fail(int(seq), err)
		b.done = true
	} else {
		b.record(&a, int(seq), operation(tokens[4][0]))
	}
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// record records the answer to the message with that sequence.
func (b *Batch) record(a *answer, seq int, op operation) {
	switch {
	case a.Type == "ack":
		if b.failedAt == 0 {
			b.acked = max(b.acked, int(min(a.Seq, uint64(len(b.sent)))))
			b.ackEvery = max(a.Messages, 1)
		}
	case a.Type == "gap":
		b.fail(a.Expected, fmt.Errorf("%w: the stream missed messages", ErrInterrupted))
	case a.Type == "err" && a.Error != nil:
		b.fail(int(min(a.Seq, uint64(seq))), classify(a.Error))
	case a.Error != nil:
		b.fail(seq, classify(a.Error))
		b.reject(a.Error, op)
	case a.Stream == "" || a.Batch != b.id || a.Count < 0 || a.Count > len(b.sent):
		b.fail(1, fmt.Errorf("%w: the answer is not this batch's PubAck", ErrUnsupported))
		b.done = true
	default:
		b.commit(a.Count, a.Seq)
	}
}

// fail notes that neither this sequence nor a higher one may be stored.
func (b *Batch) fail(seq int, err error) {
	if b.failedAt == 0 || seq < b.failedAt {
		b.failedAt, b.err = max(seq, 1), err
	}
}

// reject deals with an error that has the form of an ordinary publish's. Often the PubAck for the messages
// before it is still to come.
func (b *Batch) reject(err *jetstream.APIError, op operation) {
	b.done = op == opStart || op == opClose || op == opPing || isBatchError(err)
}

// commit deals with the PubAck: count messages from the first are stored. seq is the last one's sequence in
// the stream, 0 if the stream knew them all.
func (b *Batch) commit(count int, seq uint64) {
	b.done = true
	if seq == 0 {
		// A replicated stream also counts messages that it has only proposed and that may yet be lost. Only
		// each message's own PubAck proves that it is stored.
		return
	}
	if b.failedAt > 0 {
		count = min(count, b.failedAt-1)
	}
	b.stored = count
}

// isBatchError reports whether the error is the whole batch's, not one message's.
func isBatchError(err *jetstream.APIError) bool {
	switch err.ErrorCode {
	case codeDisabled, codeInvalidPattern, codeInvalidID, codeUnknownID, codeTooMany:
		return true
	}
	return false
}

func classify(err *jetstream.APIError) error {
	switch {
	case err.ErrorCode == codeDisabled:
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	case isBatchError(err):
		return fmt.Errorf("%w: %w", ErrInterrupted, err)
	}
	return err
}
