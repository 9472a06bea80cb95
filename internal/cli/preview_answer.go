package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/preview"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// maxShownAnswer is how many bytes of an answer are shown if a program fails on it.
const maxShownAnswer = 2000

// answerFlags are the flags of preview about an answer.
type answerFlags struct {
	answer, events string
	status         int
	headers        []string
}

func (f *answerFlags) bind(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.answer, "answer", "", "file with the body of an answer: show what it means for the events")
	flags.IntVar(&f.status, "status", http.StatusOK, "the answer's HTTP status")
	flags.StringArrayVar(&f.headers, "header", nil, "a header of the answer, 'Name: value'; repeat the flag for more")
	flags.StringVar(&f.events, "events-file", "", "file with the events, instead of those of the buffer")
}

// viewer returns the previewer of an answer; of requests without --answer.
func (f *answerFlags) viewer(c *cobra.Command) (previewer, error) {
	if f.answer == "" {
		for _, name := range []string{"status", "header"} {
			if c.Flags().Changed(name) {
				return nil, usage("--%s is used without --answer; expected --answer FILE", name)
			}
		}
		events, err := f.readEvents()
		return previewRequests(events), err
	}
	if f.status < 200 || f.status > 599 {
		return nil, usage("--status is %d; expected 200 to 599", f.status)
	}
	answer := sink.Answer{Status: f.status, Header: http.Header{}}
	for _, header := range f.headers {
		name, value, ok := strings.Cut(header, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, usage("--header is %q; expected 'Name: value'", header)
		}
		answer.Header.Add(name, strings.TrimSpace(value))
	}
	var err error
	if answer.Body, err = os.ReadFile(f.answer); err != nil {
		return nil, usage("--answer: %w", err)
	}
	events, err := f.readEvents()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, a *app, from buffer.Buffer, s config.RuntimeSink, limit int, again bool) ([]string, error) {
		return a.previewAnswer(ctx, from, s, limit, events, answer, again)
	}, nil
}

// readEvents returns the events of --events-file; nil without it.
func (f *answerFlags) readEvents() ([]outbox.Event, error) {
	if f.events == "" {
		return nil, nil
	}
	text, err := os.ReadFile(f.events)
	if err != nil {
		return nil, usage("--events-file: %w", err)
	}
	events, err := preview.ParseEvents(text)
	if err != nil {
		return nil, usage("--events-file: %s: %w", f.events, err)
	}
	return events, nil
}

// previewAnswer shows what an answer means for events, or for the next ones of the buffer if events is nil.
func (a *app) previewAnswer(ctx context.Context, from buffer.Buffer, s config.RuntimeSink, limit int, events []outbox.Event, answer sink.Answer, again bool) (others []string, err error) {
	result, err := preview.Answer(ctx, from, s, limit, events, answer)
	switch {
	case errors.Is(err, preview.ErrNoAnswers):
		return result.Others, fmt.Errorf("%w; --answer is for http sinks", err)
	case errors.Is(err, preview.ErrNoEvents):
		return result.Others, fmt.Errorf("%w; expected --events-file FILE", err)
	case err != nil:
		return result.Others, err
	}
	a.failed = a.failed || result.ProgramFailed()
	text := s.Config.Route() + "\n" + a.describeAnswer(&result, answer) + describeUnknownMembers(&s.Config.Sink, painter(a.stdout))
	if again {
		text = "\n" + text
	}
	_, err = io.WriteString(a.stdout, text)
	return result.Others, err
}

// describeAnswer says what happens to each event of a batch after an answer.
func (a *app) describeAnswer(result *preview.Answered, answer sink.Answer) string {
	var text strings.Builder
	paint := painter(a.stdout)
	fmt.Fprintf(&text, "%s answered with %s; nothing was claimed or sent.\n\n", plural(int64(result.Events), "event", "events"),
		strings.TrimSpace(strconv.Itoa(answer.Status)+" "+http.StatusText(answer.Status)))
	for _, f := range result.Fates {
		what := paint(green, f.Word())
		if f.Err != nil {
			what = paint(yellow, f.Word()+":") + " " + printable(a.redact(f.Err.Error()))
		}
		fmt.Fprintf(&text, "event %s  %s\n", f.Event, what)
	}
	if result.Fates != nil {
		return text.String()
	}
	fmt.Fprintf(&text, "%s\n%s\n", paint(yellow, result.Whole()), printable(a.redact(result.Err.Error())))
	if result.ProgramFailed() {
		fmt.Fprintf(&text, "\nThe answer's body:\n%s\n", a.beginning(answer.Body))
	}
	return text.String()
}

// beginning is the beginning of a text without secrets.
func (a *app) beginning(body []byte) string {
	text := a.redact(payload(body))
	if len(text) > maxShownAnswer {
		text = strings.ToValidUTF8(text[:maxShownAnswer], "") + "..."
	}
	return strings.TrimRight(text, "\n")
}
