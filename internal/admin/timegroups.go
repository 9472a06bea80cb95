package admin

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// TimeGroup are dead letters of a pipeline that died in the same hour or day, in UTC.
type TimeGroup struct {
	Pipeline string    `json:"pipeline"`
	Begin    time.Time `json:"begin"`
	// End is the begin of the hour or day after.
	End   time.Time `json:"end"`
	Count int64     `json:"count"`
	// First and Last are when the first and the last of them died.
	First time.Time `json:"first_died_at"`
	Last  time.Time `json:"last_died_at"`
}

// TimeSource are the dead letters of a pipeline that match a filter.
type TimeSource struct {
	Pipeline string
	Store    DeadLetterStore
	Filter   buffer.DeadFilter
}

// GroupByTime counts dead letters by hour, or by day if they died in more than so many hours, the latest first; most 0: by hour, all of them. more is whether earlier ones are
// left out. failed is called for each pipeline that cannot be read.
func GroupByTime(ctx context.Context, most int, failed func(pipeline string, err error), all ...TimeSource) (groups []TimeGroup, more bool) {
	if most == 0 {
		most = math.MaxInt32
	}
	readable := slices.Clone(all)
	for _, period := range []time.Duration{time.Hour, 24 * time.Hour} {
		groups = nil
		readable = slices.DeleteFunc(readable, func(of TimeSource) bool {
			periods, err := of.Store.CountDeadByTime(ctx, of.Filter, period, most+1)
			if err != nil {
				failed(of.Pipeline, err)
			}
			for _, p := range periods {
				groups = append(groups, TimeGroup{of.Pipeline, p.Begin, p.Begin.Add(period), p.Count, p.First, p.Last})
			}
			return err != nil
		})
		if len(groups) <= most {
			break
		}
	}
	slices.SortStableFunc(groups, func(a, b TimeGroup) int { return cmp.Or(b.Begin.Compare(a.Begin), cmp.Compare(b.Count, a.Count)) })
	return groups[:min(len(groups), most)], len(groups) > most
}

// ParseDied reads one end of the time in which events died: a duration before now, or a time.
func ParseDied(text string) (ago time.Duration, at time.Time, err error) {
	if text == "" {
		return 0, time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago > 0 { // a filter ignores 0
		return ago, time.Time{}, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil && at.After(time.Unix(0, 0)) && at.Year() < 10000 {
		return 0, at.UTC(), nil
	}
	return 0, time.Time{}, fmt.Errorf("%q is no duration or time; expected something like 24h or 2026-01-02T15:00:00Z", text)
}

// SetDied sets both ends; see [ParseDied].
func SetDied(f *buffer.DeadFilter, olderThan, newerThan string) (err error) {
	if f.OlderThan, f.Before, err = ParseDied(olderThan); err != nil {
		return fmt.Errorf("older_than: %w", err)
	}
	if f.NewerThan, f.From, err = ParseDied(newerThan); err != nil {
		return fmt.Errorf("newer_than: %w", err)
	}
	return nil
}
