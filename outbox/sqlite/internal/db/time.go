package db

import (
	"fmt"
	"strconv"
	"time"
)

// TimeFormat is how strftime('%Y-%m-%dT%H:%M:%fZ') writes a time.
const TimeFormat = "2006-01-02T15:04:05.000Z"

// ParseTime reads a time in TimeFormat. To older versions of SQLite, which the application may have, the 30th of February is a
// time, and 24:30 is, too. ParseTime returns the time that lies as far after the last one that exists.
func ParseTime(text string) (time.Time, error) {
	at, err := time.Parse(TimeFormat, text)
	if err == nil {
		return at, nil
	}
	var year, month, day, hour, minute, second, ms int
	if _, notOne := fmt.Sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ", &year, &month, &day, &hour, &minute, &second, &ms); notOne != nil {
		return time.Time{}, err
	}
	return time.Date(year, time.Month(month), day, hour, minute, second, ms*int(time.Millisecond), time.UTC), nil
}

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
