//go:build unix

package chaos

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// history writes what is known about some events: when they arrived and in which
// batch, their rows, and the log lines about these batches.
func (r *run) history(ctx context.Context, conn *pgx.Conn, a *account, ids []int64) string {
	var out strings.Builder
	wanted, groups := map[int64]bool{}, []string{}
	for _, id := range ids {
		wanted[id] = true
	}
	arrivals, err := a.history(wanted)
	if err != nil {
		fmt.Fprintf(&out, "arrivals: %v\n", err)
	}
	for len(arrivals) > 0 {
		v, together := arrivals[0], []int64{}
		for len(arrivals) > 0 && arrivals[0].GroupID == v.GroupID && arrivals[0].At == v.At {
			together, arrivals = append(together, arrivals[0].ID), arrivals[1:]
		}
		fmt.Fprintf(&out, "at %s in batch %s arrived %d\n", v.time().Format("15:04:05.000"), v.GroupID, together)
		groups = append(groups, v.GroupID.String())
	}
	out.WriteString(rows(ctx, conn, `SELECT event_id, group_id, attempts, error, died_at FROM outbox_dead_letters
		WHERE pipeline = $1 AND event_id = ANY ($2)`, a.pipeline, ids))
	out.WriteString(rows(ctx, conn, `SELECT id, topic, group_id, created_at FROM `+a.table+` WHERE id = ANY ($1)`, ids))
	out.WriteString(rows(ctx, conn, `SELECT * FROM outbox_batches WHERE EXISTS (SELECT FROM unnest($1::bigint[]) AS id WHERE id BETWEEN first_id AND last_id)
		LIMIT 20`, ids))
	for _, p := range r.relays {
		mentions(&out, p, a.pipeline, groups, ids)
	}
	return out.String()
}

// mentions writes the first lines of a relay's log about one of the batches, or about
// a batch that may have contained one of the events.
func mentions(out *strings.Builder, p *relay, pipeline string, groups []string, ids []int64) {
	file, err := os.Open(p.log)
	if err != nil {
		fmt.Fprintln(out, err)
		return
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for said := 0; lines.Scan() && said < 40; {
		line := lines.Text()
		named := func(group string) bool { return strings.Contains(line, group) }
		within := func(id int64) bool { return strings.Contains(line, "pipeline="+pipeline) && mayHold(line, id) }
		if slices.ContainsFunc(groups, named) || slices.ContainsFunc(ids, within) {
			fmt.Fprintf(out, "%s: %.600s\n", p.name, line)
			said++
		}
	}
}

var firstAndCount = regexp.MustCompile(`events=(\d+) first_id=(\d+)`)

// mayHold reports whether the batch of a log line may contain the event. The log has
// its first id; the last depends on the roll-backs in between.
func mayHold(line string, id int64) bool {
	found := firstAndCount.FindStringSubmatch(line)
	if found == nil {
		return false
	}
	events, err := strconv.ParseInt(found[1], 10, 64)
	if err != nil {
		return false
	}
	begins, err := strconv.ParseInt(found[2], 10, 64)
	return err == nil && begins <= id && id < begins+2*events
}

// rows returns the result of a query as text, one row per line.
func rows(ctx context.Context, conn *pgx.Conn, sql string, args ...any) string {
	var out strings.Builder
	answer, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return err.Error() + "\n"
	}
	defer answer.Close()
	for answer.Next() {
		values, err := answer.Values()
		if err != nil {
			return err.Error() + "\n"
		}
		for i, field := range answer.FieldDescriptions() {
			if id, ok := values[i].([16]byte); ok {
				values[i] = fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
			}
			fmt.Fprintf(&out, "%s=%.300s ", field.Name, fmt.Sprint(values[i]))
		}
		out.WriteByte('\n')
	}
	if err := answer.Err(); err != nil {
		return err.Error() + "\n"
	}
	return out.String()
}
