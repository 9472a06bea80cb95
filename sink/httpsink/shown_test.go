package httpsink

import (
	"slices"
	"strings"
	"testing"
)

// A token in a path is found by what it looks like, or by whose URL it is; and words are
// shown.
func TestShownPath(t *testing.T) {
	t.Parallel()
	for url, c := range map[string]struct{ webhook, shown string }{
		"https://hooks.slack.com/services/T001/B001/abcd":                {"SLACK_WEBHOOK", "https://hooks.slack.com/services/***/***/***"},
		"https://hooks.slack.com/":                                       {"", "https://hooks.slack.com/"},
		"https://discord.com/api/webhooks/1234/abcd":                     {"DISCORD_WEBHOOK", "https://discord.com/api/webhooks/***/***"},
		"https://ptb.discordapp.com:443/api/webhooks/1234/abcd?wait=1":   {"DISCORD_WEBHOOK", "https://ptb.discordapp.com:443/api/webhooks/***/***?wait=1"},
		"https://discord.com/api/v10/channels":                           {"", "https://discord.com/api/v10/channels"},
		"https://notdiscord.com/api/webhooks/1234/abcd":                  {"", "https://notdiscord.com/api/webhooks/1234/abcd"},
		"https://hooks.zapier.com/hooks/catch/1234/abcd/":                {"ZAPIER_WEBHOOK", "https://hooks.zapier.com/hooks/catch/***/***/"},
		"https://API.telegram.org/bot12:abcd/sendMessage":                {"TELEGRAM_BOT", "https://API.telegram.org/***/sendMessage"},
		"https://x.webhook.office.com/webhookb2/abcd/IncomingWebhook/ef": {"TEAMS_WEBHOOK", "https://x.webhook.office.com/webhookb2/***/IncomingWebhook/ef"},
		"https://h/v1/0123456789abcdef/{topic}?key=0123456789abcdef":     {"", "https://h/v1/***/{topic}?key=0123456789abcdef"},
		"https://h/v1/{topic}-{key}/crm-objects-2024-01-01/x":            {"", "https://h/v1/{topic}-{key}/crm-objects-2024-01-01/x"},
		"redis://hooks.slack.com/services":                               {"", "redis://hooks.slack.com/services"},
	} {
		if got := Webhook(url); got != c.webhook {
			t.Errorf("%s is taken for %q, want %q", url, got, c.webhook)
		}
		if got := ShownPath(url); got != c.shown {
			t.Errorf("%s is shown as %s, want %s", url, got, c.shown)
		}
		if got := SecretSegments(url); len(got) != strings.Count(c.shown, hidden) || slices.Contains(got, hidden) {
			t.Errorf("%s has the secrets %q", url, got)
		}
	}
}
