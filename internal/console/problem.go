package console

import (
	"cmp"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
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
	// JoinedBy, unless it is "": problems of one server with this title and the same JoinedBy are one, whatever their details are.
	JoinedBy string
	// Minor: a transaction is the cause, and keeps no event that is committed, as far as is known: it blocks vacuum, or a writer waits for it.
	Minor bool
	// Of is the transaction that is the cause; zero: none, or it is not known.
	Of transaction
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

// transaction is one of those that a database has open; or a replication slot.
type transaction struct {
	pid   int
	name  string    // of a prepared one
	began time.Time // zero: not known
}

func transactionOf(b *admin.BlockerReport) transaction { return transaction{b.PID, b.Name, b.BeganAt} }

func (t transaction) isKnown() bool { return t.pid != 0 || t.name != "" }

// isOther reports whether t is not that one, as far as is known: process ids are reused, and a session begins other transactions.
func (t transaction) isOther(that transaction) bool {
	switch {
	case !t.isKnown() || !that.isKnown():
		return false
	case t.pid != that.pid || t.name != that.name:
		return true
	}
	return !t.began.IsZero() && !that.began.IsZero() && !t.began.Equal(that.began)
}
