package httpsink

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// longestRetryAfter bounds what a server can ask for: a slip in a header is not to
// stop a pipeline for good. longestReset is the same where nothing was refused yet.
const (
	longestRetryAfter = 24 * time.Hour
	longestReset      = time.Hour
)

// pauses reads what an answer says about the time of the next request: for how long its
// batch waits, where it was not taken, and for how long no request is to begin.
//
// Retry-After comes first, whatever else is there. Without it a 429, and a 503, goes by
// when the quota is new, unless some of it is left; so does any answer that says
// that none is left, the last that was accepted too, so that the next is not refused.
func pauses(status int, h http.Header, now time.Time) (retry, pause time.Duration) {
	if retry = retryAfter(h, now); retry > 0 {
		if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
			pause = retry
		}
		return retry, pause
	}
	q := quotaOf(h, now)
	refused := status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
	switch {
	case q.reset <= 0 || q.known && q.left > 0 || !q.known && !refused:
		return 0, 0
	case refused || status == http.StatusForbidden: // GitHub's way to say 429
		retry = min(q.reset, longestRetryAfter)
		return retry, retry
	}
	return 0, min(q.reset, longestReset)
}

// retryAfter reads the header, seconds or a date. A date is compared with the
// server's own clock where it says the time.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil {
		return min(time.Duration(seconds)*time.Second, longestRetryAfter)
	} else if errors.Is(err, strconv.ErrRange) {
		return longestRetryAfter
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return max(0, min(at.Sub(theirs(h, now)), longestRetryAfter))
}

// theirs is the server's clock where it says the time.
func theirs(h http.Header, now time.Time) time.Time {
	if at, err := http.ParseTime(h.Get("Date")); err == nil {
		return at
	}
	return now
}

// quota is what is left of what a server lets a client do, and when it is new.
type quota struct {
	known bool // how much is left
	left  float64
	reset time.Duration
}

// quotaOf reads the headers that are in use. Of several limits the one counts that is
// used up for the longest.
//
//	RateLimit: "default";r=0;t=30                 draft-ietf-httpapi-ratelimit-headers-08 and later
//	RateLimit: limit=100, remaining=0, reset=30   -07
//	RateLimit-Remaining, RateLimit-Reset          -06 and earlier, seconds
//	X-RateLimit-Remaining, X-RateLimit-Reset      GitHub and many others: seconds, or the time as Unix seconds or milliseconds
//	X-Rate-Limit-Remaining, X-Rate-Limit-Reset    Okta, X
//	X-RateLimit-Reset-After                       Discord: seconds
//	X-HubSpot-RateLimit-Remaining, -Interval-Milliseconds
func quotaOf(h http.Header, now time.Time) quota {
	var worst quota
	add := func(q quota) {
		usedUp := q.known && q.left <= 0
		if q.reset > 0 && (worst == quota{} || usedUp && (!worst.known || worst.left > 0 || q.reset > worst.reset)) {
			worst = q
		}
	}
	for _, q := range standardQuotas(h.Values("RateLimit")) {
		add(q)
	}
	for _, prefix := range []string{"RateLimit-", "X-RateLimit-", "X-Rate-Limit-"} {
		var q quota
		q.left, q.known = number(h.Get(prefix + "Remaining"))
		q.reset = resetIn(h.Get(prefix+"Reset"), theirs(h, now))
		if after, ok := number(h.Get(prefix + "Reset-After")); ok {
			q.reset = seconds(after)
		}
		add(q)
	}
	var q quota
	q.left, q.known = number(h.Get("X-HubSpot-RateLimit-Remaining"))
	if interval, ok := number(h.Get("X-HubSpot-RateLimit-Interval-Milliseconds")); ok {
		q.reset = seconds(interval / 1000)
	}
	add(q)
	return worst
}

// standardQuotas reads the header RateLimit in both its forms.
func standardQuotas(values []string) (all []quota) {
	var old quota
	for policy := range strings.SplitSeq(strings.Join(values, ","), ",") {
		var q quota
		for parameter := range strings.SplitSeq(policy, ";") {
			name, value, _ := strings.Cut(strings.TrimSpace(parameter), "=")
			n, ok := number(value)
			switch {
			case !ok:
			case name == "r":
				q.left, q.known = n, true
			case name == "t":
				q.reset = seconds(n)
			case name == "remaining":
				old.left, old.known = n, true
			case name == "reset":
				old.reset = seconds(n)
			}
		}
		all = append(all, q)
	}
	return append(all, old)
}

// resetIn reads how long, or until when: seconds, Unix seconds, Unix milliseconds, which
// their size tells apart, or a date.
func resetIn(text string, now time.Time) time.Duration {
	const (
		sinceEpoch = 1e9  // seconds: 2001; as a wait it is 31 years
		inMillis   = 1e11 // of 1973; in seconds it is the year 5138
	)
	n, ok := number(text)
	switch {
	case ok && n >= inMillis:
		return time.UnixMilli(int64(min(n, 1e15))).Sub(now)
	case ok && n >= sinceEpoch:
		return time.Unix(int64(n), 0).Sub(now)
	case ok:
		return seconds(n)
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at.Sub(now)
	}
	if at, err := http.ParseTime(text); err == nil {
		return at.Sub(now)
	}
	return 0
}

func number(text string) (float64, bool) {
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	return n, err == nil && n >= 0 && !math.IsInf(n, 0) && !math.IsNaN(n)
}

// seconds is n of them, more than which nobody is waited for.
func seconds(n float64) time.Duration {
	return time.Duration(math.Ceil(min(n, longestRetryAfter.Seconds()) * float64(time.Second)))
}
