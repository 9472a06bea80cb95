package natssink

import (
	"context"
	"fmt"
)

// Recommendations returns what would make the sink faster, one sentence each. They are
// for people who ask, because nothing is wrong without. A user who may not list the
// streams gets none.
func (s *Sink) Recommendations(ctx context.Context) []string {
	if s.core {
		return nil
	}
	c, err := s.connection(ctx)
	if err != nil || !supportsFastBatches(c.nc.ConnectedServerVersion()) {
		return nil
	}
	streams, err := c.listStreams(ctx, s.subject)
	if err != nil {
		return nil
	}
	var all []string
	for _, info := range streams {
		if c := &info.Config; !c.AllowBatchPublish && !c.NoAck && !c.Sealed && c.Mirror == nil {
			all = append(all, fmt.Sprintf("stream %s does not take fast batches (allow_batched), which cost relay and server less; "+
				"to allow them, run: nats stream edit %s --allow-fast", c.Name, c.Name))
		}
	}
	return all
}

// supportsFastBatches reports whether a server of that version, such as "2.14.0", has
// fast batches.
func supportsFastBatches(version string) bool {
	var major, minor int
	n, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return err == nil && n == 2 && (major > 2 || major == 2 && minor >= 14)
}
