package natssink_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/sink/natssink"
)

// warns fails unless the sink warns once for each of these, with all its words.
func warns(t *testing.T, c natssink.Config, want ...[]string) {
	t.Helper()
	got := open(t, c).Warnings(within(t, patience))
	if len(got) != len(want) {
		t.Errorf("%q: got %q, want %d warnings", c.Subject, got, len(want))
		return
	}
	all := strings.Join(got, "\n")
	for i := range want {
		for _, words := range want[i] {
			if !strings.Contains(all, words) {
				t.Errorf("%q: got %q, want one that says %q", c.Subject, got, words)
			}
		}
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	url := testserver.NATS(t).URL
	client := connect(t, url)
	for name, c := range map[string]jetstream.StreamConfig{
		"ORDERS":   {Subjects: []string{"orders.>"}},
		"LONG":     {Subjects: []string{"long.>"}, Duplicates: 6 * time.Minute},
		"FRESH":    {Subjects: []string{"fresh.*"}, MaxAge: 3 * time.Minute},
		"DEAF":     {Subjects: []string{"deaf"}, NoAck: true, Duplicates: time.Hour},
		"ELSEWISE": {Subjects: []string{"shop.eu.new.v1"}},
	} {
		c.Name = name
		addStream(t, client, c)
	}
	orders := []string{"stream ORDERS", "2m0s", "6m0s", "nats stream edit ORDERS --dupe-window 6m0s"}
	elsewise := []string{"nats stream edit ELSEWISE --dupe-window 6m0s"}
	fresh := []string{"nats stream edit FRESH --max-age 6m0s --dupe-window 6m0s"}
	deaf := []string{"stream DEAF acknowledges nothing", "nats stream edit DEAF --ack"}
	for subject, want := range map[string][][]string{
		"orders.new":      {orders},
		"orders.{topic}":  {orders},
		"long.{topic}":    nil,
		"long.all":        nil,
		"fresh.{key}":     {fresh},
		"deaf":            {deaf},
		"shop.{topic}.v1": {elsewise}, // a topic of eu.new
		"shop.{topic}":    {elsewise},
		"{topic}":         {orders, elsewise, fresh, deaf},
		"none":            {{`no stream takes the subject "none"`, "nats stream add NAME --subjects 'none' --dupe-window 6m0s"}},
		"none.{topic}":    nil, // one may be made when there are topics
	} {
		warns(t, natssink.Config{URL: url, Subject: subject, ResendWithin: 6 * time.Minute}, want...)
	}
	warns(t, natssink.Config{URL: url, Subject: "orders.new"})
	warns(t, natssink.Config{URL: url, Subject: "none", Core: true, ResendWithin: time.Hour})
}

func TestWarningsWithoutLeaveToAsk(t *testing.T) {
	t.Parallel()
	url := testserver.NATS(t, restricted([]string{"orders.>"}, []string{"_INBOX.>"})).URL
	addStream(t, connect(t, as("all:pw", url)), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	began := time.Now()
	warns(t, natssink.Config{URL: as("relay:pw", url), Subject: "orders.{topic}", ResendWithin: 6 * time.Minute},
		[]string{"no leave to ask", "$JS.API.STREAM.LIST", "6m0s"})
	if took := time.Since(began); took > soon {
		t.Errorf("it took %v", took)
	}
}

func TestWarningsWithoutAServer(t *testing.T) {
	t.Parallel()
	warns(t, natssink.Config{URL: deadURL(t), ResendWithin: time.Minute}, []string{"cannot tell"})
	warns(t, natssink.Config{URL: testserver.CoreNATS(t).URL, ResendWithin: time.Minute}, []string{"cannot tell", "JetStream"})
}

// TestAdvice: streams that could take fast batches are named, to whoever asks.
func TestAdvice(t *testing.T) {
	t.Parallel()
	url := testserver.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "all", Password: "pw"}, {Username: "relay", Password: "pw", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Allow: []string{"orders.>"}},
		}}}
	}).URL
	client := connect(t, as("all:pw", url))
	addStream(t, client, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	addStream(t, client, jetstream.StreamConfig{Name: "FAST", Subjects: []string{"fast"}, AllowBatchPublish: true})
	addStream(t, client, jetstream.StreamConfig{Name: "DEAF", Subjects: []string{"deaf"}, NoAck: true})
	addStream(t, client, jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other"}})
	advice := func(user, subject string, core bool) string {
		s := open(t, natssink.Config{URL: as(user, url), Subject: subject, Core: core})
		return strings.Join(s.Advice(within(t, soon)), "\n")
	}
	got := advice("all:pw", "{topic}", false)
	if !strings.Contains(got, "nats stream edit ORDERS --allow-fast") || !strings.Contains(got, "nats stream edit OTHER") ||
		strings.Contains(got, "FAST") || strings.Contains(got, "DEAF") {
		t.Errorf("it says %q", got)
	}
	for _, none := range []string{
		advice("all:pw", "fast", false), advice("all:pw", "nowhere", false), advice("all:pw", "orders.x", true), advice("relay:pw", "orders.x", false),
	} {
		if none != "" {
			t.Errorf("it says %q", none)
		}
	}
}
