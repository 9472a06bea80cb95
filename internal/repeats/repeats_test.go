package repeats

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/slogtest"
	"testing/synctest"
	"time"
)

// output is a log, each line without its time.
type output struct {
	bytes.Buffer
	t     *testing.T
	level slog.LevelVar
}

// newLog returns a limited logger of a pipeline.
func newLog(t *testing.T) (*slog.Logger, *Handler, *output) {
	o := &output{t: t}
	h := New(slog.NewTextHandler(o, &slog.HandlerOptions{Level: &o.level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	return slog.New(h).With("pipeline", "orders"), h, o
}

// wants compares the lines since the last call.
func (o *output) wants(lines ...string) {
	o.t.Helper()
	want := ""
	for _, line := range lines {
		want += line + "\n"
	}
	if got := o.String(); got != want {
		o.t.Errorf("the log is\n%swant\n%s", got, want)
	}
	o.Reset()
}

const refused = `level=WARN msg="delivery failed, will retry" pipeline=orders group_id=%d error=refused`

func fail(log *slog.Logger, batch int, err string) {
	log.Warn("delivery failed, will retry", "group_id", batch, "error", errors.New(err))
}

// An outage is one line at once, one a minute with the count, and one when it ends.
func TestHandler_Outage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, _, o := newLog(t)
		fail(log, 0, "refused")
		o.wants(fmt.Sprintf(refused, 0))
		for i := range 59 {
			wait(time.Second)
			fail(log, i+1, "refused")
		}
		o.wants()
		wait(time.Second)
		fail(log, 60, "refused")
		o.wants(fmt.Sprintf(refused, 59) + " repeated=59")
		for i := range 120 {
			wait(time.Second)
			fail(log, 61+i, "refused")
		}
		o.wants(fmt.Sprintf(refused, 119)+" repeated=60", fmt.Sprintf(refused, 179)+" repeated=60")
		wait(time.Second)
		fail(log, 181, "refused")
		log.Info("sink recovered")
		o.wants(fmt.Sprintf(refused, 181)+" repeated=2", `level=INFO msg="sink recovered" pipeline=orders`)
		fail(log, 182, "refused")
		o.wants(fmt.Sprintf(refused, 182))
	})
}

// The count of an outage that ended without a line of its own is written with the next line after its minute, such as the summary.
func TestHandler_Summary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, _, o := newLog(t)
		const line = `level=INFO msg="delivered in the last minute" pipeline=orders`
		fail(log, 0, "refused")
		fail(log, 1, "refused")
		log.Info("delivered in the last minute")
		fail(log, 2, "refused")
		o.wants(fmt.Sprintf(refused, 0), line)
		wait(time.Minute)
		log.Info("delivered in the last minute")
		o.wants(fmt.Sprintf(refused, 2)+" repeated=2", line)
		wait(time.Minute)
		log.Info("delivered in the last minute")
		o.wants(line)
		fail(log, 3, "refused")
		o.wants(fmt.Sprintf(refused, 3))
	})
}

// Another error is written at once, but no more than a few a minute are, for example of answers that all differ.
func TestHandler_Errors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, _, o := newLog(t)
		for i, text := range []string{"refused", "timeout", "refused", "timeout"} {
			fail(log, i, text)
		}
		o.wants(fmt.Sprintf(refused, 0), strings.Replace(fmt.Sprintf(refused, 1), "refused", "timeout", 1))
		for i := range 100 {
			fail(log, i, fmt.Sprintf("request %d", i))
		}
		if n := strings.Count(o.String(), "\n"); n != maxWarnings-2 {
			t.Errorf("%d lines of different errors; want %d", n, maxWarnings-2)
		}
		o.Reset()
		log.Info("sink recovered") // as often as the sink flaps
		fail(log, 7, "refused")
		o.wants(`level=INFO msg="sink recovered" pipeline=orders`)
		wait(time.Minute)
		fail(log, 8, "refused")
		o.wants(fmt.Sprintf(refused, 7) + " repeated=101")
	})
}

// Other pipelines, sinks, messages and attributes have lines of their own.
func TestHandler_Kinds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, h, o := newLog(t)
		for range 2 {
			log.Warn("a", "error", "e")
			log.Warn("b", "error", "e")
			log.With("sink", "crm").Warn("a", "error", "e")
			log.With("sink", "erp").Warn("a", "error", "e")
			slog.New(h).Warn("a", "pipeline", "bills", "error", "e")
			log.Warn("session terminated", "pid", 1)
			log.Warn("session terminated", "pid", 2)
		}
		o.wants(
			`level=WARN msg=a pipeline=orders error=e`, `level=WARN msg=b pipeline=orders error=e`,
			`level=WARN msg=a pipeline=orders sink=crm error=e`, `level=WARN msg=a pipeline=orders sink=erp error=e`,
			`level=WARN msg=a pipeline=bills error=e`,
			`level=WARN msg="session terminated" pipeline=orders pid=1`, `level=WARN msg="session terminated" pipeline=orders pid=2`)
		log.With("sink", "crm").Info("sink recovered") // of no other sink
		o.wants(`level=WARN msg=a pipeline=orders sink=crm error=e repeated=1`, `level=INFO msg="sink recovered" pipeline=orders sink=crm`)
		for _, name := range []string{"one", "two"} {
			log.WithGroup(name).Warn("grouped")
		}
		o.wants(`level=WARN msg=grouped pipeline=orders`, `level=WARN msg=grouped pipeline=orders`)
		h.Flush()
		if n := strings.Count(o.String(), "repeated=1\n"); n != 6 {
			t.Errorf("at the end are %d counts; want 6:\n%s", n, o)
		}
	})
}

