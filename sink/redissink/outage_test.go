package redissink_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
)

// Each server gets into a state in which it rejects all writes, and out of it again.
func TestOutage_ServerState(t *testing.T) {
	t.Parallel()
	set := func(name, value string) func(testing.TB, *redis.Client) {
		return func(t testing.TB, c *redis.Client) { testkit.NoError(t, c.ConfigSet(t.Context(), name, value).Err()) }
	}
	for code, state := range map[string]struct {
		args        []string
		enter, exit func(testing.TB, *redis.Client)
	}{
		"OOM":        {enter: set("maxmemory", "1"), exit: set("maxmemory", "0")},
		"NOREPLICAS": {enter: set("min-replicas-to-write", "1"), exit: set("min-replicas-to-write", "0")},
		"READONLY": {
			enter: func(t testing.TB, c *redis.Client) {
				testkit.NoError(t, c.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
			},
			exit: func(t testing.TB, c *redis.Client) { testkit.NoError(t, c.ReplicaOf(t.Context(), "NO", "ONE").Err()) },
		},
		"MASTERDOWN": {
			args: []string{"--replica-serve-stale-data", "no"},
			enter: func(t testing.TB, c *redis.Client) {
				testkit.NoError(t, c.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
			},
			exit: func(t testing.TB, c *redis.Client) { testkit.NoError(t, c.ReplicaOf(t.Context(), "NO", "ONE").Err()) },
		},
		"NOAUTH": {
			enter: func(t testing.TB, c *redis.Client) {
				set("requirepass", "x")(t, c)
				// Existing connections keep their permissions; a restart would close them, too.
				testkit.NoError(t, c.ClientKillByFilter(t.Context(), "SKIPME", "yes", "TYPE", "normal").Err())
			},
			exit: set("requirepass", ""),
		},
		"NOPERM": {
			enter: func(t testing.TB, c *redis.Client) {
				testkit.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "default", "-@scripting", "-rpush", "-publish").Err())
			},
			exit: func(t testing.TB, c *redis.Client) {
				testkit.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "default", "+@all").Err())
			},
		},
		"CLUSTERDOWN": {
			args:  []string{"--cluster-enabled", "yes"},
			enter: func(testing.TB, *redis.Client) {},
			exit: func(t testing.TB, c *redis.Client) {
				testkit.NoError(t, c.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
				testkit.Eventually(t, func() error { return c.Set(t.Context(), "any", "", 0).Err() })
			},
		},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			server, s, c := start(t, redissink.Config{}, state.args...)
			list := opened(t, redissink.Config{URL: server.URL, Mode: redissink.List, List: "l:{topic}"})
			b := newBatch("orders", "bills", "orders")
			state.enter(t, c)
			err := send(t, s, b)
			expectOutage(t, err, code)
			if full, access := errors.Is(err, sink.ErrFull), errors.Is(err, sink.ErrAccess); full != (code == "OOM") || access != (code == "NOAUTH") && code != "NOPERM" { // NOPERM is an error of each event
				t.Errorf("full is %v, access %v: %v", full, access, err)
			}
			expectOutage(t, send(t, list, b), code)
			state.exit(t, c)
			mustSend(t, s, b)
			mustSend(t, list, b)
			expectStream(t, c, "orders", ids(b)[0], ids(b)[2])
		})
	}
}

func TestOutage_BusyScript(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{}, "--busy-reply-threshold", "10")
	done := make(chan error, 1)
	endless := redis.NewClient(&redis.Options{Addr: c.Options().Addr, ReadTimeout: -1, MaxRetries: -1})
	go func() { done <- endless.Eval(context.WithoutCancel(t.Context()), "while true do end", nil).Err() }()
	testkit.Eventually(t, func() error {
		if err := c.Ping(t.Context()).Err(); !redis.HasErrorPrefix(err, "BUSY") {
			return fmt.Errorf("not busy yet: %w", err)
		}
		return nil
	})
	b := newBatch("orders")
	expectOutage(t, send(t, s, b), "BUSY")
	testkit.NoError(t, c.ScriptKill(t.Context()).Err())
	if err := <-done; err == nil {
		t.Error("the script ended by itself")
	}
	testkit.NoError(t, endless.Close())
	mustSend(t, s, b)
	expectStream(t, c, "orders", ids(b)...)
}

