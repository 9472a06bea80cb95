package natssink

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// fastBatch is a fast ingest batch on its way: events of one stream, numbered from 1,
// which the stream stores one by one in that order and acknowledges together. After
// the first that it does not take it takes no more. The protocol is ADR-50 of
// nats-architecture-and-design: what a message is to the batch stands in its reply
// subject, <prefix>.<id>.<flow>.fail.<seq>.<op>.$FI. What changes is guarded by the
// connection's mutex.
type fastBatch struct {
	no     uint64
	id     string
	prefix string // of the reply subjects, up to the number
	stream *stream
	flight *flight
	base   uint64 // the stream's highest sequence that was known when the batch began
	closed bool   // it was asked for the end; the publisher's

	events  []int         // what was published, by number-1: the indexes in the flight
	acked   int           // so many of them the server has dealt with
	granted int           // it says so every so many events; 0: not known yet
	spoiled int           // the first number that may not be stored; 0: none
	why     error         // what spoiled it
	over    bool          // nothing more is to be heard
	nothing bool          // it is over, and stored nothing
	missing int           // so many of what it accepted it did not store: they were known
	news    chan struct{} // has room for one: something was heard
}

// What a message is to its batch.
const (
	opStart  = '0'
	opAppend = '1'
	opCommit = '2' // the last event
	opClose  = '3' // commits what came before; is itself no event
	opPing   = '4' // asks for the last answer again
)

const (
	fastSuffix = ".$FI"
	// ackEvery is how seldom the server may tell how far it is; it does not go beyond
	// 500 by itself.
	ackEvery = 500
)

// The protocol's own errors; see the server's errors.json.
const (
	codeFastDisabled jetstream.ErrorCode = 10205
	codeFastPattern  jetstream.ErrorCode = 10206
	codeFastID       jetstream.ErrorCode = 10207
	codeFastUnknown  jetstream.ErrorCode = 10208
	codeFastTooMany  jetstream.ErrorCode = 10211
)

var errGap = errors.New("the stream did not get all of a fast batch")

// begin registers a fast batch; end it.
func (c *connection) begin(f *flight, to *stream, size int) *fastBatch {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	s := &fastBatch{
		no: c.last, id: strings.TrimPrefix(nats.NewInbox(), nats.InboxPrefix), stream: to, flight: f, base: to.last,
		events: make([]int, 0, size), news: make(chan struct{}, 1),
	}
	s.prefix = fmt.Sprintf("%s%s.%s.%d.fail.", c.inbox, strconv.FormatUint(s.no, 36), s.id, ackEvery)
	c.fast[s.no] = s
	return s
}

// end takes the batch off: what is heard of it later is ignored. Of what it leaves
// without a verdict may have been stored something, unless it says nothing.
func (c *connection) end(s *fastBatch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.fast, s.no)
	s.over = true
	if !s.nothing {
		for _, i := range s.events {
			s.flight.known(i)
		}
	}
	c.known.heed(s)
}

func (s *fastBatch) reply(seq int, op byte) string {
	text := make([]byte, 0, len(s.prefix)+16)
	text = strconv.AppendInt(append(text, s.prefix...), int64(seq), 10)
	return string(append(append(text, '.', op), fastSuffix...))
}

// fastAnswer is any answer there is to a message of a fast batch.
type fastAnswer struct {
	Type     string              `json:"type"` // ack, gap or err; "" for a PubAck
	Seq      uint64              `json:"seq"`  // in the batch; of a PubAck, in the stream
	Messages int                 `json:"msgs"`
	Expected int                 `json:"last_seq"` // of a gap: the number that was expected
	Error    *jetstream.APIError `json:"error"`
	Stream   string              `json:"stream"`
	Batch    string              `json:"batch"`
	Count    int                 `json:"count"`
}

// handleFastAnswer is handleAnswer for fast batches.
func (c *connection) handleFastAnswer(m *nats.Msg) {
	tokens := strings.Split(strings.TrimPrefix(m.Subject, c.inbox), ".") // no, id, flow, fail, seq, op, $FI
	if len(tokens) != 7 || len(tokens[5]) != 1 {
		return
	}
	no, err := strconv.ParseUint(tokens[0], 36, 64)
	if err != nil {
		return
	}
	seq, err := strconv.ParseUint(tokens[4], 10, 31)
	if err != nil {
		return
	}
	var answer fastAnswer
	switch {
	case len(m.Data) == 0 && m.Header.Get("Status") == "503":
		err = errNoStream
	case json.Unmarshal(m.Data, &answer) != nil:
		err = errStrangeAck
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.fast[no]
	if !ok || s.over {
		return // too late: nobody waits any more
	}
	if err != nil {
		s.spoil(int(seq), err)
		s.over = true
	} else {
		s.hear(&answer, int(seq), tokens[5][0])
	}
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// hear deals with an answer to the message of that number.
func (s *fastBatch) hear(a *fastAnswer, seq int, op byte) {
	switch {
	case a.Type == "ack":
		if s.spoiled == 0 {
			s.acked = max(s.acked, int(min(a.Seq, uint64(len(s.events)))))
			s.granted = max(a.Messages, 1)
		}
	case a.Type == "gap":
		s.spoil(a.Expected, errGap)
	case a.Type == "err" && a.Error != nil:
		s.spoil(int(min(a.Seq, uint64(seq))), a.Error)
	case a.Error != nil:
		s.spoil(seq, a.Error)
		s.refused(a.Error, op)
	case a.Stream == "" || a.Batch != s.id || a.Count < 0 || a.Count > len(s.events):
		s.spoil(1, errStrangeAck)
		s.over = true
	default:
		s.commit(a.Count, a.Seq)
	}
}

// spoil notes that this number may not be stored, nor any behind it.
func (s *fastBatch) spoil(seq int, why error) {
	if s.spoiled == 0 || seq < s.spoiled {
		s.spoiled, s.why = max(seq, 1), why
	}
}

// refused tells whether a refusal that is worded like that of any message is the last
// word: else the PubAck for what came before is still to come.
func (s *fastBatch) refused(err *jetstream.APIError, op byte) {
	switch op {
	case opStart:
		s.over, s.nothing = true, true
	case opClose, opPing:
		s.over = true
	}
	switch err.ErrorCode {
	case codeFastDisabled, codeFastPattern, codeFastID, codeFastUnknown, codeFastTooMany:
		s.over = true
	}
}

// commit deals with the PubAck: count events from the first are stored, seq is the
// last one's sequence in the stream, 0 if the stream knew them all.
func (s *fastBatch) commit(count int, seq uint64) {
	s.over = true
	if s.spoiled > 0 {
		count = min(count, s.spoiled-1)
	}
	if seq == 0 {
		// A replicated stream counts those too that it has in hand but that may yet be
		// lost. Each one's own PubAck tells.
		s.nothing = true
		return
	}
	for _, i := range s.events[:count] {
		s.flight.settle(i, nil)
	}
	switch {
	case seq <= s.base:
		s.stream.replaced = true // it is another stream of that name
	case uint64(count) > seq-s.base:
		s.missing = count - int(seq-s.base)
	}
	s.stream.last = max(s.stream.last, seq)
}
