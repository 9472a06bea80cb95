package main

import (
	"testing"

	"github.com/outboxrelay/relay/internal/scaffold"
)

// TestAShortSecretLeavesTextReadable: one letter that is a password is in every word.
func TestAShortSecretLeavesTextReadable(t *testing.T) {
	t.Parallel()
	same := func(text string) string { return text }
	for password, want := range map[string]string{
		"y": "relay: looking at y", "s3cr": "relay: looking at ***",
	} {
		u := scaffold.URL{Full: "postgres://app:" + password + "@db/app", Variables: []scaffold.Variable{{Name: "PGPASSWORD", Value: password}}}
		for _, u := range []scaffold.URL{u, {Full: u.Full}} {
			if got := redactor(u, same)("relay: looking at " + password); got != want {
				t.Errorf("with password %q it says %q, want %q", password, got, want)
			}
		}
	}
}
