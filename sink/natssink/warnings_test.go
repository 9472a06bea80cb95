package natssink_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/sink/natssink"
)

// expectWarnings fails the test unless there is one warning for each of these, with all its words.
func expectWarnings(t *testing.T, c natssink.Config, want ...[]string) {
	t.Helper()
	got := open(t, c).Warnings(testkit.Timeout(t, sendTimeout))
	if len(got) != len(want) {
		t.Errorf("%q: got %q, want %d warnings", c.Subject, got, len(want))
		return
	}
	all := strings.Join(got, "\n")
	for i := range want {
		for _, words := range want[i] {
			if !strings.Contains(all, words) {
				t.Errorf("%q: got %q, want one that contains %q", c.Subject, got, words)
			}
		}
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	url := testserver.NATS(t).URL
	client := connect(t, url)
	for name, c := range map[string]jetstream.StreamConfig{
		"ORDERS": {Subjects: []string{"orders.>"}},
		"LONG":   {Subjects: []string{"long.>"}, Duplicates: 6 * time.Minute},
		"FRESH":  {Subjects: []string{"fresh.*"}, MaxAge: 3 * time.Minute},
		"NOACK":  {Subjects: []string{"noack"}, NoAck: true, Duplicates: time.Hour},
		"SHOP":   {Subjects: []string{"shop.eu.new.v1"}},
		"MEMORY": {Subjects: []string{"memory"}, Storage: jetstream.MemoryStorage, Duplicates: time.Hour},
		"ASYNC":  {Subjects: []string{"async"}, PersistMode: jetstream.AsyncPersistMode, Duplicates: time.Hour},
	} {
		c.Name = name
		addStream(t, client, c)
	}
	orders := []string{"stream ORDERS", "2m0s", "6m0s", "nats stream edit ORDERS --dupe-window 6m0s"}
	memory := []string{"stream MEMORY is in memory", "a restart of its server loses", "nats stream add MEMORY --storage file"}
	async := []string{"stream ASYNC has persist_mode async", "a crash of the server loses some"}
	shop := []string{"nats stream edit SHOP --dupe-window 6m0s"}
	fresh := []string{"nats stream edit FRESH --max-age 6m0s --dupe-window 6m0s"}
	noAck := []string{"stream NOACK sends no acknowledgements", "nats stream edit NOACK --ack"}
	for subject, want := range map[string][][]string{
		"orders.new":      {orders},
		"orders.{topic}":  {orders},
		"long.{topic}":    nil,
		"long.all":        nil,
		"fresh.{key}":     {fresh},
		"noack":           {noAck},
		"memory":          {memory},
		"async":           {async},
		"shop.{topic}.v1": {shop}, // for example the topic eu.new
		"shop.{topic}":    {shop},
		"{topic}":         {orders, shop, fresh, noAck, memory, async},
		"none":            {{`no stream takes subject "none"`, "nats stream add NAME --subjects 'none' --dupe-window 6m0s"}},
		"none.{topic}":    nil, // a stream may be created once there are topics
	} {
		expectWarnings(t, natssink.Config{URL: url, Subject: subject, ResendWithin: 6 * time.Minute}, want...)
	}
	expectWarnings(t, natssink.Config{URL: url, Subject: "orders.new"})
	core := natssink.Config{URL: url, Subject: "none", Core: true, ResendWithin: time.Hour}
	expectWarnings(t, core, []string{"core NATS stores nothing"})
	testkit.Equal(t, "warnings without a connection", open(t, core).OfflineWarnings(), open(t, core).Warnings(t.Context()))
	testkit.Equal(t, "those of JetStream", open(t, natssink.Config{URL: url}).OfflineWarnings(), nil)
}

// One replica is information: nothing is wrong with it.
func TestNotes(t *testing.T) {
	t.Parallel()
	servers := startCluster(t)
	client := connect(t, servers[0].URL)
	for name, replicas := range map[string]int{"one": 1, "three": 3} {
		addStream(t, client, jetstream.StreamConfig{Name: name, Subjects: []string{name}, Replicas: replicas, Duplicates: time.Hour})
	}
	for subject, want := range map[string]int{"one": 1, "three": 0, "{topic}": 1} {
		s := open(t, natssink.Config{URL: servers[0].URL, Subject: subject})
		notes := s.Notes(testkit.Timeout(t, sendTimeout))
		testkit.Equal(t, "notes for "+subject, len(notes), want)
		if want > 0 {
			testkit.ErrorContains(t, errors.New(notes[0]), "stream one has one replica", "sync_interval", "nats stream edit one --replicas 3")
		}
		testkit.Equal(t, "warnings", s.Warnings(testkit.Timeout(t, sendTimeout)), nil)
	}
	testkit.Equal(t, "core", open(t, natssink.Config{URL: servers[0].URL, Core: true}).Notes(t.Context()), nil)
}

func TestWarnings_MayNotListStreams(t *testing.T) {
	t.Parallel()
	url := testserver.NATS(t, withPermissions([]string{"orders.>"}, []string{"_INBOX.>"})).URL
	addStream(t, connect(t, asUser("all:pw", url)), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	began := time.Now()
	expectWarnings(t, natssink.Config{URL: asUser("relay:pw", url), Subject: "orders.{topic}", ResendWithin: 6 * time.Minute},
		[]string{"may not publish to", "$JS.API.STREAM.LIST", "6m0s"})
	if took := time.Since(began); took > promptTimeout {
		t.Errorf("took %v; want less than %v", took, promptTimeout)
	}
}

func TestWarnings_NoServer(t *testing.T) {
	t.Parallel()
	expectWarnings(t, natssink.Config{URL: deadURL(t), ResendWithin: time.Minute}, []string{"cannot check"})
	expectWarnings(t, natssink.Config{URL: testserver.CoreNATS(t).URL, ResendWithin: time.Minute}, []string{"cannot check", "JetStream"})
}
