package cli

import (
	"strings"
	"testing"
)

// A table that migrate makes for a pipeline with order: key has room for its stamps, so that doctor does not ask for it; one that exists stays as it is.
func TestMigrate_Stamped(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	for table, config := range map[string]string{
		"keyed": "    order: key\n    sink: {url: 'stdout:'}\n", "stamped": "    claim: stamp\n    sink: {url: 'stdout:'}\n",
		"routed": "    sinks:\n      - {name: a, url: 'stdout:', order: key}\n",
	} {
		path := write(t, "admin: {listen: \"\"}\npipelines:\n  - name: p_"+table+"\n    source: {url: \""+db.url+"\", table: "+table+"}\n"+config)
		do(t, nil, "migrate", "-c", path).want(t, 0, "applied 0001_", "")
		said := doctorJSON(t, path, 0)
		if warns, fits := said.find("p_"+table, "warning", "fillfactor"), said.find("p_"+table, "ok", "fillfactor"); warns != "" || !strings.Contains(fits, "50 fits claims by stamp") {
			t.Errorf("doctor says of %s: %s%s", table, warns, fits)
		}
	}
	plain := "admin: {listen: \"\"}\npipelines:\n  - name: plain\n    source: {url: \"" + db.url + "\", table: plain}\n    sink: {url: 'stdout:'}\n"
	do(t, nil, "migrate", "-c", write(t, plain)).want(t, 0, "plain: applied", "")
	do(t, nil, "migrate", "-c", write(t, plain+"    order: key\n")).want(t, 0, "plain: up to date\n", "")
	said := doctorJSON(t, write(t, plain+"    order: key\n"), 0)
	if warns := said.find("plain", "warning", "fillfactor"); !strings.Contains(warns, "fillfactor of table public.plain is 100") {
		t.Errorf("doctor says of a table that existed: %s", warns)
	}
}
