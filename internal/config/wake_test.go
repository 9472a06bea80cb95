package config

import (
	"fmt"
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Who gave a schedule gets it; who wrote how he is to be woken too, is.
func TestOpen_PassesWake(t *testing.T) {
	t.Parallel()
	const postgres, sqlite = "postgres://app@db/app", "sqlite:///var/lib/relay/app.db"
	for _, c := range []struct {
		url, keys string
		poll      bool
		listens   bool
		mode      buffer.WakeMode
	}{
		{postgres, "", true, true, buffer.WakeAuto},
		{postgres, "schedule: '@every 1s'", true, true, buffer.WakeAuto},
		{postgres, "schedule: '@every 5s'", false, false, buffer.WakePoll},
		{postgres, "schedule: '0 2 * * *', wake: auto", false, false, buffer.WakePoll},
		{postgres, "eager: false", false, false, buffer.WakePoll},
		{postgres, "wake: poll", true, false, buffer.WakePoll},
		{postgres, "wake: notify", true, true, buffer.WakeNotify},
		{postgres, "schedule: '0 2 * * *', wake: poll", true, false, buffer.WakePoll},
		{postgres, "schedule: '0 2 * * *', wake: notify", true, true, buffer.WakeNotify},
		{sqlite, "", true, false, buffer.WakeAuto},
		{sqlite, "schedule: '@every 5s'", false, false, buffer.WakePoll},
		{sqlite, "schedule: '@every 5s', wake: poll", true, false, buffer.WakePoll},
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
			poll, listener := p.wakes(b, nil)
			if poll != c.poll || (listener != nil) != c.listens || p.wake() != c.mode {
				t.Errorf("poll %t, listener %t, mode %s", poll, listener != nil, p.wake())
			}
		})
	}
}
