package cli

import (
	"strings"
	"syscall"
	"testing"
)

// A claim or wake mode that is not possible is a warning, and another one is used.
func TestRun_WarnsAboutTheBuffer(t *testing.T) {
	t.Parallel()
	cycles := newDatabase(t)
	cycles.exec("ALTER SEQUENCE outbox_events_id_seq CYCLE")
	sound, file := newDatabase(t), "sqlite://"+t.TempDir()+"/app.db"
	inFile := write(t, onePipeline("orders", file, "stdout:", "    batch_size: auto", "    workers: 2"))
	do(t, nil, "migrate", "-c", inFile).want(t, 0, "applied", "")
	for _, c := range []struct{ path, runs, warns string }{
		{
			write(t, onePipeline("orders", cycles.url, "stdout:", "    claim: range", "    wake: poll")),
			`msg="pipeline runs" pipeline=orders workers=4 batch_size=1000 wake=poll claim=stamp`,
			`events are claimed by stamp`,
		},
		{
			write(t, onePipeline("orders", sound.url, "stdout:", "    wake: notify", "    workers: auto")),
			`msg="pipeline runs" pipeline=orders workers=auto batch_size=1000 wake="notify, otherwise poll" claim=range`,
			`level=WARN msg="wake is notify, but the buffer table has no enabled trigger outbox_notify`,
		},
		{inFile, `msg="pipeline runs" pipeline=orders workers=2 batch_size=auto wake=poll claim=range`, ""},
		{
			write(t, onePipeline("orders", file, "stdout:", "    claim: stamp", "    eager: false")),
			`msg="pipeline runs" pipeline=orders workers=4 batch_size=1000 wake=schedule claim=stamp`, "",
		},
	} {
		r := start(t, nil, "run", "-c", c.path)
		r.waitForLog(c.runs)
		if c.warns != "" {
			r.waitForLog(c.warns)
		}
		r.signal(syscall.SIGTERM)
		if code := r.exit(); code != 0 {
			t.Errorf("exit status %d", code)
		}
		if c.warns == "" && strings.Contains(r.stderr.String(), "level=WARN") {
			t.Errorf("unexpected warning: %s", r.stderr.String())
		}
	}
}
