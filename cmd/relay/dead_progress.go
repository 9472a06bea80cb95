package main

import (
	"os"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progress is a bar on a terminal, and nothing elsewhere.
type progress struct {
	what  string
	out   *os.File
	drawn *mpb.Progress
	bar   *mpb.Bar
}

func newProgress(out *os.File, what string) *progress { return &progress{what: what, out: out} }

// set draws the bar; the first call makes it.
func (p *progress) set(done, of int64) {
	if p.bar == nil {
		if !isTerminal(p.out) || os.Getenv("TERM") == "dumb" {
			return
		}
		p.drawn = mpb.New(mpb.WithOutput(p.out), mpb.WithWidth(40))
		p.bar = p.drawn.AddBar(of, mpb.BarRemoveOnComplete(),
			mpb.PrependDecorators(decor.Name(p.what+" ")), mpb.AppendDecorators(decor.CountersNoUnit(" %d / %d")))
	}
	p.bar.SetCurrent(done)
}

// end takes the bar away.
func (p *progress) end() {
	if p.bar != nil {
		p.bar.Abort(true)
		p.drawn.Wait()
	}
}
