//go:build unix

package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// progress prints the progress every ten seconds until ctx is done.
func (r *run) progress(ctx context.Context) error {
	for began := time.Now(); pause(ctx, 10*time.Second); {
		var committed, arrived int64
		waiting := map[string]string{}
		for _, a := range r.accounts() {
			committed, arrived = committed+a.committed.Load(), arrived+a.arrived.Load()
			waiting[a.name()] = strconv.FormatInt(a.waiting(), 10)
		}
		r.t.Logf("%4.0f s: %d to deliver, %d delivered; waiting or dead: %s; %d relay kills, %d kills in all",
			time.Since(began).Seconds(), committed, arrived, byName(waiting), r.faults.count(relayKilled), r.kills())
	}
	return nil
}

func (r *run) kills() int {
	return r.faults.count(relayKilled) + r.faults.count(postgresKilled) + r.faults.count(redisKilled)
}

// report prints the faults and the audit.
func (r *run) report(audits []audited, took time.Duration) {
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	line := func(format string, a ...any) { fmt.Fprintf(table, format+"\n", a...) }
	line("fault\ttimes")
	all := 0
	for _, kind := range r.faults.kinds() {
		line("%s\t%d", kind, r.faults.count(kind))
		if !strings.Contains(kind, "exit status") {
			all += r.faults.count(kind)
		}
	}
	line("faults in all\t%d", all)
	line("kills (SIGKILL) in all\t%d", r.kills())
	line("")
	line("events\tcommitted\trolled back\tdelivered\tdead\twaiting\tduplicates\tlost")
	var sum audited
	for _, a := range audits {
		line("%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d", a.name, a.committed, a.rolledBack, a.delivered, a.dead, a.waiting, a.duplicates, a.lost)
		sum.committed += a.committed
		sum.rolledBack += a.rolledBack
		sum.delivered += a.delivered
		sum.dead += a.dead
		sum.waiting += a.waiting
		sum.duplicates += a.duplicates
		sum.lost += a.lost
		sum.resolved += a.resolved
		sum.excused += a.excused
		sum.late += a.late
	}
	line("all\t%d\t%d\t%d\t%d\t%d\t%d\t%d",
		sum.committed, sum.rolledBack, sum.delivered, sum.dead, sum.waiting, sum.duplicates, sum.lost)
	line("")
	p := &r.producing
	line("events committed late (%d s or more after their insert)\t%d", late, p.late.Load())
	line("poison events of acknowledged commits\t%d", p.poison.Load())
	line("take overs\t%d, half of them within %v of the lease's end", r.takeOvers, r.takeOverMedian)
	line("transactions whose COMMIT was not answered\t%d (%d events had committed)", p.unknown.Load(), sum.resolved)
	line("transactions broken off before COMMIT\t%d", p.brokenOff.Load())
	line("claimed by\t%s", byName(r.ways.claimed))
	line("wake: notify\t%d notifications received for outbox_events", r.ways.notifications.Load())
	line("JetStream\t%d events published in fast batches, %d singly, %d duplicates after its window of %v",
		r.ways.fast.Load(), r.ways.oneByOne.Load(), sum.late, duplicateWindow)
	line("times producers waited for the backlog\t%d", p.waited.Load())
	line("API\t%d requests, %d of them known already, %d refused, %d duplicates of batches that were halved as suspects",
		r.api.requests, r.api.repeated, r.api.refused, sum.excused)
	line("took\t%v", took.Round(time.Second))
	line("seed\t%d", r.seed)
	line("again\t%s", r.again())
	if err := table.Flush(); err != nil {
		r.t.Error(err)
	}
	r.t.Logf("\n%s", out.String())
	if sum.committed == 0 || sum.rolledBack == 0 || sum.dead == 0 || r.kills() == 0 || r.takeOvers == 0 {
		r.violation("a run in which nothing was committed, rolled back, buried, killed or taken over says nothing")
	}
}

// byName formats a map in order.
func byName(m map[string]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, name+": "+m[name])
	}
	return strings.Join(all, ", ")
}
