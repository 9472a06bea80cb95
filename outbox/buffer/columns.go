package buffer

import (
	"regexp"
	"strings"
	"unicode"
)

// Suggestion is what the name of a column of a custom table suggests.
type Suggestion int

// The suggestions. init and doctor use the same ones.
const (
	// SuggestsNothing is any other name.
	SuggestsNothing Suggestion = iota
	// SuggestsMark is a column that a loop marks rows with that it has sent, such as processed_at.
	SuggestsMark
	// SuggestsOutcome is a mark or what happened to the subject of the row, such as published_at.
	SuggestsOutcome
	// SuggestsState is a column whose values say what became of the row, such as status.
	SuggestsState
	// SuggestsEnd is a column of rows that were given up or withdrawn, such as failed_at or is_deleted.
	SuggestsEnd
	// SuggestsDelay is a time before which a row must not be sent, such as run_at.
	SuggestsDelay
	// SuggestsHeld is a boolean that is true for a row that may not be sent, such as draft or on_hold.
	SuggestsHeld
	// SuggestsReady is a boolean that is false for a row that may not be sent yet, such as approved.
	SuggestsReady
	// SuggestsVerdict is a column of words that may say so, such as review.
	SuggestsVerdict
)

// suggestions are names in lower case, without separators.
var suggestions = []struct {
	what  Suggestion
	names *regexp.Regexp
}{
	{SuggestsMark, done("sent", "processed", "dispatched", "handled", "relayed", "forwarded", "pushed", "synced", "synchronized", "synchronised", "exported", "consumed",
		"acked", "acknowledged", "transmitted")},
	{SuggestsOutcome, done("published", "delivered", "completed", "finished", "done", "shipped", "posted", "executed", "fulfilled")},
	{SuggestsEnd, done("failed", "cancelled", "canceled", "deleted", "discarded", "abandoned", "rejected", "skipped", "aborted")},
	{SuggestsState, regexp.MustCompile(`^(status|state)$`)},
	{SuggestsDelay, regexp.MustCompile(`^(available|run|send|deliver|process|execute|scheduled|visible|nextattempt|nextretry|nexttry|nextrun|retry)at(utc)?$` +
		`|^(send|deliver|process)after(utc)?$|^nextrun(utc)?$|^embargountil(utc)?$|^scheduledfor$|^notbefore$`)},
	{SuggestsHeld, regexp.MustCompile(`^(is|was)?(draft|onhold|hold|held|paused|suspended|blocked|test|testmode|testdata|dryrun|sandbox|muted|suppressed|hidden|disabled|inactive|archived` +
		`|ignored?|excluded|unsubscribed|optedout|spam|quarantined|void|voided|obsolete|superseded|withdrawn|embargoed|frozen|incomplete)$` +
		`|^(permanently)?failed(permanently)?$|^(needs|requires|pending|awaiting)(review|approval|confirmation)$|^(donot|dont|no|never)send$`)},
	{SuggestsReady, regexp.MustCompile(`^(is|was)?(approved|enabled|active|ready|readytosend|sendable|confirmed|verified|released|cleared|authori[sz]ed|publishable|live|final|finali[sz]ed|reviewed` +
		`|committed|optedin|consented|visible|allowed|deliverable)$|^(should|can|may|to|allow)(be)?(send|sent|publish|published|deliver|delivered|notify)$`)},
	{SuggestsVerdict, regexp.MustCompile(`^(review|approval|moderation|outcome|verdict|decision|disposition)(state|status|result|outcome)?$`)},
}

// done matches names such as sent, sent_at, SentOnUtc, date_sent and is_sent.
func done(verbs ...string) *regexp.Regexp {
	return regexp.MustCompile(`^(is|was|last|date)?(` + strings.Join(verbs, "|") + `)(at|on|date|datetime|time|timestamp|ts|utc)*$`)
}

// Suggests returns what the name of a column suggests, whether it is written sent_at, sentAt or SENTAT.
func Suggests(column string) Suggestion {
	name := letters(column)
	for _, s := range suggestions {
		if s.names.MatchString(name) {
			return s.what
		}
	}
	return SuggestsNothing
}

// LooksMark reports whether the name of a column suggests that a loop marks the rows with it that it has sent, such as processed_at or status.
func LooksMark(column string) bool {
	s := Suggests(column)
	return s == SuggestsMark || s == SuggestsOutcome || s == SuggestsState
}

// LooksDelay reports whether the name of a column suggests that a row must not be sent before the time in it, such as run_at or scheduledFor.
func LooksDelay(column string) bool { return Suggests(column) == SuggestsDelay }

var (
	// noDelay are names, in lower case, of times that lie in the future and delay nothing.
	noDelay = regexp.MustCompile(`expir|valid|deadline|until|ttl|lock|lease|retain|purge|delet|birth|end|stop|renew|creat|insert|updat|modif`)
	waits   = regexp.MustCompile(`^(wait|hold|held|defer|delay|snooze|visible|invisible|hidden|embargo|sleep)|^(valid|effective|active|live)_?from`)
	// noMark are names of columns that say what happened, and not what became of the row.
	noMark = regexp.MustCompile(`type|topic|event|name|kind|action|verb|channel|subject|title|message|reason|body|payload|data|content|key`)
)

