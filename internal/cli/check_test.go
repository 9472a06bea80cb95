package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	path := write(t, `
pipelines:
  - name: orders
    source: {url: "postgres://app:${PASSWORD}@db/app"}
    sink: {url: "redis://:s3cret@cache/0", stream: "s:{topic}"}
  - name: lists
    source: {url: "sqlite:///var/lib/app.db", table: events}
    schedule: "*/5 * * * *"
    batch_size: 10
    workers: 1
    sink: {url: "rediss://cache", mode: list}
  - name: bus
    source: {url: "postgres://app@db/bus"}
    sink: {url: "nats://t0ken-s3cret@bus", subject: "orders.{topic}"}
  - name: hooks
    source: {url: "postgres://app@db/hooks"}
    sink: {url: "https://api.example/hook?key=s3cret", format: ndjson, headers: {Authorization: "Bearer s3cret"}}
  - name: lines
    source: {url: "postgres://app@db/lines"}
    sink: {url: "file:///var/log/events"}
`)
	do(t, []string{"PASSWORD=pa/ss-s3cret"}, "check", "-c", path).want(t, 0, `ok  orders: postgres://***@db/app (outbox_events) -> redis://***@cache/0 (stream s:{topic}), 4 workers, batches of 1000, @every 1s
ok  lists: sqlite:///var/lib/app.db (events) -> rediss://cache (list {topic}), 1 worker, batches of 10, */5 * * * *
ok  bus: postgres://***@db/bus (outbox_events) -> nats://***@bus (JetStream subject orders.{topic}), 4 workers, batches of 1000, @every 1s
ok  hooks: postgres://***@db/hooks (outbox_events) -> https://api.example/hook?*** (POST ndjson), 4 workers, batches of 1000, @every 1s
ok  lines: postgres://***@db/lines (outbox_events) -> file:///var/log/events (NDJSON), 4 workers, batches of 1000, @every 1s
`, "warning: "+path+":17:17: sink.headers.Authorization looks like a secret, and its value is in clear text in the file; write ${NAME} or ${file:/path}\n")
}

// A failover of Redis may lose events that it acknowledged.
func TestCheck_RedisFailover(t *testing.T) {
	t.Parallel()
	path := write(t, `
pipelines:
  - {name: a, source: {url: postgres://db/a}, sink: {url: "redis+sentinel://:s3cret@s/main"}}
  - {name: b, source: {url: postgres://db/b}, sink: {url: "rediss+cluster://c", wait_replicas: 1}}
  - {name: c, source: {url: postgres://db/c}, sink: {url: "redis+cluster://c", mode: publish}}
  - {name: d, source: {url: postgres://db/d}, sink: {url: redis://d}}
  - name: queues
    source: {url: postgres://db/e}
    sink: {url: redis://e, mode: asynq, queue: orders}
    dead_letter: {hook: {url: redis://e, mode: asynq, queue: dead}} # another target
`)
	r := do(t, nil, "check", "-c", path)
	r.want(t, 0, "redis://e (asynq orders)", "warning: a: wait_replicas is 0, so a failover can lose")
	if strings.Count(r.stderr, "warning: ") != 1 {
		t.Errorf("stderr: %s", r.stderr)
	}
}

func TestCheck_AllErrors(t *testing.T) {
	t.Parallel()
	path := write(t, `admin: {listen: "0.0.0.0:7070"}
logs: {level: info}
pipelines:
  - name: Orders
    source: {url: "mysqll://app:s3cret@db/app", tabel: x}
    batch_size: many
    claim: shake
    sink: {url: "redis://:s3cret@cache/zero"}
  - source: {url: "postgres://app:s3cret@db/app"}
    sink: {url: "${NOT_SET}"}
`)
	r := do(t, nil, "check", "-c", path)
	r.want(t, 2, "", path+":1:")
	lines := strings.Split(strings.TrimSuffix(r.stderr, "\n"), "\n")
	if len(lines) != 10 {
		t.Errorf("%d errors, want 10:\n%s", len(lines), r.stderr)
	}
	for _, line := range lines {
		if !strings.HasPrefix(line, path+":") || !strings.Contains(line, "expected") && !strings.Contains(line, "is not set") {
			t.Errorf("%q lacks the place, the error or what is expected", line)
		}
	}
}

