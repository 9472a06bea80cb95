package natssink

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
)

func TestMatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		filter, subject string
		want            bool
	}{
		{"a", "a", true},
		{"a", "b", false},
		{"a", "a.b", false},
		{"a.b", "a", false},
		{"a.*", "a.b", true},
		{"a.*", "a", false},
		{"a.*", "a.b.c", false},
		{"*.b", "a.b", true},
		{"*.b", "a.c", false},
		{"a.>", "a", false},
		{"a.>", "a.b", true},
		{"a.>", "a.b.c", true},
		{"a.>", "b.c", false},
		{"*.*.>", "a.b", false},
		{"*.*.>", "a.b.c.d", true},
		{">", "a", true},
		{"ab", "a", false},
		{"a", "ab", false},
	} {
		if got := matches(c.filter, c.subject); got != c.want {
			t.Errorf("%s, %s: got %v", c.filter, c.subject, got)
		}
	}
}

func TestDeniedSubject(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`Permissions Violation for Publish to "a.b"`:                         "a.b",
		`Permissions Violation for Publish to "größe\"x"`:                    `größe"x`,
		`Permissions Violation for Subscription to "_INBOX.x.>" using queue`: "_INBOX.x.>",
		`Permissions Violation for Publish to`:                               "",
		`Permissions Violation for Publish to "half`:                         "",
	} {
		if got := deniedSubject(fmt.Errorf("%w: %s", nats.ErrPermissionViolation, text)); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