// Each kind has a minute of its own.
func TestHandler_Minutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, _, o := newLog(t)
		for i, message := range []string{"first", "second", "third"} {
			wait(time.Duration(i) * 10 * time.Second)
			log.Warn(message)
			log.Warn(message)
		}
		o.Reset()
		for range 30 {
			wait(time.Second)
			log.Warn("third")
		}
		o.wants(`level=WARN msg=first pipeline=orders repeated=1`)
		for range 30 {
			wait(time.Second)
			log.Warn("third")
		}
		o.wants(`level=WARN msg=second pipeline=orders repeated=1`, `level=WARN msg=third pipeline=orders repeated=60`)
	})
}

// Every dead letter has its line, up to 60 a minute, and then a count.
func TestHandler_DeadLetters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, h, o := newLog(t)
		bury := func(n int) {
			for i := range n {
				log.Error("events became dead letters", "group_id", i, "events", 1, "error", "400 Bad Request")
			}
		}
		bury(60)
		if n := strings.Count(o.String(), "\n"); n != 60 {
			t.Errorf("%d lines of 60 dead letters", n)
		}
		o.Reset()
		bury(40)
		o.wants()
		wait(time.Minute)
		bury(1)
		const line = `level=ERROR msg="events became dead letters" pipeline=orders group_id=%d events=1 error="400 Bad Request"`
		o.wants(fmt.Sprintf(line, 39)+" repeated=40", fmt.Sprintf(line, 0))
		bury(70)
		o.Reset()
		h.Flush()
		o.wants(fmt.Sprintf(line, 69) + " repeated=12")
	})
}

// A log with DEBUG has every line. What was counted before is written first.
func TestHandler_Debug(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, _, o := newLog(t)
		fail(log, 0, "refused")
		fail(log, 1, "refused")
		o.level.Set(slog.LevelDebug)
		fail(log, 2, "refused")
		fail(log, 3, "refused")
		log.Debug("batch delivered")
		log.Debug("batch delivered")
		o.wants(fmt.Sprintf(refused, 0), fmt.Sprintf(refused, 1)+" repeated=1", fmt.Sprintf(refused, 2), fmt.Sprintf(refused, 3),
			"level=DEBUG msg=\"batch delivered\" pipeline=orders", "level=DEBUG msg=\"batch delivered\" pipeline=orders")
	})
}

// In a log without INFO, an INFO line ends an outage and is not written.
func TestHandler_Level(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, h, o := newLog(t)
		o.level.Set(slog.LevelWarn)
		fail(log, 0, "refused")
		fail(log, 1, "refused")
		log.Info("sink recovered")
		log.Debug("batch delivered")
		o.wants(fmt.Sprintf(refused, 0), fmt.Sprintf(refused, 1)+" repeated=1")
		o.level.Set(slog.LevelError)
		fail(log, 2, "timeout")
		fail(log, 3, "timeout")
		h.Flush()
		o.wants()
	})
}

// Memory is bounded, and a kind that makes room loses no count.
func TestHandler_ManyKinds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, h, o := newLog(t)
		fail(log, 0, "refused")
		fail(log, 1, "refused")
		wait(time.Millisecond)
		for i := range 3 * maxKinds {
			log.Warn(fmt.Sprintf("message %d", i))
		}
		if n := len(h.kinds.all); n != maxKinds {
			t.Errorf("%d kinds are kept; want %d", n, maxKinds)
		}
		if want := fmt.Sprintf(refused, 1) + " repeated=1\n"; strings.Count(o.String(), want) != 1 {
			t.Errorf("the log lacks %s", want)
		}
		wait(time.Minute)
		log.Info("delivered in the last minute")
		if n := len(h.kinds.all); n != 0 {
			t.Errorf("after a minute, %d kinds are kept; want 0", n)
		}
	})
}

func TestHandler_Conforms(t *testing.T) {
	t.Parallel()
	var b *bytes.Buffer
	slogtest.Run(t, func(*testing.T) slog.Handler {
		b = new(bytes.Buffer)
		return New(slog.NewJSONHandler(b, nil))
	}, func(t *testing.T) map[string]any {
		var line map[string]any
		if err := json.Unmarshal(b.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		return line
	})
}

// wait lets the time of a synctest bubble pass.
func wait(d time.Duration) { <-time.After(d) }
