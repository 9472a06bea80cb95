package buffer

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// SinkRegistry is the registry of the sinks that the events of a buffer are routed to. It decides what events are routed to, not the
// configuration of a process: a start adds sinks, and only a command drops one.
type SinkRegistry interface {
	// Sinks returns the sinks of the registry by name, the dropped ones too, and those that have batches without being in it.
	// It changes nothing, and returns nothing for a buffer with a single sink.
	Sinks(ctx context.Context) ([]RegisteredSink, error)
	// RegisterSinks adds the sinks that the buffer was opened with, and updates what they take. It removes none.
	RegisterSinks(ctx context.Context) error
	// ServeSinks notes that this process serves the sinks that the buffer was opened with.
	ServeSinks(ctx context.Context) error
	// DropSink drops a sink: nothing more is routed to it, and EndDropped ends its batches. The error is a [*NoSinkError] if there is
	// no such sink.
	DropSink(ctx context.Context, name string, as Dropped) error
	// RestoreSink takes a drop back. Batches that were ended are not restored.
	RestoreSink(ctx context.Context, name string) error
	// EndDropped ends up to limit batches of dropped sinks that no process has leased, with nothing sent, and returns how many it has
	// ended. It also gives renamed sinks the batches that came back under a former name. It is called again and again: a leased batch may
	// come back later.
	EndDropped(ctx context.Context, limit int) (Ended, error)
}

// Dropped says what becomes of the events that wait for a sink when it is dropped.
type Dropped string

// The sink's batches end with nothing sent, or their events become dead letters of the sink.
const (
	DroppedDiscarded Dropped = "discarded"
	DroppedDead      Dropped = "dead"
)

// Ended counts batches that ended because their sink is dropped, and their events.
type Ended struct{ Batches, Events int64 }

// RegisteredSink is a sink of a registry.
type RegisteredSink struct {
	Name string
	// Registered is false for one that has batches without being in the registry; "default" is the sink that the buffer had when it had
	// a single one.
	Registered bool
	// Configured reports whether the buffer was opened with it.
	Configured bool
	// Match are its patterns, which decide what is routed to it, and ConfiguredMatch those that the buffer was opened with.
	Match, ConfiguredMatch []string
	// MatchBefore are the patterns that it had before a start changed them at MatchAt; zero: that is more than a day ago, or none did.
	MatchBefore []string
	MatchAt     time.Time
	// Formerly are the names that it had before.
	Formerly []string
	// Batches and Events wait for it, or are being sent.
	Batches, Events int64
	// SeenAt is when a relay that serves it was seen running, at most a minute ago while one runs; zero: never.
	SeenAt time.Time
	// Unseen is how long ago that was, by the database's clock.
	Unseen time.Duration
	// DroppedAt is when it was dropped, and DroppedAs how; zero: it is not.
	DroppedAt time.Time
	DroppedAs Dropped
}

// SeenEvery is how often a relay notes that it serves its sinks.
const SeenEvery = time.Minute

// Served reports whether a relay that serves the sink has been seen lately.
func (s *RegisteredSink) Served() bool { return !s.SeenAt.IsZero() && s.Unseen < 3*SeenEvery }

// Finding returns what is wrong with the sink; ok is false if nothing is.
func (s *RegisteredSink) Finding() (f Finding, ok bool) {
	f = Finding{Level: LevelWarning, Subject: "sink " + s.Name}
	waits := fmt.Sprintf("%s of %s", count(s.Batches, "batch", "batches"), count(s.Events, "event", "events"))
	switch {
	case !s.DroppedAt.IsZero() && s.Configured:
		f.Level = LevelError
		f.Text = fmt.Sprintf("is configured, and was dropped on %s: no relay serves it", s.DroppedAt.UTC().Format(time.DateTime))
		f.Fix = "relay sinks restore " + s.Name + " -c relay.yaml, or remove it from sinks"
	case !s.DroppedAt.IsZero():
		return f, false
	case !s.Registered && s.Name == defaultSink:
		f.Text = waits + " from when the pipeline had a single sink wait, and no sink takes them"
		f.Fix = "add was: default to the entry of sinks that should get them, or end them: relay sinks drop default -c relay.yaml"
	case !s.Registered:
		f.Text = waits + " wait for it, and it is not in table outbox_sinks"
		f.Fix = "configure it again, or end them: relay sinks drop " + s.Name + " -c relay.yaml"
	case s.Served():
		return f, false
	default:
		f.Text = "no relay has served it"
		if !s.SeenAt.IsZero() {
			f.Text += " since " + s.SeenAt.UTC().Format(time.DateTime)
		}
		f.Text += "; " + waits + " wait for it"
		f.Fix = "run a relay that has it, or drop it: relay sinks drop " + s.Name + " -c relay.yaml"
		if s.Configured { // then it is wanted, and a relay that runs may not be able to say so
			f.Fix = "run a relay, or find out why those that run cannot write to the database: relay doctor -c relay.yaml"
		}
	}
	return f, true
}

// MatchFinding returns what is wrong with the patterns of the sink: those of the configuration are others than the registered ones, or a start took
// topics from the sink within a day; ok is false if nothing is.
func (s *RegisteredSink) MatchFinding() (f Finding, ok bool) {
	if !s.Registered || !s.Configured || !s.DroppedAt.IsZero() {
		return f, false
	}
	f = Finding{Level: LevelWarning, Subject: "sink " + s.Name}
	missed := true
	switch {
	case !covers(s.Match, s.ConfiguredMatch):
		f.Text = fmt.Sprintf("match is %s in the configuration, and %s as a relay has registered it last: events that only the first matches are not sent to the sink",
			matchText(s.ConfiguredMatch), matchText(s.Match))
	case !covers(s.ConfiguredMatch, s.Match):
		missed = false
		f.Text = fmt.Sprintf("match is %s in the configuration, and %s as a relay has registered it last: events that only the second matches are sent to the sink too",
			matchText(s.ConfiguredMatch), matchText(s.Match))
	case !s.MatchAt.IsZero() && !covers(s.Match, s.MatchBefore):
		f.Text = fmt.Sprintf("match changed from %s to %s on %s: events that only the first matches are no longer sent to the sink",
			matchText(s.MatchBefore), matchText(s.Match), s.MatchAt.UTC().Format(time.DateTime))
		f.Fix = "if it is not on purpose, "
	default:
		return f, false
	}
	f.Fix += "restart all relays with the right file, because the last one that starts decides"
	if missed {
		f.Fix += "; with an archive, relay replay --sink " + s.Name + " --topic TOPIC --since TIME -c relay.yaml then sends what it missed"
	}
	return f, true
}

// matchText names patterns of topics.
func matchText(patterns []string) string {
	if len(patterns) == 0 {
		return "everything"
	}
	return strings.Join(patterns, ", ")
}

// defaultSink is the name of a single sink.
const defaultSink = "default"

func count(n int64, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, several)
}

// NoSinkError says that a registry has no sink of a name that can be dropped, or restored.
type NoSinkError struct {
	Table, Name string
	// Known are those that can be.
	Known []string
}

func (e *NoSinkError) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("no sink of table %s is %q; there is none", e.Table, e.Name)
	}
	return fmt.Sprintf("no sink of table %s is %q; expected %s", e.Table, e.Name, strings.Join(e.Known, " or "))
}
