package main

import (
	"os"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progress is a progress bar. It writes to terminals only.
type progress struct {
	title string
	out   *os.File
	bars  *mpb.Progress
	bar   *mpb.Bar
}

func newProgress(out *os.File, title string) *progress { return &progress{title: title, out: out} }

// set updates the bar. The first call draws it.
func (p *progress) set(done, total int64) {
	if p.bar == nil {
		if !isTerminal(p.out) || os.Getenv("TERM") == "dumb" {
			return
		}
		p.bars = mpb.New(mpb.WithOutput(p.out), mpb.WithWidth(40))
		p.bar = p.bars.AddBar(total, mpb.BarRemoveOnComplete(),
			mpb.PrependDecorators(decor.Name(p.title+" ")), mpb.AppendDecorators(decor.CountersNoUnit(" %d / %d")))
	}
	p.bar.SetCurrent(done)
}

// end removes the bar.
func (p *progress) end() {
	if p.bar != nil {
		p.bar.Abort(true)
		p.bars.Wait()
	}
}