// MayDelay reports whether a column with times in the future may delay rows, as far as its name says nothing else, such as expires_at.
func MayDelay(column string) bool {
	name := strings.ToLower(column)
	return waits.MatchString(name) || !noDelay.MatchString(name)
}

// LooksWait reports whether the name of a column suggests that a time in it delays rows, though not as clearly as that of [LooksDelay], such as embargo or valid_from.
func LooksWait(column string) bool { return waits.MatchString(strings.ToLower(column)) }

// LooksGate reports whether the name of a column suggests that it says which rows may be sent, such as draft, approved or review.
func LooksGate(column string) bool {
	s := Suggests(column)
	return s == SuggestsHeld || s == SuggestsReady || s == SuggestsVerdict
}

// MayMark reports whether a column with values such as sent may be the mark of a loop, as far as its name says nothing else, such as event_type.
func MayMark(column string) bool { return !noMark.MatchString(strings.ToLower(column)) }

// DoneValues and EndValues are values of a column that says what became of a row, in lower case and as a list in SQL: a loop has sent the row, or it was
// given up or withdrawn.
const (
	DoneValues = "'true', 'sent', 'done', 'processed', 'published', 'dispatched', 'delivered', 'completed', 'success'"
	EndValues  = "'failed', 'error', 'errored', 'dead', 'cancelled', 'canceled', 'rejected', 'discarded', 'abandoned', 'skipped', 'aborted'"
	// HeldValues are those of a [SuggestsVerdict] that says that a row may not be sent, or not yet.
	HeldValues = "'pending', 'pending_review', 'pending_approval', 'in_review', 'needs_review', 'under_review', 'review', 'draft', 'hold', 'on_hold', 'held', 'paused', 'blocked', 'denied', 'declined', 'unapproved', 'withdrawn', " + EndValues
)

// Gate returns the condition in SQL for rows that a column lets be sent, by its name: a row without a value may be sent unless the column must say so. name is the
// quoted column, nullable whether it may be NULL.
func Gate(what Suggestion, name string, nullable bool) string {
	switch {
	case what == SuggestsVerdict:
		return "(lower(" + name + ") IN (" + HeldValues + ")) IS NOT TRUE"
	case what == SuggestsReady && nullable:
		return name + " IS TRUE"
	case what == SuggestsReady:
		return name
	case nullable:
		return name + " IS NOT TRUE"
	}
	return "NOT " + name
}

var (
	state = regexp.MustCompile(`stat(e|us)$`)
	// span is the name of a duration, and its unit.
	span = regexp.MustCompile(`^(?:delay|wait|defer|snooze|hold|sleep|postpone)(?:ed|red)?(?:by|for|time|in)?(s|secs?|seconds?|ms|millis|milliseconds?|m|mins?|minutes?|h|hours?|d|days?)?$`)
	// noTime are names of integers that may be as large as a Unix time and are none.
	noTime = regexp.MustCompile(`(^|[^a-z])(id|no|nr|num)$|number|phone|mobile|fax|zip|code|ref|key|hash|seed|version|rev|seq|offset|position|count|amount|total|price|cents|bytes|size|crc|sum|cursor|account`)
	// timed is the end, or the beginning, of the name of a time.
	timed = regexp.MustCompile(`(at|on|ts|date|time|timestamp|epoch|unix|due|when|eta|until|after|before)_?(utc|s|sec|seconds|ms|millis|milliseconds|epoch|unix)?$` +
		`|^(due|eta|epoch|unix|time|date|start|publish|schedul)`)
)

// MayEnd reports whether a column with values such as failed may say that a row was given up or withdrawn, such as status or aasm_state.
func MayEnd(column string) bool { return state.MatchString(strings.ToLower(column)) && MayMark(column) }

// LooksSpan reports whether the name of a column suggests how long a row must wait, such as delay_seconds. unit is its unit in SQL; seconds if the name has none.
func LooksSpan(column string) (unit string, ok bool) {
	found := span.FindStringSubmatch(letters(column))
	if found == nil {
		return "", false
	}
	switch unit := found[1]; {
	case strings.HasPrefix(unit, "ms"), strings.HasPrefix(unit, "milli"):
		return "millisecond", true
	case strings.HasPrefix(unit, "m"):
		return "minute", true
	case strings.HasPrefix(unit, "h"):
		return "hour", true
	case strings.HasPrefix(unit, "d"):
		return "day", true
	}
	return "second", true
}

// UnixAhead returns how many seconds ahead an integer may be for a Unix time, as far as the name of its column says: ten years if it suggests a time, one
// year if it suggests nothing, 0 for an id or a number of something.
func UnixAhead(column string) int {
	switch name := strings.ToLower(column); {
	case timed.MatchString(name):
		return 315_360_000
	case noTime.MatchString(name):
		return 0
	}
	return 31_536_000
}

// letters are those of a name, in lower case.
func letters(name string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsLetter(c) {
			return unicode.ToLower(c)
		}
		return -1
	}, name)
}
