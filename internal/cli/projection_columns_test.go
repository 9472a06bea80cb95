package cli

import (
	"strings"
	"testing"
)

// TestProjection_UnknownColumns: doctor, preview and the log of run name what a projection returns in vain.
func TestProjection_UnknownColumns(t *testing.T) {
	t.Parallel()
	for _, sqlite := range []bool{false, true} {
		t.Run(map[bool]string{false: "postgres", true: "sqlite"}[sqlite], func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, sqlite)
			identity, group, object := "GENERATED ALWAYS AS IDENTITY", "uuid", "jsonb_build_object"
			if sqlite {
				identity, group, object = "AUTOINCREMENT", "TEXT", "json_object"
			}
			db.exec("CREATE TABLE happened (id INTEGER PRIMARY KEY " + identity + ", event_type text, tenant_id integer, created_at timestamp, group_id " + group + ")")
			config := func(more string) string {
				return write(t, "pipelines:\n  - name: p\n    source:\n      url: "+db.url+"\n      table: happened\n      project: |\n"+
					"        SELECT e.id, e.event_type AS type, e.tenant_id, "+object+"('a', 1) AS payload, "+object+"('b', '2') AS header FROM {events} e"+more+"\n    sink: {url: \"stdout:\"}\nadmin: {listen: \"127.0.0.1:0\"}\n")
			}
			path := config("")
			do(t, nil, "migrate", "-c", path).want(t, 0, ": applied ", "")
			db.exec("INSERT INTO happened (event_type, tenant_id) VALUES ('paid', 7)")
			const names = "type (did you mean topic?), tenant_id, header (did you mean headers?)"
			do(t, nil, "doctor", "-c", path).want(t, 0, "source.project returns unknown columns "+names+", and the relay does not send them; expected id, payload, topic, key, headers or created_at\n", "")
			do(t, nil, "preview", "-c", path).want(t, 0, "not sent: unknown columns of source.project: "+names+"\n", "")
			excepted := config(" -- not sent: type, tenant_id, header")
			for _, command := range []string{"doctor", "preview"} {
				if said := do(t, nil, command, "-c", excepted).stdout; strings.Contains(said, "unknown column") {
					t.Errorf("%s says\n%s", command, said)
				}
			}
			start(t, nil, "run", "-c", path).waitForLog("returns unknown columns " + names)
		})
	}
}
