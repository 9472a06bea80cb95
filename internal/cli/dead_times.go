package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
)

// listByTime prints how many dead letters died in each hour or day. If a pipeline cannot be read, it prints the error and continues with the others.
func (a *app) listByTime(ctx context.Context, all []deadLetters, f *deadFlags) error {
	ctx, cancel := context.WithTimeout(ctx, newestTimeout)
	defer cancel()
	sources := make([]admin.TimeSource, len(all))
	for i := range all {
		sources[i] = admin.TimeSource{Pipeline: all[i].pipeline, Store: all[i].Store, Filter: all[i].filter}
	}
	groups, more := admin.GroupByTime(ctx, f.limit, func(pipeline string, err error) { a.fail(fmt.Errorf("%s: %w", pipeline, err)) }, sources...)
	if f.asJSON {
		if groups == nil {
			groups = []admin.TimeGroup{}
		}
		if err := a.printJSON(groups); err != nil {
			return err
		}
	} else if len(groups) == 0 && a.failed { // no table without a pipeline
		return nil
	} else if _, err := io.WriteString(a.stdout, columns(timeRows(groups), 0)); err != nil {
		return err
	}
	if more {
		a.printErr("others died earlier; use --limit 0 to show all")
	}
	return nil
}

func timeRows(groups []admin.TimeGroup) [][]string {
	unit, format := "HOUR (UTC)", "2006-01-02 15:00"
	if len(groups) > 0 && groups[0].End.Sub(groups[0].Begin) > time.Hour {
		unit, format = "DAY (UTC)", time.DateOnly
	}
	rows := [][]string{{"COUNT", "PIPELINE", unit, "FIRST", "LAST"}}
	for i := range groups {
		g := &groups[i]
		rows = append(rows, []string{admin.Count(g.Count), g.Pipeline, g.Begin.Format(format), g.First.Format(time.TimeOnly), g.Last.Format(time.TimeOnly)})
	}
	return rows
}
