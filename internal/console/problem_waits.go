package console

import (
	"net/url"
	"strings"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// waitsAnchor is where the page of a pipeline says what waits.
const waitsAnchor = "#waits"

func pipelineLink(name string) string { return "pipelines/" + url.PathEscape(name) }

// addPauses says what is paused, by somebody or because too much waits.
func (f *pipelineFinder) addPauses() {
	p := f.p
	for i := range p.Pauses {
		one := &p.Pauses[i]
		what, command, _ := strings.Cut(one.Text(p.Name), ". > ")
		f.add(problem{
			Sink: one.Sink, Title: titlePaused, Detail: what, Warning: true,
			Alone: "Nothing: it stays paused until somebody resumes it. Events wait.", Do: "Resume it here, or run " + command + ".", Link: pipelineLink(p.Name), LinkText: "resume",
		})
	}
	if p.ClaimingStopped != "" {
		f.add(problem{
			Title: "claiming stopped", Detail: p.ClaimingStopped, Alone: "Claiming continues when fewer batches wait. New events stay in the table.",
			Do: "Find out why the batches wait.", Link: pipelineLink(p.Name) + waitsAnchor, LinkText: "what waits",
		})
	}
}

// isPaused reports whether a sink is paused, alone or with the pipeline.
func (f *pipelineFinder) isPaused(sink string) bool {
	for i := range f.p.Pauses {
		if of := f.p.Pauses[i].Sink; of == "" || of == sink {
			return true
		}
	}
	return false
}

// addWaits says why batches wait.
func (f *pipelineFinder) addWaits() {
	f.addWaitsOf("", f.p.Waits)
	for i := range f.p.Sinks {
		f.addWaitsOf(f.p.Sinks[i].Name, f.p.Sinks[i].Waits)
	}
}

func (f *pipelineFinder) addWaitsOf(sink string, waits []admin.WaitReport) {
	name := f.p.Name
	if len(waits) == 0 || f.notReady[name+"/"+sink] || f.isPaused(sink) { // what waits is not tried while it is paused
		return
	}
	if k, known := f.elsewhere[sink]; known && !f.all[k].Refuses { // for that reason
		return
	}
	f.add(problem{
		Sink: sink, Server: f.servers[name+"/"+sink], Title: titleWaits, Detail: waits[0].Text(), Warning: true, Cause: buffer.NotReadyRefusing, Said: waits[0].Error,
		Alone: "They are sent again by themselves.", Do: "Read the error: the sink said so, or a program or projection of yours failed.", Link: pipelineLink(name) + waitsAnchor, LinkText: "what waits",
	})
}

// addHook says why dead letters wait for their hook.
func (f *pipelineFinder) addHook() {
	if f.p.Hook == nil {
		return
	}
	for _, w := range f.p.Hook.Waits {
		f.add(problem{
			Title: "the dead-letter hook fails", Detail: w.Text(), Warning: true,
			Alone: "It is notified again until it answers; nothing is lost.", Do: "Check dead_letter.hook.",
		})
	}
}
