package config

import (
	"maps"
	"slices"

	"github.com/outboxrelay/relay/outbox"
)

// presets are tables whose shape is known: how events are found in one of that name.
var presets = map[string]func(driver, table string) outbox.Own{
	"debezium": func(_, table string) outbox.Own {
		return outbox.Own{ID: "id", Project: `
SELECT e.id, 'outbox.event.' || e.aggregatetype AS topic, e.aggregateid AS key, e.payload
FROM ` + table + ` e WHERE e.group_id = $1`}
	},
}

func presetNames() []string { return slices.Sorted(maps.Keys(presets)) }
