package redissink_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/sink/redissink"
)

// What a server that acknowledges events may lose, by its settings.
func TestWarnings_Persistence(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args          []string
		warning, note string // "" none
	}{
		"Nothing":   {[]string{"--appendonly", "no", "--save", ""}, "keeps nothing on disk", ""},
		"Snapshots": {[]string{"--appendonly", "no", "--save", "3600", "1"}, "save 3600 1", ""},
		"NoSync":    {[]string{"--appendonly", "yes", "--appendfsync", "no"}, "", "appendfsync no"},
		"EverySec":  {[]string{"--appendonly", "yes", "--appendfsync", "everysec"}, "", "appendfsync everysec"},
		"Always":    {[]string{"--appendonly", "yes", "--appendfsync", "always"}, "", ""},
		"Unknown":   {[]string{"--appendonly", "no", "--rename-command", "CONFIG", ""}, "no append-only file", ""},
		"UnknownSync": {
			[]string{"--appendonly", "yes", "--appendfsync", "no", "--rename-command", "CONFIG", ""}, "", "appendfsync cannot be read",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, s, _ := start(t, redissink.Config{}, c.args...)
			expectOne(t, "warnings", s.Warnings(t.Context()), c.warning)
			expectOne(t, "notes", s.Notes(t.Context()), c.note)
		})
	}
}

// expectOne fails the test unless one text contains want, or there is none if want is empty.
func expectOne(t *testing.T, what string, got []string, want string) {
	t.Helper()
	switch {
	case want == "" && len(got) == 0:
	case want == "" || len(got) != 1 || !strings.Contains(got[0], want):
		t.Errorf("%s are %q; want one with %q", what, got, want)
	}
}

func TestWarnings_Replicas(t *testing.T) {
	t.Parallel()
	r := startReplicated(t, testserver.Redis, redissink.Stream)
	for replicas, want := range map[int]string{0: "wait_replicas is 0, so a failover can lose", 1: "", 2: "so events wait"} {
		r.cfg.WaitReplicas = replicas
		expectOne(t, "warnings", r.fresh(t).Warnings(t.Context()), want)
	}
	host, port, _ := strings.Cut(r.master.Addr, ":")
	testserver.Redis(t, "--replicaof", host+" "+port)
	testkit.Eventually(t, func() error {
		if info := client(t, r.master).Info(t.Context(), "replication").Val(); !strings.Contains(info, "connected_slaves:2") {
			return errors.New("the second replica is not connected")
		}
		return nil
	})
	for replicas, want := range map[int]string{0: "", 1: "has 2 replicas and wait_replicas is 1", 2: ""} {
		r.cfg.WaitReplicas = replicas
		notes := slices.DeleteFunc(r.fresh(t).Notes(t.Context()), func(note string) bool { return strings.Contains(note, "appendfsync") })
		expectOne(t, "notes", notes, want)
	}
	publish := opened(t, redissink.Config{URL: r.master.URL, Mode: redissink.Publish})
	testkit.Equal(t, "warnings of channels", len(publish.Warnings(t.Context()))+len(publish.Notes(t.Context())), 0)
}

// Only a server that is over its limit and evicts nothing refuses events.
func TestObstacles_Memory(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{})
	for _, state := range []struct{ limit, policy, want string }{
		{"0", "noeviction", ""},
		{"1gb", "noeviction", ""},
		{"1", "allkeys-lru", ""},
		{"1", "noeviction", "out of memory"},
	} {
		testkit.NoError(t, c.ConfigSet(t.Context(), "maxmemory-policy", state.policy).Err())
		testkit.NoError(t, c.ConfigSet(t.Context(), "maxmemory", state.limit).Err())
		expectOne(t, "obstacles", s.Obstacles(t.Context()), state.want)
	}
}
