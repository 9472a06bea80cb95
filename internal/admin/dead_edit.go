package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// CheckEditedRow rejects a row of a custom table that is not an object, or would be another event, or has a new name that is no column: a replay drops such a value.
// keys are the columns that identify an event.
func (d DeadLetters) CheckEditedRow(ctx context.Context, e *buffer.DeadEvent, text []byte, keys ...string) error {
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
				if len(is[column]) == 0 {
					return fmt.Errorf("the row has no %s; expected %s, because an event keeps its identity", column, value)
				}
				return fmt.Errorf("the row's %s is %s; expected %s, because an event keeps its identity", column, is[column], value)
			}
		}
	}
	columns, err := d.Store.RowColumns(ctx)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if _, had := was[name]; had || slices.Contains(columns, name) {
			continue
		}
		text := fmt.Sprintf("table %s has no column %s", d.Table, name)
		if near := buffer.Nearest(name, columns, max(1, len(name)/3)); near != "" {
			text += " (did you mean " + near + "?)"
		}
		return errors.New(text)
	}
	return nil
}
