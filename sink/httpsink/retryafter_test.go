package httpsink

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestRetryDelays has the headers of APIs as in their documentation.
func TestRetryDelays(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) // 1767323045
	const s, m = time.Second, time.Minute
	for name, c := range map[string]struct {
		status       int
		headers      string
		retry, pause time.Duration
	}{
		"nothing":                              {200, "", 0, 0},
		"nothing, 429":                         {429, "", 0, 0},
		"Retry-After, 429":                     {429, "Retry-After: 7", 7 * s, 7 * s},
		"Retry-After, 503":                     {503, "Retry-After: 7", 7 * s, 7 * s},
		"Retry-After, 500":                     {500, "Retry-After: 7", 7 * s, 0},
		"Retry-After, 301":                     {301, "Retry-After: 7", 7 * s, 0},
		"Retry-After comes first":              {429, "Retry-After: 7|X-RateLimit-Reset: 60|RateLimit: limit=1, remaining=0, reset=90", 7 * s, 7 * s},
		"Retry-After that is nonsense":         {429, "Retry-After: soon|X-RateLimit-Reset: 60", m, m},
		"Retry-After of 0":                     {429, "Retry-After: 0|X-RateLimit-Reset: 60", m, m},
		"seconds":                              {429, "X-RateLimit-Reset: 60", m, m},
		"seconds with a point":                 {429, "X-Ratelimit-Remaining: 0.0|X-Ratelimit-Reset: 1.5", 1500 * time.Millisecond, 1500 * time.Millisecond},
		"Unix seconds":                         {429, "X-Rate-Limit-Reset: 1767323105", m, m},
		"Unix milliseconds":                    {429, "X-RateLimit-Reset: 1767323105000", m, m},
		"a date":                               {429, "X-RateLimit-Reset: Fri, 02 Jan 2026 03:05:05 GMT", m, m},
		"a date, RFC 3339":                     {429, "X-RateLimit-Reset: 2026-01-02T03:05:05Z", m, m},
		"by the server's clock":                {429, "X-RateLimit-Reset: 1767323105|Date: Fri, 02 Jan 2026 03:05:00 GMT", 5 * s, 5 * s},
		"long ago":                             {429, "X-RateLimit-Reset: 1767320000", 0, 0},
		"nonsense":                             {429, "X-RateLimit-Reset: -5|RateLimit: x, =, ;;r=|RateLimit-Reset: NaN|X-Rate-Limit-Reset: 1e999", 0, 0},
		"not before next year":                 {429, "X-RateLimit-Reset: 1798859045", time.Hour, time.Hour},
		"not before next year, but accepted":   {200, "X-RateLimit-Remaining: 0|X-RateLimit-Reset: 1798859045", 0, time.Hour},
		"503":                                  {503, "X-RateLimit-Reset: 60", m, m},
		"503 with quota left":                  {503, "X-RateLimit-Remaining: 5|X-RateLimit-Reset: 60", 0, 0},
		"429 with quota left, of another kind": {429, "X-RateLimit-Remaining: 5|X-RateLimit-Reset: 60", 0, 0},
		"500":                                  {500, "X-RateLimit-Reset: 60", 0, 0},
		"GitHub, 403":                          {403, "X-RateLimit-Limit: 60|X-RateLimit-Remaining: 0|X-RateLimit-Reset: 1767323105|X-RateLimit-Resource: core", m, m},
		"GitHub, 403 for another reason":       {403, "X-RateLimit-Limit: 60|X-RateLimit-Remaining: 59|X-RateLimit-Reset: 1767323105", 0, 0},
		"403 without a quota":                  {403, "X-RateLimit-Reset: 60", 0, 0},
		"the last that was accepted":           {200, "X-RateLimit-Remaining: 0|X-RateLimit-Reset: 30", 0, 30 * s},
		"the last that was refused":            {422, "X-RateLimit-Remaining: 0|X-RateLimit-Reset: 30", 0, 30 * s},
		"accepted":                             {200, "X-RateLimit-Remaining: 1|X-RateLimit-Reset: 30", 0, 0},
		"accepted, and nothing said":           {200, "X-RateLimit-Reset: 30", 0, 0},
		"draft 06":                             {200, "RateLimit-Limit: 100, 100;w=60|RateLimit-Remaining: 0|RateLimit-Reset: 50", 0, 50 * s},
		"draft 07":                             {200, "RateLimit: limit=100, remaining=0, reset=50", 0, 50 * s},
		"draft 07, some left":                  {200, "RateLimit: limit=100, remaining=7, reset=50", 0, 0},
		"draft 08":                             {200, `RateLimit: "default";r=0;t=30|RateLimit-Policy: "default";q=100;w=60`, 0, 30 * s},
		"draft 08, some left":                  {429, `RateLimit: "default";r=50;t=30`, 0, 0},
		"draft 08, two policies":               {200, `RateLimit: "burst";r=0;t=5, "daily";r=10;t=3000`, 0, 5 * s},
		"draft 08, both used up":               {200, `RateLimit: "burst"; r=0; t=5, "hourly"; r=0; t=3000`, 0, 3000 * s},
		"draft 08, in two lines":               {200, `RateLimit: "daily";r=10;t=3000|RateLimit: "burst";r=0;t=5`, 0, 5 * s},
		"Discord":                              {200, "X-RateLimit-Remaining: 0|X-RateLimit-Reset: 1767323105.123|X-RateLimit-Reset-After: 0.25", 0, 250 * time.Millisecond},
		"HubSpot":                              {200, "X-HubSpot-RateLimit-Max: 100|X-HubSpot-RateLimit-Remaining: 0|X-HubSpot-RateLimit-Interval-Milliseconds: 10000", 0, 10 * s},
		"HubSpot, some left":                   {200, "X-HubSpot-RateLimit-Max: 100|X-HubSpot-RateLimit-Remaining: 99|X-HubSpot-RateLimit-Interval-Milliseconds: 10000", 0, 0},
	} {
		h := http.Header{}
		for line := range strings.SplitSeq(c.headers, "|") {
			if name, value, ok := strings.Cut(line, ": "); ok {
				h.Add(name, value)
			}
		}
		if retry, pause := retryDelays(c.status, h, now); retry != c.retry || pause != c.pause {
			t.Errorf("%s: got %v and %v, want %v and %v", name, retry, pause, c.retry, c.pause)
		}
	}
}

// FuzzRetryDelays expects no pause below zero or above the maximum.
func FuzzRetryDelays(f *testing.F) {
	f.Add(200, `"default";r=0;t=30`, "0", "1767323105")
	f.Add(429, "limit=1, remaining=0, reset=9e18", "-1", "1e300")
	f.Fuzz(func(t *testing.T, status int, standard, remaining, reset string) {
		h := http.Header{}
		h.Set("RateLimit", standard)
		h.Set("X-RateLimit-Remaining", remaining)
		h.Set("X-RateLimit-Reset", reset)
		retry, pause := retryDelays(status, h, time.Unix(1767323045, 0))
		if retry < 0 || retry > maxRetryAfter || pause < 0 || pause > maxRetryAfter {
			t.Errorf("waits of %v and %v", retry, pause)
		}
	})
}
