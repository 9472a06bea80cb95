package scaffold

import (
	"strings"
	"testing"
)

// No secret of a URL is in what is written, and the variables bring it back.
func TestMasked(t *testing.T) {
	t.Parallel()
	env := func(name string) (string, bool) {
		value, set := map[string]string{"PGPASSWORD": "another", "REDIS_PASSWORD": "s3cret"}[name]
		return value, set
	}
	for _, try := range []struct{ url, kind, want string }{
		{"postgres://app@db/app", "source", "postgres://app@db/app"},
		{"postgres://app:s3cret@db/app", "source", "postgres://app:${SOURCE_PGPASSWORD}@db/app"},
		{"postgres://app:s%2F3cret@h1,h2:5433/app?sslmode=require", "source", "postgres://app:${SOURCE_PGPASSWORD}@h1,h2:5433/app?sslmode=require"},
		{"postgres://app:s3c@ret@db/app", "source", "postgres://app:${SOURCE_PGPASSWORD}@db/app"},
		{"postgres://db/app?user=app&password=s3cret&sslpassword=s3cret", "source", "postgres://db/app?user=app&password=${DATABASE_PASSWORD}&sslpassword=${DATABASE_SSLPASSWORD}"},
		{"sqlite:///var/app.db", "source", "sqlite:///var/app.db"},
		{"redis://:s3cret@cache/0", "sink", "redis://:${REDIS_PASSWORD}@cache/0"},
		{"redis+sentinel://u:s3cret@h1,h2/main/0", "sink", "redis+sentinel://u:${REDIS_PASSWORD}@h1,h2/main/0"},
		{"nats://s3cret@h", "sink", "nats://${NATS_TOKEN}@h"},
		{"tls+nats://u:s3cret@h", "sink", "tls+nats://u:${NATS_PASSWORD}@h"},
		{"https://s3cret@h/{topic}?hapikey=s3cret&tenant=7&key={key}", "sink", "https://${API_TOKEN}@h/{topic}?hapikey=${HAPIKEY}&tenant=7&key={key}"},
		{"https://hooks.slack.com/services/T/B/s3cret", "sink", "${SLACK_WEBHOOK_URL}"},
		{"https://discord.com/api/webhooks/1/s3cret", "sink", "${DISCORD_WEBHOOK_URL}"},
		{"https://discordapp.com/api/webhooks/1/s3cret", "sink", "${DISCORD_WEBHOOK_URL}"},
		{"https://x.webhook.office.com/webhookb2/s3cret", "sink", "${TEAMS_WEBHOOK_URL}"},
		{"https://hooks.zapier.com/hooks/catch/1/s3cret", "sink", "${ZAPIER_WEBHOOK_URL}"},
		{"https://api.telegram.org/bot1:s3cret/sendMessage", "sink", "${TELEGRAM_BOT_URL}"},
		{"https://h/v1/s3cretS3CRETs3cret/s3cretS3CRETs3cret2/in", "sink", "https://h/v1/${API_PATH_TOKEN}/${API_PATH_TOKEN_3}/in"},
		{"https://h/in?p=s3cret&pwd=s3cret&jwt=s3cret&Bearer=s3cret&odd=s3cret", "sink", "https://h/in?p=${P}&pwd=${PWD}&jwt=${JWT}&Bearer=${BEARER}&odd=${ODD}"},
		{
			"https://h/v61.0/crm-objects-2024-01/batch?api-version=2024-01&tenant_id=acme-1&dry=true&format=json&n=100", "sink",
			"https://h/v61.0/crm-objects-2024-01/batch?api-version=2024-01&tenant_id=acme-1&dry=true&format=json&n=100",
		},
		{"postgres://db/app?application_name=relay&pwd=s3cret", "source", "postgres://db/app?application_name=relay&pwd=${DATABASE_PWD}"},
		{"stdout:", "sink", "stdout:"},
	} {
		u := Masked(try.url, try.kind, env)
		if u.Text != try.want {
			t.Errorf("%s is written %s, %s was expected", try.url, u.Text, try.want)
		}
		for _, v := range u.Variables {
			if v.What == "" || strings.Contains(v.What, "s3cret") || !strings.Contains(u.Text, "${"+v.Name+"}") {
				t.Errorf("%s: the variable %+v", try.url, v)
			}
			if !strings.Contains(v.Value, "s3c") && v.Value != "s/3cret" {
				t.Errorf("%s: the value of %s is %s", try.url, v.Name, v.Value)
			}
		}
	}
}

func TestNameOf(t *testing.T) {
	t.Parallel()
	for table, want := range map[string]string{
		"outbox_events": "events", "contact_activity_events": "contact_activity_events", "app.Orders": "orders",
		`"My Shop"."Odd.Events"`: "odd_events", `"%"`: "events",
	} {
		if got := NameOf(table); got != want {
			t.Errorf("the pipeline of %s is called %s, %s was expected", table, got, want)
		}
	}
}
