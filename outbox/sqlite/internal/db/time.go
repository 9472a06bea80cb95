package db

import (
	"strconv"
	"time"
)

// TimeFormat is how strftime('%Y-%m-%dT%H:%M:%fZ') writes a time.
const TimeFormat = "2006-01-02T15:04:05.000Z"

// Seconds returns d as a modifier of SQLite's date functions. It rounds up: the clock there counts
// milliseconds, and a lease must not end early.
func Seconds(d time.Duration) string {
	ms := (d + time.Millisecond - 1) / time.Millisecond
	return strconv.FormatFloat(float64(ms)/1000, 'f', 3, 64) + " seconds"
}

// LeaseEnd returns when a lease that was requested at start ends. SQLite's clock drops fractions of
// a millisecond, so the database's end may lie that much earlier than the local one.
func LeaseEnd(start time.Time, lease time.Duration) time.Time {
	return start.Add(lease - time.Millisecond)
}