func TestOutage_Loading(t *testing.T) {
	t.Parallel()
	// Each entry of the file takes a millisecond to load; between every 1024 of
	// them the server answers.
	server, s, c := start(t, redissink.Config{}, "--key-load-delay", "1000")
	b := newBatch("orders")
	_, err := c.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for i := range 3100 {
			p.Set(t.Context(), fmt.Sprint("key", i), i, 0)
		}
		return nil
	})
	testkit.NoError(t, err)
	testkit.NoError(t, server.Stop())
	started := make(chan error, 1)
	go func() { started <- server.Start(context.WithoutCancel(t.Context())) }()
	testkit.Eventually(t, func() error {
		err := send(t, s, b)
		if !errors.Is(err, sink.ErrUnavailable) {
			t.Fatalf("got %v, want an outage", err)
		}
		if !contains(err, "LOADING") {
			return err
		}
		return nil
	})
	testkit.NoError(t, <-started)
	mustSend(t, s, b)
	expectStream(t, c, "orders", ids(b)...)
}

func TestOutage_TooFewReplicas(t *testing.T) {
	t.Parallel()
	master, s, c := start(t, redissink.Config{WaitReplicas: 1, WaitTimeout: 50 * time.Millisecond})
	b := newBatch("orders", "bills")
	expectOutage(t, send(t, s, b), "0 of 1 replicas")
	testkit.NoError(t, c.Set(t.Context(), "wrong", "", 0).Err())
	expectOutage(t, send(t, s, newBatch("orders:2", "wrong")), "")

	host, port, _ := strings.Cut(master.Addr, ":")
	replica := client(t, testserver.Redis(t, "--replicaof", host+" "+port, "--repl-diskless-sync-delay", "0"))
	testkit.Eventually(t, func() error { return send(t, s, b) })
	expectStream(t, c, "orders", ids(b)[0])
	expectStream(t, replica, "orders", ids(b)[0])

	list := opened(t, redissink.Config{URL: master.URL, Mode: redissink.List, List: "l:{topic}", WaitReplicas: 2, WaitTimeout: 50 * time.Millisecond})
	expectOutage(t, send(t, list, b), "of 2 replicas")
}

func TestOutage_WrongPasswordIsRedacted(t *testing.T) {
	t.Parallel()
	const password = "s3cret/öä"
	server := testserver.Redis(t, "--requirepass", "another")
	encoded := "redis://:s3cret%2F%C3%B6%C3%A4@"
	s := opened(t, redissink.Config{URL: strings.Replace(server.URL, "redis://", encoded, 1)})
	for _, err := range []error{send(t, s, newBatch("orders")), s.Check(t.Context())} {
		expectOutage(t, err, "WRONGPASS")
		if !errors.Is(err, sink.ErrAccess) {
			t.Errorf("sink.ErrAccess is not found in %v", err)
		}
	}

	// A server without AUTH and HELLO echoes the arguments.
	echo := testserver.Redis(t, "--rename-command", "AUTH", "", "--rename-command", "HELLO", "", "--rename-command", "INFO", "")
	s = opened(t, redissink.Config{URL: strings.Replace(echo.URL, "redis://", encoded, 1)})
	texts := s.Warnings(t.Context())
	for _, err := range []error{send(t, s, newBatch("orders", "bills")), s.Check(t.Context())} {
		expectOutage(t, err, "***")
		texts = append(texts, err.Error())
	}
	for _, text := range texts {
		if strings.Contains(text, password) {
			t.Errorf("the text contains the password: %s", text)
		}
	}
}

func TestConnect_PasswordAndDatabase(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	c := redis.NewClient(&redis.Options{Addr: server.Addr, DB: 3})
	t.Cleanup(func() { testkit.NoError(t, c.Close()) })
	testkit.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "relay", "on", ">p@ss:w/rd", "~*", "+@all").Err())
	s := opened(t, redissink.Config{URL: strings.Replace(server.URL, "redis://", "redis://relay:p%40ss%3Aw%2Frd@", 1) + "/3"})
	testkit.NoError(t, s.Check(t.Context()))
	b := newBatch("orders")
	mustSend(t, s, b)
	expectStream(t, c, "orders", ids(b)...)
}

