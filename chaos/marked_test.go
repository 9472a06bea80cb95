//go:build unix

package chaos

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

const journalSQL = `
CREATE TABLE journal (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state text NOT NULL DEFAULT 'draft', version int NOT NULL DEFAULT 1,
  changed boolean NOT NULL DEFAULT false, group_id uuid, sent_at timestamptz, sends int NOT NULL DEFAULT 0);
CREATE INDEX ON journal (id) WHERE state = 'ready' AND sent_at IS NULL;
CREATE INDEX ON journal (group_id) WHERE group_id IS NOT NULL`

const journalSource = `      table: journal
      schema: relay
      where: state = 'ready' AND sent_at IS NULL
      done: mark
      mark: {sent_at: now(), sends: sends + 1}
      project: SELECT e.id, jsonb_build_object('id', e.id, 'version', e.version) AS payload FROM {events} e
`

// markedTable: a table stays as a journal. Its rows are events at once, become events in a later transaction, are changed while they are on
// their way, or stay drafts. Two relays with two sinks are killed, and so is the database.
func (x *trial) markedTable() {
	server, to := testserver.OwnPostgres(x, testserver.PostgresOptions{Durable: true}), testserver.Redis(x)
	from := x.postgres(server.URL)
	from.db.SetMaxIdleConns(0) // an idle connection would not survive the database
	_, err := from.db.ExecContext(x.Context(), journalSQL)
	testkit.NoError(x, err)
	one := pipeline(from, "{}")
	head, _, _ := strings.Cut(one, "    sink:")
	yaml := strings.Replace(head, fmt.Sprintf("source: {url: %q}\n", from.url), fmt.Sprintf("source:\n      url: %q\n", from.url)+journalSource, 1) + `    sinks:
      - {name: all, url: "` + to.URL + `", stream: all}
      - {name: some, url: "` + to.URL + `", stream: some, batch_size: 7}
`
	all, some := x.redis([]string{to.Addr}, "all"), x.redis([]string{to.Addr}, "some")
	relays := []*relay{x.start("one", yaml), x.start("two", yaml)}
	for i := range x.rounds(4) {
		before, wrote := all.count(), make(chan error, 1)
		go func() { wrote <- x.journal(from.db, 300) }()
		testkit.Eventually(x, func() error {
			if all.count() == before {
				return errors.New("nothing arrived")
			}
			return nil
		})
		x.again(relays[i%2])
		testkit.NoError(x, testkit.Receive(x, "the end of writing", wrote))
		if i%4 == 1 { // the application has no transaction open
			testkit.NoError(x, server.Kill())
			testkit.NoError(x, server.Start(x.Context()))
		}
	}
	testkit.Eventually(x, func() error {
		return x.expectNone(from, `SELECT (SELECT count(*) FROM journal WHERE state = 'ready' AND sent_at IS NULL) + (SELECT count(*) FROM journal WHERE group_id IS NOT NULL) +
			(SELECT count(*) FROM relay.outbox_batches) + (SELECT count(*) FROM relay.outbox_dead_letters)`)
	})
	x.end(relays...)
	testkit.NoError(x, x.expectNone(from, "SELECT count(*) FROM journal WHERE sends <> CASE state WHEN 'ready' THEN 1 ELSE 0 END"))
	x.accountJournal(from.db, all)
	x.accountJournal(from.db, some)
}

// journal writes n rows. Of four transactions one rolls back. Of four rows one stays a draft, one becomes an event later, and one that was an event from
// the start is changed.
func (x *trial) journal(db *sql.DB, n int) error {
	for i := range n / 10 {
		tx, err := db.BeginTx(x.Context(), nil)
		if err != nil {
			return err
		}
		for _, statement := range []string{
			"INSERT INTO journal (state) SELECT CASE WHEN i % 4 < 2 THEN 'ready' ELSE 'draft' END FROM generate_series(0, 9) i",
			"UPDATE journal SET state = 'ready' WHERE state = 'draft' AND id % 4 = 0 AND id < (SELECT max(id) - 15 FROM journal)",
			"UPDATE journal SET version = version + 1, changed = true WHERE state = 'ready' AND sent_at IS NULL AND id % 4 = 1 AND id < (SELECT max(id) - 5 FROM journal)",
		} {
			if _, err := tx.ExecContext(x.Context(), statement); err != nil {
				return errors.Join(err, tx.Rollback())
			}
		}
		if i%4 == 3 {
			err = tx.Rollback()
		} else {
			err = tx.Commit()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// accountJournal compares what arrived with the table: of a row that was never changed while it was an event, one entry; of the others the
// last version; of drafts none.
func (x *trial) accountJournal(db *sql.DB, to streamsOf) {
	x.Helper()
	type row struct {
		ready, changed bool
		version        int
	}
	rows := map[int64]row{}
	found, err := db.QueryContext(x.Context(), "SELECT id, state = 'ready', changed, version FROM journal")
	testkit.NoError(x, err)
	defer found.Close()
	for found.Next() {
		var id int64
		var r row
		testkit.NoError(x, found.Scan(&id, &r.ready, &r.changed, &r.version))
		rows[id] = r
	}
	testkit.NoError(x, found.Err())
	arrived := map[int64][]int{}
	entries, err := to.client.XRange(x.Context(), to.streams[0], "-", "+").Result()
	testkit.NoError(x, err)
	for _, e := range entries {
		id, version := x.versionOf(e)
		arrived[id] = append(arrived[id], version)
	}
	problems, changed := map[string][]int64{}, 0
	for id, r := range rows {
		got := arrived[id]
		what := ""
		switch {
		case r.ready && len(got) == 0:
			what = "lost"
		case !r.ready && len(got) > 0:
			what = "drafts, and delivered"
		case r.changed && !slices.Contains(got, r.version):
			what = "delivered without the last change"
		case r.ready && !r.changed && len(got) > 1:
			what = "delivered more than once"
		}
		if r.changed {
			changed++
		}
		if what != "" {
			problems[what] = append(problems[what], id)
		}
	}
	for id := range arrived {
		if _, ok := rows[id]; !ok {
			problems["never committed, but delivered"] = append(problems["never committed, but delivered"], id)
		}
	}
	x.Logf("%s: %d rows, %d of them changed, %d entries", to.streams[0], len(rows), changed, len(entries))
	for _, what := range slices.Sorted(maps.Keys(problems)) {
		ids := problems[what]
		slices.Sort(ids)
		x.Errorf("%s: %d rows %s: %v", to.streams[0], len(ids), what, ids[:min(20, len(ids))])
	}
}

func (x *trial) versionOf(e redis.XMessage) (id int64, version int) {
	x.Helper()
	var body struct {
		ID      int64
		Version int
	}
	text, _ := e.Values["payload"].(string)
	testkit.NoError(x, json.Unmarshal([]byte(text), &body))
	return body.ID, body.Version
}

// expectNone returns an error if a count is not 0, or the database does not answer.
func (x *trial) expectNone(from *source, countSQL string) error {
	var n int
	err := from.db.QueryRowContext(context.WithoutCancel(x.Context()), countSQL).Scan(&n)
	if err == nil && n != 0 {
		err = fmt.Errorf("%d rows are left", n)
	}
	return err
}
