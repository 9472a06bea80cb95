package diagnosis

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// sinkFindings reports whether a sink accepts events, and what may lose them there.
func sinkFindings(ctx context.Context, key string, c *config.Sink, s sink.Sink) []buffer.Finding {
	where := fmt.Sprintf("%s (%s)", c.URL, c.AddressText())
	if err := s.Check(ctx); err != nil {
		fix := "correct " + key + " in the configuration"
		dns, unknownHost := errors.AsType[*net.DNSError](err)
		switch {
		case unknownHost && dns.IsNotFound:
			fix += ": the host is not known here"
		case c.Driver == "file" && errors.Is(err, fs.ErrNotExist):
			fix = "create the folder " + filepath.Dir(c.File.Path) + ", or correct " + key + " in the configuration; events wait until then"
		case errors.Is(err, sink.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded):
			fix = "start it, or correct " + key
			if c.Driver != "http" { // an API has no disk that the operator could clear
				fix = "start it, free space on it, or correct " + key
			}
			if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && c.Driver != "http" {
				fix = "start it, restart it if it hangs, or correct " + key
			}
			fix += " in the configuration; events wait until then"
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%s did not respond within %v: %w", where, Timeout, err)
		}
		return []buffer.Finding{{Level: buffer.LevelError, Subject: key, Text: err.Error(), Fix: fix}}
	}
	findings := []buffer.Finding{{Subject: key, Text: where + " is reachable"}}
	if obstructed, ok := s.(sink.Obstructed); ok {
		for _, text := range obstructed.Obstacles(ctx) {
			findings = append(findings, buffer.Finding{Level: buffer.LevelError, Subject: key, Text: text})
		}
	}
	if warner, ok := s.(sink.Warner); ok {
		for _, text := range warner.Warnings(ctx) {
			findings = append(findings, buffer.Finding{Level: buffer.LevelWarning, Subject: key, Text: text})
		}
	}
	if informer, ok := s.(sink.Informer); ok {
		for _, text := range informer.Notes(ctx) {
			findings = append(findings, buffer.Finding{Subject: key, Text: text})
		}
	}
	return findings
}
