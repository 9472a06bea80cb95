package diagnosis

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/preview"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// payloadSample is how many of the next events are examined for payloads that were encoded twice.
const payloadSample = 20

// events warns of payloads that the application encoded as JSON twice, and of headers that a sink does not send. It returns nothing
// if the next events cannot be read: the buffer's own findings say why.
func events(ctx context.Context, opened *config.Runtime) (findings []buffer.Finding) {
	batch, err := opened.Buffer.Peek(ctx, payloadSample)
	if err != nil || batch == nil || batch.ProjectErr != nil {
		return nil
	}
	for _, s := range opened.Sinks {
		if s.Config.Source.Custom.Is() { // the configuration says that there are headers
			continue
		}
		if n := len(preview.UnsentHeaders(s.Config, batch.Events)); n > 0 {
			findings = append(findings, buffer.Finding{
				Level: buffer.LevelWarning, Subject: strings.TrimSpace("sink " + s.Config.SinkName),
				Text: fmt.Sprintf("its request program sends nothing of the headers, which %d of the next %d events have; a delivered event is deleted", n, len(batch.Events)),
				Fix:  config.AddHeaders,
			})
		}
	}
	twice := 0
	for i := range batch.Events {
		if encodedTwice(batch.Events[i].Payload) {
			twice++
		}
	}
	if twice == 0 {
		return findings
	}
	return append(findings, buffer.Finding{
		Level: buffer.LevelWarning, Subject: "payloads",
		Text: fmt.Sprintf("%d of the next %d payloads are JSON strings that contain JSON: the application encoded them twice, and consumers receive a string, not an object",
			twice, len(batch.Events)),
		Fix: "give the library an object, or the database the encoded text, but not both: docs/enqueue.md, \"Payloads that are encoded twice\"",
	})
}

// encodedTwice reports whether a payload is a JSON string whose text is a JSON object or array.
func encodedTwice(payload []byte) bool {
	payload = bytes.TrimSpace(payload)
	var text string
	if len(payload) == 0 || payload[0] != '"' || json.Unmarshal(payload, &text) != nil {
		return false
	}
	inner := bytes.TrimSpace([]byte(text))
	return len(inner) > 0 && (inner[0] == '{' || inner[0] == '[') && json.Valid(inner)
}
