package config

import (
	"fmt"
	"testing"

	"github.com/outboxrelay/relay/outbox"
)

// Who gave a schedule gets it; who wrote how he is to be woken too, is.
func TestOpen_PassesWake(t *testing.T) {
	t.Parallel()
	const postgres, sqlite = "postgres://app@db/app", "sqlite:///var/lib/relay/app.db"
	for _, c := range []struct {
		url, keys string
		poll      bool
		bell      bool
		mode      outbox.WakeMode
	}{
		{postgres, "", true, true, outbox.WakeAuto},
		{postgres, "schedule: '@every 1s'", true, true, outbox.WakeAuto},
		{postgres, "schedule: '@every 5s'", false, false, outbox.WakePoll},
		{postgres, "schedule: '0 2 * * *', wake: auto", false, false, outbox.WakePoll},
		{postgres, "eager: false", false, false, outbox.WakePoll},
		{postgres, "wake: poll", true, false, outbox.WakePoll},
		{postgres, "wake: notify", true, true, outbox.WakeNotify},
		{postgres, "schedule: '0 2 * * *', wake: poll", true, false, outbox.WakePoll},
		{postgres, "schedule: '0 2 * * *', wake: notify", true, true, outbox.WakeNotify},
		{sqlite, "", true, false, outbox.WakeAuto},
		{sqlite, "schedule: '@every 5s'", false, false, outbox.WakePoll},
		{sqlite, "schedule: '@every 5s', wake: poll", true, false, outbox.WakePoll},
	} {
		t.Run(c.url[:6]+" "+c.keys, func(t *testing.T) {
			t.Parallel()
			keys := c.keys
			if keys != "" {
				keys += ", "
			}
			text := fmt.Sprintf("pipelines: [{name: a, %ssource: {url: '%s'}, sink: {url: 'stdout:'}}]", keys, c.url)
			conf, err := Parse("relay.yaml", []byte(text), lookup)
			if err != nil {
				t.Fatal(err)
			}
			p := &conf.Pipelines[0]
			b, err := p.OpenBuffer("test")
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			poll, bell := p.wakes(b, nil)
			if poll != c.poll || (bell != nil) != c.bell || p.wake() != c.mode {
				t.Errorf("poll %t, bell %t, mode %s", poll, bell != nil, p.wake())
			}
		})
	}
}
