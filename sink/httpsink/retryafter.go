package httpsink

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxRetryAfter and maxQuotaReset bound what a server can ask for, so that a mistake in a header does not
// stop a pipeline for good. maxQuotaReset is for responses that rejected nothing.
const (
	maxRetryAfter = 24 * time.Hour
	maxQuotaReset = time.Hour
)

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
	case q.reset <= 0 || q.known && q.left > 0 || !q.known && !isLimited:
		return 0, 0
	case isLimited || status == http.StatusForbidden: // GitHub sends 403 instead of 429
		retry = min(q.reset, maxRetryAfter)
		return retry, retry
	}
	return 0, min(q.reset, maxQuotaReset)
}

// retryAfter reads Retry-After, which is seconds or a date. A date is compared with the server's own
// clock, if the response has a Date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	} else if errors.Is(err, strconv.ErrRange) {
		return maxRetryAfter
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
	left  float64
	known bool // left is known
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
		q.reset = resetIn(h.Get(prefix+"Reset"), serverTime(h, now))
		if after, ok := number(h.Get(prefix + "Reset-After")); ok {
			q.reset = seconds(after)
		}
		add(q)
	}
	var hubSpot quota
	hubSpot.left, hubSpot.known = number(h.Get("X-HubSpot-RateLimit-Remaining"))
	if interval, ok := number(h.Get("X-HubSpot-RateLimit-Interval-Milliseconds")); ok {
		hubSpot.reset = seconds(interval / 1000)
	}
	add(hubSpot)
	return worst
}

// standardQuotas reads both forms of the header RateLimit.
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

// resetIn reads seconds, Unix seconds, Unix milliseconds (told apart by their size) or a date.
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

// seconds is a duration of at most maxRetryAfter.
func seconds(n float64) time.Duration {
	return time.Duration(math.Ceil(min(n, maxRetryAfter.Seconds()) * float64(time.Second)))
}
