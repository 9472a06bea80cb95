package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// payloadSample is how many of the next events are examined for payloads that were encoded twice.
const payloadSample = 20

// diagnosePayloads warns of payloads that the application encoded as JSON twice. It returns nothing if the next events
// cannot be read: the buffer's own findings say why.
func diagnosePayloads(ctx context.Context, from buffer.Diagnoser) []buffer.Finding {
	batch, err := from.Peek(ctx, payloadSample)
	if err != nil || batch == nil || batch.ProjectErr != nil {
		return nil
	}
	twice := 0
	for i := range batch.Events {
		if encodedTwice(batch.Events[i].Payload) {
			twice++
		}
	}
	if twice == 0 {
		return nil
	}
	return []buffer.Finding{{
		Level: buffer.LevelWarning, Subject: "payloads",
		Text: fmt.Sprintf("%d of the next %d payloads are JSON strings that contain JSON: the application encoded them twice, and consumers receive a string, not an object",
			twice, len(batch.Events)),
		Fix: "give the library an object, or the database the encoded text, but not both: docs/enqueue.md, \"Payloads that are encoded twice\"",
	}}
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
