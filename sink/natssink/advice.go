package natssink

import (
	"context"
	"fmt"
)

// Advice says what would make the sink faster, one sentence each; it is for people
// who ask, and nothing is wrong without. Who may not ask for the streams gets none.
func (s *Sink) Advice(ctx context.Context) []string {
	if s.core {
		return nil
	}
	c, err := s.connection(ctx)
	if err != nil || !knowsFast(c.nc.ConnectedServerVersion()) {
		return nil
	}
	streams, err := c.listStreams(ctx, pattern(s.subject))
	if err != nil {
		return nil
	}
	var advice []string
	for _, info := range streams {
		if c := &info.Config; !c.AllowBatchPublish && !c.NoAck && !c.Sealed && c.Mirror == nil {
			advice = append(advice, fmt.Sprintf("stream %s could take fast batches (allow_batched), which cost relay and server less; "+
				"to switch them on: nats stream edit %s --allow-fast", c.Name, c.Name))
		}
	}
	return advice
}

// knowsFast tells whether a server of that version, such as "2.14.0", takes fast
// batches.
func knowsFast(version string) bool {
	var major, minor int
	n, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return err == nil && n == 2 && (major > 2 || major == 2 && minor >= 14)
}