// The errors that only a driver finds have a place too.
func TestCheck_DriverErrors(t *testing.T) {
	t.Parallel()
	garbage := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(garbage, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := write(t, `pipelines:
  - name: a
    source: {url: "postgres://app@db/a"}
    sink:
      url: https://api.example/
      tls: {ca: `+garbage+`}
  - name: b
    source: {url: "postgres://app@db/b"}
    sink:
      url: nats://bus
      credentials: /nowhere/user.creds
  - name: c
    source: {url: "postgres://app@db/c"}
    sink:
      url: tls+nats://bus
      tls: {ca: /nowhere/ca.pem}
`)
	for _, command := range []string{"check", "run"} {
		r := do(t, nil, command, "-c", path)
		r.want(t, 2, "", path+":5:12: ")
		r.want(t, 2, "", path+":10:12: ")
		r.want(t, 2, "", path+":15:12: NATS sink: tls.ca cannot be read")
	}
}

// A sink that keeps nothing is no mistake, but it is said.
func TestCheck_Warnings(t *testing.T) {
	t.Parallel()
	path := write(t, `pipelines:
  - {name: a, source: {url: "postgres://app@db/a"}, sink: {url: nats://bus, core: true}}
  - {name: b, source: {url: "postgres://app@db/b"}, sink: {url: nats://bus}}
  - {name: c, source: {url: "postgres://app@db/c"}, sink: {url: nats://bus}, dead_letter: {hook: {url: nats://bus, core: true, subject: dead}}}
`)
	r := do(t, nil, "check", "-c", path)
	r.want(t, 0, "ok  a: ", "warning: a: core NATS stores nothing")
	r.want(t, 0, "ok  c: ", "warning: c: dead_letter.hook: core NATS stores nothing")
	if strings.Contains(r.stderr, "warning: b") {
		t.Errorf("stderr: %s", r.stderr)
	}
}

// Every command reports the errors that only a buffer finds, before it does anything.
func TestCommands_BufferErrors(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "app.db")
	path := write(t, `pipelines:
  - {name: a, source: {url: "sqlite://`+file+`"}, sink: {url: "stdout:"}}
  - name: b
    source: {url: "postgres://app:s3cret@db/b?sslmode=nope"}
    sink: {url: "stdout:"}
  - name: c
    source:
      url: postgres://app:s3cret@db/c?connect_timeout=soon
    sink: {url: "stdout:"}
`)
	for _, command := range []string{"check", "run", "migrate", "status"} {
		r := do(t, nil, command, "-c", path)
		r.want(t, 2, "", path+":4:19: ")
		r.want(t, 2, "", path+":8:12: ")
		if strings.Count(r.stderr, "\n") != 2 {
			t.Errorf("%s: stderr is %q, want two lines", command, r.stderr)
		}
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a database was created despite a wrong configuration: %v", err)
	}
}

// Check and doctor warn of what is valid and probably wrong; the exit status stays 0.
func TestCheck_ClearText(t *testing.T) {
	t.Parallel()
	path := write(t, onePipeline("p", "postgres://app:s3cret-1@db.example/app", "http://search.example/_bulk", "    batch_size: 10"))
	r := do(t, nil, "check", "-c", path)
	r.want(t, 0, "ok  p", "warning: "+path+":4:19: source.url has no sslmode that requires TLS")
	r.want(t, 0, "ok  p", "warning: "+path+":5:17: sink.url is a _bulk API, which answers 200 even if it refused events")
}
