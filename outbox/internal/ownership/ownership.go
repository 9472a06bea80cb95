// Package ownership keeps two pipelines from claiming from one buffer. The buffer's row of outbox_buffers names the pipeline that
// owns it, which is the first one that claims, until relay migrate --rename-pipeline gives it to another.
package ownership

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Error is a buffer that another pipeline owns. errors.Is finds buffer.ErrNotReady.
type Error struct {
	Buffer, Owner, Pipeline string
	Since                   time.Time
	// Ledger is the outbox_buffers of another schema in which Owner owns the buffer; "": that of this ledger. Without an Owner
	// the trigger of table Events names that ledger.
	Ledger, Events string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%v: %s; %s", buffer.ErrNotReady, e.Text(), e.Fix())
}

// Text says who owns the buffer.
func (e *Error) Text() string {
	since := ""
	if !e.Since.IsZero() {
		since = " since " + e.Since.UTC().Format("2006-01-02 15:04:05 UTC")
	}
	switch {
	case e.Owner == "":
		return fmt.Sprintf("buffer %s belongs to another ledger, that of %s, which its trigger outbox_truncated names; pipeline %s claims nothing from it, because two ledgers would each send all of its events",
			e.Buffer, e.Ledger, e.Pipeline)
	case e.Ledger != "":
		return fmt.Sprintf("pipeline %s owns buffer %s in another ledger, that of %s%s; pipeline %s claims nothing from it, because two ledgers would each send all of its events",
			e.Owner, e.Buffer, e.Ledger, since, e.Pipeline)
	}
	return fmt.Sprintf("pipeline %s owns buffer %s%s; pipeline %s claims nothing from it, because two pipelines would each send a part of its events",
		e.Owner, e.Buffer, since, e.Pipeline)
}

// Fix says how another pipeline becomes the owner.
func (e *Error) Fix() string {
	if e.Ledger != "" {
		fix := fmt.Sprintf("set source.schema to the schema of %[1]s; or, to move the ledger, stop the relays that use %[1]s when relay status shows no batches, and run: UPDATE %[1]s SET pipeline = NULL WHERE buffer = '%[2]s'",
			e.Ledger, strings.ReplaceAll(e.Buffer, "'", "''"))
		if e.Owner == "" {
			fix += "; DROP TRIGGER outbox_truncated ON " + e.Events + ", and relay migrate"
		}
		return fix
	}
	return fmt.Sprintf("give pipeline %s a table of its own, or, if it replaces %s, stop that one and run: %s", e.Pipeline, e.Owner, Command(e.Owner)+" --pipeline "+e.Pipeline)
}

func (e *Error) Unwrap() error { return buffer.ErrNotReady }

// Command returns the command that gives buffer and dead letters of a pipeline to the configured one.
func Command(from string) string {
	if strings.ContainsAny(from, " '\"\\$`") { // the configuration allows no such name
		from = "'" + strings.ReplaceAll(from, "'", `'\''`) + "'"
	}
	return "relay migrate --rename-pipeline " + from + " -c relay.yaml"
}

// OrphanedLetters is the finding about open dead letters under a name that no pipeline has.
func OrphanedLetters(name string, letters int64) buffer.Finding {
	return buffer.Finding{
		Level: buffer.LevelWarning, Subject: "dead letters",
		Text: fmt.Sprintf("%d open dead letters belong to pipeline %s, which owns no buffer here: no hook is notified of them, and relay dead does not show them", letters, name),
		Fix:  Command(name),
	}
}

// State is what this process last saw of a buffer's owner. It is safe for concurrent use.
type State struct {
	mu       sync.Mutex
	mine     bool
	conflict *Error
	other    *Error // in another ledger
}

// SawElsewhere records the conflict with another ledger, or that there is none: nil.
func (s *State) SawElsewhere(conflict *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.other = conflict
}

// Elsewhere reports whether another ledger was in conflict when it was last looked for.
func (s *State) Elsewhere() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.other != nil
}

// Saw records the owner, "" for none. since may be zero.
func (s *State) Saw(table, owner, pipeline string, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mine = owner == pipeline
	if owner == "" || s.mine {
		s.conflict = nil
		return
	}
	if s.conflict == nil || s.conflict.Owner != owner || !since.IsZero() {
		s.conflict = &Error{Buffer: table, Owner: owner, Pipeline: pipeline, Since: since}
	}
}

// Known reports whether this pipeline owns the buffer, or the conflict; neither if the owner must be looked up.
func (s *State) Known() (mine bool, conflict error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.conflict != nil:
		return false, s.conflict
	case s.other != nil:
		return false, s.other
	}
	return s.mine, nil
}
