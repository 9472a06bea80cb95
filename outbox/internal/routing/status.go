package routing

import (
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// PlaceStatus adds the status of a sink to those of the others, under its name in the configuration: a relay that has the former name of a
// renamed sink shows it by that. A dropped sink that is not configured is shown if anything of it is left. names are all that the sink has or had, the present one first. at are the places by name; it begins with those
// of the configured sinks.
func PlaceStatus(all []buffer.SinkStatus, at map[string]int, one buffer.SinkStatus, names []string) []buffer.SinkStatus {
	i := len(all)
	n := slices.IndexFunc(names, func(name string) bool { _, known := at[name]; return known })
	switch {
	case n >= 0:
		one.Name, i = names[n], at[names[n]]
		all[i] = one
	case one.Dropped && one.Leased+one.Waiting+one.Delivered+one.Dead == 0:
		return all
	default:
		all = append(all, one)
	}
	for _, name := range names {
		if _, known := at[name]; !known {
			at[name] = i
		}
	}
	return all
}
