package httpsink

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxRetryAfter bounds what a server can ask for, so that a mistake in a header does not stop a pipeline for
// long.
const maxRetryAfter = time.Hour

// retryDelays reads when the next request may be sent. retry is how long the response's batch waits if it
// was not accepted; pause is how long no request may begin.
//
// Retry-After has priority. Without it, a 429 or 503 waits until the quota is reset, unless some of it is
// left. Any other response that says that nothing is left pauses too, so that the next request is not
// rejected.
func retryDelays(status int, h http.Header, now time.Time) (retry, pause time.Duration) {
	isLimited := status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
	if retry = retryAfter(h, now); retry > 0 {
		if isLimited {
			pause = retry
		}
		return retry, pause
	}
	q := quotaOf(h, now)
	switch {
	case q.reset <= 0 || q.left > 0 || q.left < 0 && !isLimited:
		return 0, 0
	case isLimited || status == http.StatusForbidden: // GitHub sends 403 instead of 429
		retry = min(q.reset, maxRetryAfter)
		return retry, retry
	}
	return 0, min(q.reset, maxRetryAfter)
}

// retryAfter reads Retry-After, which is seconds or a date. A date is compared with the server's own
// clock, if the response has a Date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if n := number(text); n >= 0 {
		return seconds(n)
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return max(0, min(at.Sub(serverTime(h, now)), maxRetryAfter))
}

// serverTime is the response's Date, or now.
func serverTime(h http.Header, now time.Time) time.Time {
	if at, err := http.ParseTime(h.Get("Date")); err == nil {
		return at
	}
	return now
}

// quota is how many requests a server still accepts, and how long until it is reset.
type quota struct {
	left  float64 // negative if it is not known
	reset time.Duration
}

// quotaOf reads the headers in use. Of several quotas it returns the one that is used up for the longest
// time.
//
//	RateLimit: "default";r=0;t=30                 draft-ietf-httpapi-ratelimit-headers-08 and later
//	RateLimit: limit=100, remaining=0, reset=30   -07
//	RateLimit-Remaining, RateLimit-Reset          -06 and earlier, seconds
//	X-RateLimit-Remaining, X-RateLimit-Reset      GitHub and many others: seconds, or the time as Unix seconds or milliseconds
//	X-Rate-Limit-Remaining, X-Rate-Limit-Reset    Okta, X
//	X-RateLimit-Reset-After                       Discord: seconds
//	X-HubSpot-RateLimit-Remaining, -Interval-Milliseconds
func quotaOf(h http.Header, now time.Time) quota {
	worst := quota{left: -1}
	add := func(q quota) {
		if q.reset > 0 && (worst.reset == 0 || q.left == 0 && (worst.left != 0 || q.reset > worst.reset)) {
			worst = q
		}
	}
	draft07 := quota{left: -1}
	for policy := range strings.SplitSeq(strings.Join(h.Values("RateLimit"), ","), ",") {
		q := quota{left: -1}
		for parameter := range strings.SplitSeq(policy, ";") {
			name, value, _ := strings.Cut(strings.TrimSpace(parameter), "=")
			switch n := number(value); {
			case n < 0:
			case name == "r":
				q.left = n
			case name == "t":
				q.reset = seconds(n)
			case name == "remaining":
				draft07.left = n
			case name == "reset":
				draft07.reset = seconds(n)
			}
		}
		add(q)
	}
	add(draft07)
	for _, prefix := range []string{"RateLimit-", "X-RateLimit-", "X-Rate-Limit-"} {
		reset := seconds(number(h.Get(prefix + "Reset-After")))
		if reset <= 0 {
			reset = resetIn(h.Get(prefix+"Reset"), serverTime(h, now))
		}
		add(quota{number(h.Get(prefix + "Remaining")), reset})
	}
	add(quota{number(h.Get("X-HubSpot-RateLimit-Remaining")), seconds(number(h.Get("X-HubSpot-RateLimit-Interval-Milliseconds")) / 1000)})
	return worst
}

// resetIn reads seconds, Unix seconds, Unix milliseconds (distinguished by their size) or a date.
func resetIn(text string, now time.Time) time.Duration {
	const (
		sinceEpoch = 1e9  // seconds: 2001; as a wait it is 31 years
		inMillis   = 1e11 // of 1973; in seconds it is the year 5138
	)
	switch n := number(text); {
	case n >= inMillis:
		return time.UnixMilli(int64(min(n, 1e15))).Sub(now)
	case n >= sinceEpoch:
		return time.Unix(int64(n), 0).Sub(now)
	case n >= 0:
		return seconds(n)
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		at, err = http.ParseTime(text)
	}
	if err != nil {
		return 0
	}
	return at.Sub(now)
}

// number returns -1 if the text is not a number, or a negative one.
func number(text string) float64 {
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || n < 0 || math.IsNaN(n) || math.IsInf(n, 0) {
		return -1
	}
	return n
}

// seconds is a duration of at most maxRetryAfter.
func seconds(n float64) time.Duration {
	return time.Duration(math.Ceil(min(n, maxRetryAfter.Seconds()) * float64(time.Second)))
}
