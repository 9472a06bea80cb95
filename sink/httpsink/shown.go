package httpsink

import (
	"strings"
	"unicode"
)

// webhooks are where a URL is a secret as a whole: whoever has it may post.
var webhooks = []struct{ name, host, path string }{
	{"SLACK_WEBHOOK", "hooks.slack.com", "/"},
	{"DISCORD_WEBHOOK", "discord.com", "/api/webhooks/"},
	{"DISCORD_WEBHOOK", "discordapp.com", "/api/webhooks/"},
	{"TEAMS_WEBHOOK", "webhook.office.com", "/"},
	{"ZAPIER_WEBHOOK", "hooks.zapier.com", "/"},
	{"TELEGRAM_BOT", "api.telegram.org", "/bot"},
}

// firstSegment is which segment of a URL is the first of its path, behind https://host.
const firstSegment = 3

// Webhook is what an http URL is called that is a secret as a whole, as far as that is
// known of its host: SLACK_WEBHOOK. "" for others.
func Webhook(url string) string {
	scheme, rest, _ := strings.Cut(strings.ToLower(url), "://")
	authority, path, _ := strings.Cut(rest, "/")
	host, _, _ := strings.Cut(authority[strings.LastIndex(authority, "@")+1:], ":")
	for _, w := range webhooks {
		there := host == w.host || strings.HasSuffix(host, "."+w.host)
		if there && strings.HasPrefix(scheme, "http") && strings.HasPrefix("/"+path, w.path) && "/"+path != w.path {
			return w.name
		}
	}
	return ""
}

// SecretSegments are what may be a token of an http URL's path, as it is written there: of
// the template of one, too.
func SecretSegments(url string) (all []string) {
	url, _, _ = strings.Cut(url, "?")
	secret := secretIn(url)
	for i, segment := range strings.Split(url, "/") {
		if i >= firstSegment && secret(segment) {
			all = append(all, segment)
		}
	}
	return all
}

// secretIn tells which segments of the URL's path may be a token.
func secretIn(url string) func(segment string) bool {
	if Webhook(url) == "" {
		return looksSecret
	}
	return func(segment string) bool {
		return len(segment) >= minSecret && !strings.ContainsAny(segment, "{}*") && !isWord(segment)
	}
}

// isWord tells that a segment says what is there, and is no token: "services", "webhooks".
func isWord(segment string) bool {
	switch segment {
	case "services", "workflows", "triggers", "webhooks", "webhookb2", "IncomingWebhook", "hooks", "catch", "sendMessage":
		return true
	}
	return false
}

// looksSecret tells what may be a token from the words that paths are made of.
func looksSecret(segment string) bool {
	var digit, upper, lower, mark bool
	for _, c := range segment {
		digit = digit || unicode.IsDigit(c)
		upper = upper || unicode.IsUpper(c)
		lower = lower || unicode.IsLower(c)
		mark = mark || c == '-' || c == '.' || c == '_'
	}
	return len(segment) >= 16 && digit && (upper && lower || (upper || lower) && !mark) && !strings.ContainsAny(segment, "{}*")
}
