package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// CheckEditedRow rejects a row of a custom table that is not an object, or would be another event: keys are the columns that identify one.
func CheckEditedRow(e *buffer.DeadEvent, text []byte, keys ...string) error {
	if e.Row == nil {
		return nil
	}
	var was, is map[string]json.RawMessage
	if err := json.Unmarshal(text, &is); err != nil || is == nil {
		return errors.New("the row is not a JSON object")
	}
	if err := json.Unmarshal(e.Row, &was); err != nil {
		return err
	}
	for column, value := range was {
		for _, key := range keys {
			if key != "" && strings.EqualFold(column, key) && !bytes.Equal(is[column], value) {
				return fmt.Errorf("the row's %s is %s; expected %s, because an event keeps its identity", column, is[column], value)
			}
		}
	}
	return nil
}
