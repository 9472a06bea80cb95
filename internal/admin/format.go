package admin

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Pending formats a count of pending events, with a ~ if it is an estimate.
func Pending(n int64) string {
	if n > buffer.PendingExact {
		return "~" + Count(n)
	}
	return Count(n)
}

// Count formats a number: 12,345.
func Count(n int64) string {
	text := strconv.FormatInt(n, 10)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// Age formats a duration in its two largest units: 850ms, 12s, 3m 20s, 5h 1m, 2d 4h.
func Age(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	case d < time.Minute:
		return strconv.FormatFloat(d.Truncate(100*time.Millisecond).Seconds(), 'f', -1, 64) + "s"
	case d < time.Hour:
		return fmt.Sprintf("%dm %ds", d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%dh %dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd %dh", d/day, d%day/time.Hour)
}

// roughly formats a duration in its largest unit: 12s, 3m, 5h, 2d.
func roughly(d time.Duration) string {
	largest, _, _ := strings.Cut(Age(max(time.Second, d.Truncate(time.Second))), " ")
	return largest
}
