package console

import (
	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	titlePaused   = "paused"
	titleNoTables = "tables are missing"
	titleNoSchema = "its schema is missing"
	titleWaits    = "batches wait for a retry"
	titleLocked   = "a transaction locks its table"
	keyDead       = "dead letters"
	// titleWriterWaits is that of a pipeline whose table is not the locked one.
	titleWriterWaits = "a writer waits for another transaction"
	causeLock        = "lock"
)

// kindProblem says what the kind of a readiness error, or else its class, means.
var kindProblem = map[string]struct{ title, alone, do string }{
	"database": {
		"database does not work", "The relay tries again every second. Events are safe in their table or at their sink: nothing is lost. What was being sent may be sent again, under the same group_id.",
		"Check that the database runs, has disk space, and accepts writes, that user and password are right, and that this host is not overloaded. A relay reads secrets at its start: restart it after a change.",
	},
	buffer.KindLocked: {
		titleLocked, "Nothing ends it. The database works: whatever writes in this table waits, with the rest of its transaction, so the application stands still where it inserts events. The relay tries again every few seconds, and continues when that transaction ends.",
		"Find out whose it is, and end it:",
	},
	"sink": {
		"sink unavailable", "Events wait, none becomes a dead letter. The relay probes the sink about every second and continues when it answers.",
		"Check that the sink runs, that it answers within its timeout, and that its url, credentials and address (stream, subject, path) are right. A relay reads relay.yaml and secrets at its start: restart it after a change.",
	},
	buffer.KindAccess: {
		"sink does not accept the credentials", "Events wait, none becomes a dead letter. The relay tries again every few seconds.",
		"Find out whether the token, key or password was changed, has expired, or lost its rights. A relay reads relay.yaml and secrets at its start: correct them, then restart the relay.",
	},
	buffer.KindFull: {
		"sink is full", "Events wait, none becomes a dead letter. The relay tries again every few seconds, and continues when there is space.",
		"Make space at the sink: raise its limit (maxmemory, the limits of the stream, the disk), or find out why its consumers are behind or stopped.",
	},
	"refusing": {
		"sink refuses what it gets", "One batch at a time is tried, at most every 5 seconds: a fresh one, the newest and the oldest that waits in turn. With the first success everything that waits is due, and what was refused for good, as with 400 or 422, becomes dead letters within seconds. Until then only an event that is refused retry.max_attempts times does.",
		"Read what the sink says. A wrong key or path looks like this: correct relay.yaml and restart the relay. If these events are bad, a few become dead letters by themselves. " + removeMany,
	},
	buffer.KindSome: {
		"sink refuses some events", "The sink accepted others less than a minute ago. Each time it accepts one, events that it refused for good, as with 400 or 422, become dead letters within seconds, whatever retry.max_attempts is. Between two that it accepts, one batch at a time is tried.",
		"Read what the sink says, and see which topics and errors the dead letters have. Correct what makes these events, or the sink. If it is wrong about them, pause the pipeline: then no more become dead letters. " + removeMany,
	},
	"stalled": {
		"stands still", "The relay keeps trying.",
		"See what doctor finds.",
	},
	buffer.KindAsked: {
		"sink asked to wait", "Nothing is sent before that time, as the sink asked. Events wait, none becomes a dead letter.",
		"Nothing, unless you know better: Retry now (relay retry --now) tries it at once.",
	},
	buffer.KindAnswer: {
		"results does not expect the answer", "Events wait, none becomes a dead letter. Nobody knows what of a batch was accepted, so the same batch is sent again at each try, under the same idempotency key: a sink that ignores the key has these events several times.",
		"Read the answer. If it is right, as after a wrong key, correct the sink's settings; otherwise correct results: relay preview --answer FILE --status N shows what it makes of an answer. Restart the relay after a change.",
	},
	buffer.KindRequest: {
		"request fails", "Nothing is sent. Events wait, and are tried again.",
		"Correct request with the help of Try it or relay preview, and restart the relay; or correct the events.",
	},
	buffer.KindStuck: {
		"some batches are stuck", "Other events are sent. The relay tries these again; an event that fails retry.max_attempts times while others are accepted becomes a dead letter.",
		"Read the error: correct the event, or the setting or program that it names; Try it shows the request of an event.",
	},
}

// problemOf is what a reason of a kind, or else of its class, means.
func problemOf(kind, class string) (p struct{ title, alone, do string }) {
	if p, ok := kindProblem[kind]; ok {
		return p
	}
	return kindProblem[class]
}

// causeOf is the Cause of a problem with such a class of a reason.
func causeOf(class string) string {
	if class == buffer.NotReadyRefusing || class == buffer.NotReadyStalled {
		return class
	}
	return ""
}
