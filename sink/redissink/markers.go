package redissink

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// The scripts that read and write markers; markers.lua says what these are.
var (
	//go:embed markers.lua
	markersLua string
	//go:embed stream.lua
	streamLua string
	//go:embed asynq.lua
	asynqLua string
	//go:embed fence.lua
	fenceLua string

	streamScript = newScript(streamLua)
	asynqScript  = newScript(asynqLua)
	fenceScript  = newScript(fenceLua)
)

type script struct {
	*redis.Script
	source string
}

func newScript(text string) *script {
	source := markersLua + text
	return &script{redis.NewScript(source), source}
}

// markerValue is the value of the marker of events that were sent: "sent TEMPLATE", or the events' names if
// another attempt may send them to other addresses. See markers.lua.
func (s *Sink) markerValue(b *buffer.Batch, g sink.Group) any {
	if !b.Projected || s.address.Fixed() {
		return s.sent
	}
	names := make([]byte, 0, 1+12*len(g.Indexes))
	names = append(names, ',')
	for _, i := range g.Indexes {
		names = sink.AppendIdentity(names, b, i)
		names = append(names, ',')
	}
	return names
}

// markerPrefix is the prefix of the markers of an address, "" in a mode without markers. The error, which wraps
// sink.ErrPermanent, means that no event can be sent to the address.
func (s *Sink) markerPrefix(address string) (string, error) {
	switch {
	case address == "":
		return "", sink.Permanent(fmt.Errorf("the name of the %s is empty", s.cfg.Mode.addressKind()))
	case s.cfg.Mode == Asynq:
		return asynqPrefix(address) + "relay:", checkAsynqQueue(address)
	case s.cfg.Mode == Stream:
		return streamMarkerPrefix(address)
	}
	return "", nil
}

// streamMarkerPrefix is the prefix of a stream's markers, which must be in its hash slot.
func streamMarkerPrefix(stream string) (string, error) {
	open, end := strings.IndexByte(stream, '{'), -1
	if open >= 0 {
		end = strings.IndexByte(stream[open:], '}')
	}
	switch {
	case open < 0 && !strings.Contains(stream, "}"):
		return "{" + stream + "}:relay:", nil
	case open == 0 && end > 1 && end == len(stream)-1:
		return stream + ":relay::", nil // differs from that of the stream without braces
	case end > 1:
		return stream + ":relay:", nil
	}
	return "", sink.Permanent(fmt.Errorf("the name of the stream is %q; expected no braces, or a hash tag such as {orders}", stream))
}

// Fence implements sink.Fencer with the markers of the batch's streams or asynq queues. The other modes have
// no markers: Fence reports that nothing was delivered.
func (s *Sink) Fence(ctx context.Context, b *buffer.Batch) (delivered bool, err error) {
	if !s.cfg.Mode.hasMarkers() {
		return false, nil
	}
	groups, rejected := sink.GroupByAddress(b, s.address.Address)
	delivered = len(rejected) == 0
	calls := make([]*call, 0, len(groups))
	for _, g := range groups {
		marker, err := s.markerPrefix(g.Address)
		if err != nil { // no event can be sent there
			delivered = false
			continue
		}
		key := marker + b.GroupID.String()
		args := append(make([]any, 0, 6+len(b.Origins)), "EVALSHA", fenceScript.Hash(), 1+len(b.Origins), key)
		for _, origin := range b.Origins {
			args = append(args, marker+origin.String())
		}
		args = append(args, s.cfg.DedupeWindow.Milliseconds(), s.markerValue(b, g))
		calls = append(calls, &call{
			address: g.Address, key: key, indexes: g.Indexes, script: fenceScript, cmd: redis.NewCmd(ctx, args...),
		})
	}
	s.run(ctx, calls)
	for _, c := range calls {
		if c.err != nil {
			err := fmt.Errorf("redis %s %q: fencing a group_id: %w", s.cfg.Mode, c.address, detach(c.err))
			return false, s.secrets.redact(sink.Unavailable(err))
		}
		delivered = delivered && c.answer == "known"
	}
	return delivered, nil
}
