package console

import (
	"cmp"
	"time"
)

// problem is something that is wrong with a pipeline: what, since when, what happens by itself, and what to do.
type problem struct {
	// Pipeline is the pipeline's name, Sink that of one of its several sinks, or "".
	Pipeline, Sink string
	// Title says what is wrong in a few words, Detail quotes who said it.
	Title, Detail string
	// Alone is what the relay does about it by itself; Do is what a person can do.
	Alone, Do string
	// Fix is a command or statement to copy; "" if there is none.
	Fix string
	// Link leads to a page about it, from the overview, and LinkText says which; "" if none does.
	Link, LinkText string
	// Server is the one that is to blame, if there is one: problems of one server are one problem; see grouped.
	Server string
	// Others are the same problem of more pipelines, or sinks.
	Others []problem
	// Now is what happens at the moment; "" if the title says it.
	Now string
	// Said is the error alone, if Detail has more, and Refuses: the sink refuses some events, and accepts others. See merged.
	Said    string
	Refuses bool
	// Joined: problems of one server with this title and Fix are one, whatever their details are.
	Joined bool
	// OnlyVacuum: it blocks vacuum, and keeps no event, as far as is known.
	OnlyVacuum bool
	// Deadly: so many events become dead letters, or a transaction blocks some, that somebody should look now.
	Deadly bool
	// Key finds the problem in the next report if its title changes; such a problem has a page of its own and is never grouped.
	Key string
	// Cause finds it, too, if Key is "": a sink that refuses some events is called one thing and another from one second to the next.
	Cause string
	// Warning: nothing stands still because of it.
	Warning bool
	// Undated: its text says when it was, and each process would have seen it first at another time.
	Undated bool
	// Began is when it began, by the database; zero if only this process knows.
	Began time.Time
	// Since is Began, or when this process saw it first.
	Since time.Time
}

// key finds the same problem in the next report: what a server says may change each time.
func (p *problem) key() string {
	return p.Pipeline + "\x00" + p.Sink + "\x00" + cmp.Or(p.Key, p.Cause, p.Title)
}

// Name is the pipeline, with the sink if it has several.
func (p *problem) Name() string {
	if p.Sink == "" {
		return p.Pipeline
	}
	return p.Pipeline + "/" + p.Sink
}

// rank is where a problem stands: the lowest first.
func (p *problem) rank() int {
	switch {
	case !p.Warning:
		return 0
	case p.Deadly:
		return 1
	case p.Undated: // the relay continues
		return 3
	}
	return 2
}