// A command that Redis does not execute is a rejection of the whole batch, which is then
// bisected.
func TestSend_RejectedCommand(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{Mode: redissink.List, List: "{topic}"}, "--rename-command", "RPUSH", "")
	err := send(t, s, newBatch("orders", "orders"))
	if err == nil || errors.Is(err, sink.ErrUnavailable) || errors.Is(err, sink.ErrPermanent) || errors.As(err, new(*sink.BatchError)) {
		t.Errorf("got %v, want a rejection of the whole batch that is not permanent", err)
	}
	expectParts(t, send(t, s, newBatch("orders", "bills")), nil, 0, 1)
	testkit.NoError(t, c.Ping(t.Context()).Err())
}

// An error reply to a script is about the server, never about an event.
func TestOutage_NoScripts(t *testing.T) {
	t.Parallel()
	_, s, _ := start(t, redissink.Config{}, "--rename-command", "EVALSHA", "")
	expectOutage(t, send(t, s, newBatch("orders", "orders")), "EVALSHA")
}

// Streams with different names share no markers.
func TestStream_SimilarNames(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{})
	b := newBatch("{orders}", "{orders}:", "orders", "{orders}::", "{orders}:relay:")
	mustSend(t, s, b)
	for i, e := range b.Events {
		expectStream(t, c, e.Topic, ids(b)[i])
	}
}

func TestWarnings_Eviction(t *testing.T) {
	t.Parallel()
	server, s, c := start(t, redissink.Config{})
	expectWarning := func(want bool) {
		t.Helper()
		if got := s.Warnings(t.Context()); (len(got) > 0) != want || want && !strings.Contains(got[0], "maxmemory-policy") {
			t.Errorf("got %q", got)
		}
	}
	expectWarning(false)
	testkit.NoError(t, c.ConfigSet(t.Context(), "maxmemory-policy", "volatile-ttl").Err())
	expectWarning(false)
	testkit.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "100mb").Err())
	expectWarning(true)
	list := opened(t, redissink.Config{URL: server.URL, Mode: redissink.List, ResendWithin: 1000 * window})
	if got := list.Warnings(t.Context()); len(got) != 1 || !strings.Contains(got[0], "evict a list") {
		t.Errorf("a list: got %q", got)
	}
	publish := opened(t, redissink.Config{URL: server.URL, Mode: redissink.Publish, ResendWithin: 1000 * window})
	if got := publish.Warnings(t.Context()); len(got) != 0 {
		t.Errorf("channels: got %q", got)
	}
	testkit.NoError(t, c.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
	expectWarning(false)
}

func TestWarnings_ShortDedupeWindow(t *testing.T) {
	t.Parallel()
	_, enough, c := start(t, redissink.Config{ResendWithin: window})
	if got := enough.Warnings(t.Context()); len(got) != 0 {
		t.Errorf("got %q", got)
	}
	short := opened(t, redissink.Config{URL: "redis://" + c.Options().Addr, DedupeWindow: time.Minute, ResendWithin: 6 * time.Minute})
	got := short.Warnings(t.Context())
	if len(got) != 1 || !strings.Contains(got[0], "dedupe_window is 1m0s") || !strings.Contains(got[0], "set dedupe_window to 6m0s") {
		t.Errorf("got %q, want both figures and the key", got)
	}
}

func TestPublish(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{Mode: redissink.Publish, Channel: "c:{topic}"})
	sub := c.PSubscribe(t.Context(), "c:*")
	t.Cleanup(func() { testkit.NoError(t, sub.Close()) })
	_, err := sub.Receive(t.Context()) // the subscription is active
	testkit.NoError(t, err)
	b := newBatch("orders", "bills", "orders")
	mustSend(t, s, b)
	for _, i := range []int{0, 2, 1} { // grouped by channel
		m, err := sub.ReceiveMessage(t.Context())
		testkit.NoError(t, err)
		want := string(sink.AppendEnvelope(nil, b, i))
		if m.Channel != "c:"+b.Events[i].Topic || m.Payload != want {
			t.Errorf("got %s on %s, want %s", m.Payload, m.Channel, want)
		}
	}
}
