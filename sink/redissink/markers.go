package redissink

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// What is remembered of a batch, and by which scripts.
var (
	//go:embed markers.lua
	markersLua string
	//go:embed stream.lua
	streamLua string
	//go:embed asynq.lua
	asynqLua string
	//go:embed fence.lua
	fenceLua string

	streamSource = markersLua + streamLua
	asynqSource  = markersLua + asynqLua

	streamScript = redis.NewScript(streamSource)
	asynqScript  = redis.NewScript(asynqSource)
	fenceScript  = redis.NewScript(markersLua + fenceLua)
)

// proof is what a marker says when the events of an address are there; where another
// try may send them elsewhere, their names: markers.lua tells of both.
func (s *Sink) proof(b *buffer.Batch, g sink.Group) any {
	if !b.Projected || s.address.Fixed() {
		return s.sent
	}
	names := make([]byte, 0, 1+12*len(g.Indexes))
	names = append(names, ',')
	for _, i := range g.Indexes {
		e := &b.Events[i]
		names = e.AppendIdentity(names)
		if e.DeadLetter != nil { // another one than the event
			names = append(names, ":dead:"...)
			names = append(names, e.DeadLetter.GroupID.String()...)
		}
		names = append(names, ',')
	}
	return names
}

// markers is what the markers of an address begin with. The error says that nothing can
// be sent there.
func (s *Sink) markers(address string) (string, error) {
	if err := s.checkAddress(address); err != nil {
		return "", err
	}
	if s.cfg.Mode == Asynq {
		return asynqPrefix(address) + "relay:", nil
	}
	return markerPrefix(address)
}

// markerPrefix is what a stream's markers begin with. They have to share its hash
// slot.
func markerPrefix(stream string) (string, error) {
	open, end := strings.IndexByte(stream, '{'), -1
	if open >= 0 {
		end = strings.IndexByte(stream[open:], '}')
	}
	switch {
	case open < 0 && !strings.Contains(stream, "}"):
		return "{" + stream + "}:relay:", nil
	case open == 0 && end > 1 && end == len(stream)-1:
		return stream + ":relay::", nil // not those of the stream without the braces
	case end > 1:
		return stream + ":relay:", nil
	}
	return "", sink.Permanent(fmt.Errorf("the name of the stream, %q, has braces that are no hash tag such as {orders}", stream))
}
